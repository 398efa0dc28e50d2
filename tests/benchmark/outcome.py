"""All that was measured on one model."""

from dataclasses import dataclass, field

from tests.benchmark.beam import Beam
from tests.benchmark.marks import Kind
from tests.benchmark.metrics_cost import MetricsCost
from tests.benchmark.operators import OperatorTimes
from tests.benchmark.samples import Sample, Series


@dataclass(frozen=True)
class Agreement:
    """How many of the same inputs two contenders answered with exactly the same tokens.

    Attributes:
        undecided: of the others, those where on the way to the answer two numbers are so close that rounding decides;
            None where that was not looked at.
    """

    one: str
    other: str
    same: int
    inputs: int
    undecided: int | None = None


@dataclass
class Measured:
    """One kind of search.

    Attributes:
        steps: mean tokens of an answer, an end token included.
        series: of every contender and load.
        quality: sequence error rates by contender, in per cent, where the inputs have references.
        kind: see Outcome.
    """

    steps: float = 0.0
    series: list[Series] = field(default_factory=list)
    agreements: list[Agreement] = field(default_factory=list)
    quality: dict[str, float] = field(default_factory=dict)
    kind: Kind = "shipped"

    def at(self, system: str, in_flight: int | None) -> Series | None:
        """The system's best setting at that load."""
        return _fastest([s for s in self.series if s.system == system and s.in_flight == in_flight])

    def best(self, *systems: str) -> Series | None:
        """The best of these systems at any load."""
        return _fastest([s for s in self.series if s.system in systems])


@dataclass
class Greedy(Measured):
    """Greedy search.

    Attributes:
        start_seconds: of the server, until it serves.
        resident_megabytes: of the server, after all the load.
        peak_megabytes: that the process of a contender ever held, in its best setting.
        open_loop: calls per second offered, rising, and what came of it.
        metrics: what counting costs; None where that was not measured.
    """

    start_seconds: float = 0.0
    resident_megabytes: float = 0.0
    peak_megabytes: dict[str, float] = field(default_factory=dict)
    open_loop: list[tuple[float, Sample]] = field(default_factory=list)
    metrics: MetricsCost | None = None


@dataclass
class BeamSearch(Measured):
    """Beam search."""

    beam: Beam = field(default_factory=Beam)


@dataclass
class ShortLists(Measured):
    """Greedy search with a short list of the vocabulary.

    Attributes:
        tokens: of a list.
        vocabulary: tokens there are.
    """

    tokens: int = 0
    vocabulary: int = 0


@dataclass
class Outcome:
    """The results on one model.

    Attributes:
        model: name, shape and precision, in words.
        inputs: what was asked, in words.
        kind: of the model, by which marks differ.
        operators: where the time of the graphs goes, at several numbers of rows.
    """

    model: str
    inputs: str
    kind: Kind = "shipped"
    greedy: Greedy | None = None
    beam: BeamSearch | None = None
    short_lists: ShortLists | None = None
    operators: list[OperatorTimes] = field(default_factory=list)


def _fastest(series: list[Series]) -> Series | None:
    return max((s for s in series if s.samples), key=lambda s: s.rate, default=None)
