"""Rows of searches that started together."""

import numpy as np
from numpy.typing import NDArray

from dragoman_server.runtime.runtime import Runtime


def close_ranks(runtime: Runtime, done: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Moves rows of the searches that go on to those of searches that are done, so that no row is free among them.

    Args:
        done: Which searches are done, [searches].
        rows: Rows of each search, [searches, n]: all of 0 .. searches * n - 1.

    Returns:
        the rows of each search that goes on.
    """
    left = rows[~done]
    holes = rows[done]
    holes = holes[holes < left.size]
    movers = (left >= left.size).nonzero()
    for source, target in zip(left[movers].tolist(), holes.tolist(), strict=True):
        runtime.move_row(source, target)
    left[movers] = holes
    return left
