"""Rows of searches that started together."""

import numpy as np
from numpy.typing import NDArray

from dragoman_server.runtime.runtime import Runtime


def close_ranks(runtime: Runtime, done: NDArray[np.bool_], width: int) -> NDArray[np.int64]:
    """Moves the last searches that go on to the rows of those that are done.

    Args:
        done: Which searches are done, each of which has the next `width` rows, [searches].

    Returns:
        The former number of each search that goes on, in their new order.
    """
    left = len(done) - int(done.sum())
    order = np.arange(left)
    holes = done[:left].nonzero()[0]
    movers = left + (~done[left:]).nonzero()[0]
    order[holes] = movers
    for hole, mover in zip(holes.tolist(), movers.tolist(), strict=True):
        for row in range(width):
            runtime.move_row(mover * width + row, hole * width + row)
    return order
