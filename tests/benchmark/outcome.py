"""All that was measured on one model."""

from dataclasses import dataclass, field

from tests.benchmark.samples import Sample, Series


@dataclass(frozen=True)
class Agreement:
    """How many of the same inputs two contenders answered with exactly the same tokens."""

    one: str
    other: str
    same: int
    inputs: int


@dataclass
class Outcome:
    """The results on one model.

    Attributes:
        model: name, shape and precision, in words.
        inputs: what was asked, in words.
        steps: mean tokens of an answer, an end token included.
        start_seconds: of the server, until it serves.
        resident_megabytes: of the server, after all the load.
        series: of every contender and load.
        open_loop: calls per second offered, rising, and what came of it.
    """

    model: str
    inputs: str
    steps: float = 0.0
    start_seconds: float = 0.0
    resident_megabytes: float = 0.0
    series: list[Series] = field(default_factory=list)
    open_loop: list[tuple[float, Sample]] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)

    def at(self, system: str, in_flight: int | None) -> Series | None:
        """The system's best setting at that load."""
        return _fastest([s for s in self.series if s.system == system and s.in_flight == in_flight])

    def best(self, *systems: str) -> Series | None:
        """The best of these systems at any load."""
        return _fastest([s for s in self.series if s.system in systems])


def _fastest(series: list[Series]) -> Series | None:
    return max((s for s in series if s.samples), key=lambda s: s.rate, default=None)
