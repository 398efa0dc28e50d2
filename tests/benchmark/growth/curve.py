"""A curve: what was measured at growing sizes, and what that says of how cost grows. Pure arithmetic."""

import math
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

LINEAR = 1.1  # an exponent up to here counts as no more than linear: noise of a few per cent between neighbours


@dataclass
class Point:
    """A size.

    Attributes:
        items: of what throughput counts, in one unit of work.
        seconds: of one unit of work, one number a round.
    """

    size: int
    items: float
    seconds: list[float] = field(default_factory=list)

    @property
    def typical(self) -> float:
        """Median seconds."""
        return median(self.seconds)

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.typical


@dataclass
class Curve:
    """Attributes:
    name: for files, of letters and hyphens.
    work: what takes the time, in words: "a decode step".
    size: what grows, in words: "rows".
    item: what throughput counts, plural: "tokens".
    setting: what stays the same, in words.
    why: what is to be expected of it, as a sentence.
    spread: whether it is throughput that should grow, and the time of the work not: as with engines.
    points: by size, at least two.
    """

    name: str
    work: str
    size: str
    item: str
    setting: str
    points: list[Point]
    why: str = ""
    spread: bool = False

    def exponent(self) -> float:
        """e in seconds ~ size^e (in rate ~ size^e, where work is spread), between the ends."""
        return self._exponent(self.points[0], self.points[-1])

    def last_exponent(self) -> float:
        """The same between the last two points."""
        return self._exponent(*self.points[-2:])

    def steepest(self) -> tuple[Point, Point, float]:
        """The neighbours between which the time grows fastest, and the exponent between them."""
        one, other = max(pairwise(self.points), key=lambda pair: self._exponent(*pair))
        return one, other, self._exponent(one, other)

    def fixed_share(self) -> float:
        """How much of the time at the smallest size is there whatever the size: from a line through the ends."""
        first, last = self.points[0], self.points[-1]
        slope = (last.typical - first.typical) / (last.size - first.size)
        return max(0.0, 1 - slope * first.size / first.typical)

    def linear(self, size: int) -> float:
        """Seconds at a size if they grew in proportion from the first point on; rate, where work is spread."""
        first = self.points[0]
        return (first.rate if self.spread else first.typical) * size / first.size

    def sentence(self) -> str:
        """What the numbers say."""
        first, last = self.points[0], self.points[-1]
        if self.spread:
            best = max(self.points, key=lambda point: point.rate)
            return (
                f"From {first.size} to {last.size} {self.size} {self.item} a second grow {last.rate / first.rate:.2f}-"
                f"fold, exponent {self.exponent():.2f}; most are given by {best.size} ({best.rate:,.0f} a second, "
                f"{best.rate / first.rate:.2f} times those of {first.size})."
            )
        verdict = self._verdict()
        return (
            f"From {first.size} to {last.size} {self.size} (×{last.size / first.size:g}) {self.work} takes "
            f"{last.typical / first.typical:.1f} times as long, exponent {self.exponent():.2f} between the ends and "
            f"{self.last_exponent():.2f} between the last two points; a line through the ends leaves "
            f"{self.fixed_share():.0%} of the first point's time to what does not depend on {self.size}. {verdict}"
        )

    def _verdict(self) -> str:
        one, other, exponent = self.steepest()
        if exponent <= LINEAR:
            return "Nowhere more than linear."
        step = f"steepest from {one.size} to {other.size}, exponent {exponent:.2f}"
        if self.exponent() <= LINEAR:
            return f"No more than linear as a whole; {step}."
        return f"**More than linear**, {step}."

    def _exponent(self, one: Point, other: Point) -> float:
        cost = one.rate / other.rate if self.spread else other.typical / one.typical
        growth = math.log(cost) / math.log(other.size / one.size)
        return -growth if self.spread else growth
