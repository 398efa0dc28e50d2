"""What a search finds out about a target."""

import math
from typing import NamedTuple

Ids = list[int]


class Scored(NamedTuple):
    """Tokens of a target, without the end token, and the mean log-probability of all, which a search has found."""

    ids: Ids
    score: float


NOT_SCORED = Scored([], -math.inf)
