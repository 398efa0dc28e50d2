"""When requests arrive: a Poisson process whose rate follows the day, with bursts."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

DAY = 86_400.0

Rate = Callable[[float], float]
"""Requests per second at a time, in seconds."""


def constant(rate: float) -> Rate:
    return lambda now: rate


@dataclass(frozen=True)
class Day:
    """The rate over a day: a sine around its mean, lowest at midnight.

    Attributes:
        mean: Requests per second.
        swing: Part of the mean by which the rate rises and falls, below 1.
        length: Seconds of the day.
    """

    mean: float
    swing: float
    length: float = DAY

    def __call__(self, now: float) -> float:
        return self.mean * (1 - self.swing * math.cos(2 * math.pi * now / self.length))

    @property
    def peak(self) -> float:
        return self.mean * (1 + self.swing)


@dataclass(frozen=True)
class Burst:
    """More requests for a while: the rate rises linearly to a multiple, stays there, and falls as it rose.

    Attributes:
        rate: The rate without the burst.
        start: When it begins to rise.
        rise: Seconds until it is at its highest.
        hold: Seconds for which it stays there.
        factor: Multiple of the rate at the highest.
    """

    rate: Rate
    start: float
    rise: float
    hold: float
    factor: float

    def __call__(self, now: float) -> float:
        since = now - self.start
        share = min(since / self.rise, (2 * self.rise + self.hold - since) / self.rise, 1.0)
        return self.rate(now) * (1 + (self.factor - 1) * max(0.0, share))


def arrivals(rate: Rate, highest: float, start: float, end: float, draw: random.Random) -> Iterator[float]:
    """Yields random times at a rate that changes.

    Args:
        highest: A rate that is never exceeded. Times at this rate are drawn and thinned out, each being kept with the
            probability of its rate over this one.

    Raises:
        ValueError: The rate was higher than `highest`.
    """
    now = start
    while (now := now + draw.expovariate(highest)) < end:
        current = rate(now)
        if current > highest * (1 + 1e-9):
            raise ValueError(f"the rate is {current:g} per second after {now:g} s; expected at most {highest:g}")
        if draw.random() * highest < current:
            yield now
