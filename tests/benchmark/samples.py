"""What is measured, and the little arithmetic on it."""

from dataclasses import dataclass, field
from statistics import median

from tests.benchmark.engine_work import EngineWork


@dataclass(frozen=True)
class Sample:
    """One measurement.

    Attributes:
        seconds: wall clock.
        tokens: generated, an end token that the model produced included: the decode steps that somebody needed.
        sequences: inputs answered.
        latencies: seconds, one for each call (empty where calls make no sense).
        failed: calls without an answer.
        cpu_seconds: processor time over the measurement by process: "server" and "load", or "own" in-process.
        work: what the engines did meanwhile, where that was looked at.
    """

    seconds: float
    tokens: int
    sequences: int
    latencies: list[float] = field(default_factory=list)
    failed: int = 0
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    work: EngineWork | None = None

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Series:
    """The samples of one contender at one load, one a round.

    Attributes:
        system: one of those that tests/benchmark/report.py names.
        in_flight: inputs worked on at a time; None for all of them at once.
        setting: threads and the like, in words.
        threads: workers and the threads of each, of those whose processes are told apart by that.
    """

    system: str
    in_flight: int | None
    setting: str
    samples: list[Sample] = field(default_factory=list)
    threads: tuple[int, int] = (1, 1)

    @property
    def rates(self) -> list[float]:
        return [sample.tokens_per_second for sample in self.samples]

    @property
    def rate(self) -> float:
        """Median tokens per second."""
        return median(self.rates)

    @property
    def work(self) -> EngineWork | None:
        """What engines did, in all rounds together."""
        works = [sample.work for sample in self.samples if sample.work]
        return sum(works[1:], works[0]) if works else None

    def latency(self, quantile: float) -> float:
        """Of all rounds' calls together, in seconds."""
        return percentile([x for sample in self.samples for x in sample.latencies], quantile)


def percentile(values: list[float], quantile: float) -> float:
    """The value at that rank (nearest), NaN where there is none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


def ratios(one: Series, other: Series) -> list[float]:
    """one / other in tokens per second, round by round."""
    return [a / b for a, b in zip(one.rates, other.rates, strict=True)]
