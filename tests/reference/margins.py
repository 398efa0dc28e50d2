"""How close a decision was: where two numbers are nearly equal, rounding decides, and no two programs must agree."""

from collections.abc import Sequence
from math import inf


class Margins:
    """The smallest difference that decided anything.

    Attributes:
        smallest: of log-probabilities, or of shares of probability.
    """

    def __init__(self) -> None:
        self.smallest = inf

    def note(self, difference: float) -> None:
        """A decision that another difference than this, of the other sign, would have turned."""
        if difference == difference:  # else both are infinite: what is impossible competes with nothing
            self.smallest = min(self.smallest, abs(difference))

    def cut(self, descending: Sequence[float], kept: int) -> None:
        """The first `kept` were taken, the others left."""
        if 0 < kept < len(descending):
            self.note(descending[kept - 1] - descending[kept])
