"""Where a hypothesis ends by its tokens: at the end token, at the length limit, or where no token is possible.

Every search uses these two functions, for one row or for arrays of rows. What else ends a hypothesis comes from
elsewhere: a stop sequence from its text (stop_sequences.py), the time limit from `Search.stop`.
"""

import math

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason

Integers = NDArray[np.int64] | NDArray[np.int32]


def finish_reason(
    token: int, log_probability: float, position: int, end: int, last_position: int
) -> FinishReason | None:
    """Returns why a hypothesis ends with its next token, or None where it goes on.

    Args:
        token: Next token.
        log_probability: Log-probability of the token; -inf where every token is forbidden.
        position: Position of the token in the target.
        end: Id of the end token.
        last_position: Position of the last token that the length limit allows.
    """
    if log_probability == -math.inf:
        return FinishReason.DEAD_END
    if token == end:
        return FinishReason.EOS
    if position == last_position:
        return FinishReason.LENGTH
    return None


def finishes(
    tokens: Integers,
    log_probabilities: NDArray[np.float32],
    positions: Integers,
    ends: Integers,
    last_positions: Integers,
) -> NDArray[np.bool_]:
    """Returns whether `finish_reason` is not None, for each row: [rows]."""
    finished: NDArray[np.bool_] = (log_probabilities == -math.inf) | (tokens == ends)
    finished |= positions == last_positions
    return finished
