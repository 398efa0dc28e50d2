"""What was wanted, and whether it was reached: said once, for the sentences of each part and for the page's summary."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["shipped", "base"]
"""Of models: the one that ships, or the base shape of "Attention Is All You Need"."""

BATCH_OVER_CTRANSLATE2: dict[Kind, float | None] = {"shipped": 1.5, "base": 2.0}
UNARY_OVER_CTRANSLATE2: dict[Kind, float | None] = {"shipped": None, "base": 2.0}
OF_RAW: dict[Kind, float] = {"shipped": 0.75, "base": 0.9}
LATENCY = 0.67  # times CTranslate2's, at most
BEAM = 1.5  # times CTranslate2's tokens
TAIL = 3.0  # times the unloaded median, at most
TAIL_SHARE = 0.7  # of the peak, at which the tail is looked at
LOOP_SHARE = 0.1  # of a turn's time, at most
COUNTING = 0.01  # of a step's time, at most
FINE = 0.2  # shares below are told with a decimal


@dataclass(frozen=True)
class Mark:
    """A number that was wanted, and what came.

    Attributes:
        name: what is measured, in words.
        values: what came; several where it was looked at in several ways, all of which must reach the mark.
        wanted: None where the number is told and no mark was set for this model.
        at_most: whether it should not be more, rather than not be less.
        share: whether the numbers are shares, to be told in per cent; else they are multiples.
    """

    name: str
    values: Sequence[float] = field(default_factory=list)
    wanted: float | None = None
    at_most: bool = False
    share: bool = False

    @property
    def reached(self) -> bool:
        """By every value; a mark that was not set can't be missed."""
        if self.wanted is None:
            return True
        return max(self.values) <= self.wanted if self.at_most else min(self.values) >= self.wanted

    @property
    def label(self) -> str:
        """How a sentence about it begins; nothing where no mark was set."""
        if self.wanted is None:
            return ""
        return "Reached:" if self.reached else "**Missed:**"

    @property
    def goal(self) -> str:
        """What was wanted, in words."""
        if self.wanted is None:
            return ""
        return f"{'at most' if self.at_most else 'at least'} {self._told(self.wanted)}"

    @property
    def outcome(self) -> str:
        """The value, or the least and the greatest."""
        ends = list(dict.fromkeys(map(self._number, (min(self.values), max(self.values)))))
        return "–".join(ends) + self._unit

    def _told(self, value: float) -> str:
        return self._number(value) + self._unit

    def _number(self, value: float) -> str:
        if self.share:
            return f"{100 * value:.0f}" if value >= FINE else f"{100 * value:.1f}".removesuffix(".0")
        return f"{value:.2f}"

    @property
    def _unit(self) -> str:
        return "%" if self.share else " times"

    def document(self) -> dict[str, Any]:
        """For a JSON file; Mark(**document) gives it back."""
        return {**vars(self), "values": list(self.values)}
