"""Scales that turn floats into integers with the least squared error."""

from collections.abc import Sequence

import numpy as np

from dragoman_export.precision.editable_graph import Floats

# Of the scale that reaches the largest value: with a smaller one that value is clipped, and all others come closer.
SHARES = tuple(1 - 0.02 * step for step in range(11))


def quantize(
    values: Floats, scales: Floats, least: int, most: int, shares: Sequence[float] = SHARES
) -> tuple[Floats, Floats]:
    """Rounds values to integers, each group of them with the best of a few scales.

    Args:
        values: [..., n]; the last axis is a group.
        scales: [..., 1], with which the largest value of each group is just reached.
        least, most: bounds of the integers.
        shares: of `scales`, to try.

    Returns:
        the integers as floats, the shape of `values`, and what to multiply them by [..., 1].
    """
    integers, best = np.zeros_like(values), scales
    error = np.full_like(scales, np.inf)
    for share in shares:
        tried = scales * np.float32(share)
        rounded = np.clip(np.rint(values / tried), least, most)
        of_tried = np.square(rounded * tried - values).sum(-1, keepdims=True)
        closer = of_tried < error
        integers, best = np.where(closer, rounded, integers), np.where(closer, tried, best)
        error = np.minimum(error, of_tried)
    return integers, best
