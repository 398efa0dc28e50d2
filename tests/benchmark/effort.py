"""How much is measured, and in what order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.benchmark.samples import Sample, Series

Notify = Callable[[str], None]
"""Told what is going on, before each measurement."""


@dataclass(frozen=True)
class Contender:
    """A series and how to take a sample of about so many seconds."""

    series: Series
    measure: Callable[[float], Sample]


@dataclass(frozen=True)
class Effort:
    """What is measured and how much time is spent.

    Attributes:
        seconds: one sample, about.
        rounds: samples of each series.
        open_seconds: arrivals at each rate of the open loop; 0 for no open loop.
        ctranslate2: whether CTranslate2 takes part.
        greedy, beam, short_list: whether to measure greedy search, beam search, and greedy search with a short list.
        operators: whether to measure where the time of the graphs goes.
    """

    seconds: float
    rounds: int
    open_seconds: float
    ctranslate2: bool = True
    greedy: bool = True
    beam: bool = True
    short_list: bool = True
    operators: bool = True


def take_samples(contenders: Sequence[Contender], effort: Effort, notify: Notify) -> list[Series]:
    """Measures all in turn, round after round."""
    for number in range(effort.rounds):
        # Every other round goes backwards, so that a machine that warms up or gets busy favours nobody.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            series = contender.series
            notify(f"round {number + 1}: {series.system}, {series.in_flight or 'all'} in flight, {series.setting}")
            series.samples.append(contender.measure(effort.seconds))
    return [contender.series for contender in contenders]
