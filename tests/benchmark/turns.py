"""Measures contenders in turn, round by round, and keeps the best setting of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.benchmark.results import Row
from tests.support.load import Sample, percentile

Notify = Callable[[str], None]
"""Called with a description before each measurement."""


@dataclass(frozen=True)
class Effort:
    """Size of a measurement: rounds, and approximate seconds of each contender's sample per round."""

    rounds: int
    seconds: float


@dataclass
class Contender:
    """One system in one setting at one load.

    Attributes:
        load: Inputs in flight; None for all of them at once.
        setting: Description of threads and the like.
        measure: Function that takes a sample of about the given number of seconds.
        samples: One sample per round.
    """

    system: str
    load: int | None
    setting: str
    measure: Callable[[float], Sample]
    samples: list[Sample] = field(default_factory=list)

    def row(self) -> Row:
        latencies = [x for sample in self.samples for x in sample.latencies]
        cpu = sum(sample.cpu_seconds.get("server", sample.cpu_seconds.get("own", 0.0)) for sample in self.samples)
        return Row(
            system=self.system,
            load=self.load,
            setting=self.setting,
            rates=[sample.tokens / sample.seconds for sample in self.samples],
            p50=percentile(latencies, 0.5),
            p99=percentile(latencies, 0.99),
            core_ms=1000 * cpu / sum(sample.sequences for sample in self.samples),
        )


def take_turns(contenders: Sequence[Contender], effort: Effort, notify: Notify) -> list[Row]:
    """Measures all contenders in turn; returns the fastest setting of each system at each load.

    Every other round runs backwards, so that a machine that warms up or gets busy favours no contender.
    """
    for number in range(effort.rounds):
        notify(f"round {number + 1} of {effort.rounds}")
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            contender.samples.append(contender.measure(effort.seconds))
    best: dict[tuple[str, int | None], Row] = {}
    for row in (contender.row() for contender in contenders):
        known = best.get((row.system, row.load))
        if known is None or median(row.rates) > median(known.rates):
            best[row.system, row.load] = row
    return list(best.values())
