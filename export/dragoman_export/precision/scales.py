"""All scales: the factors between integers and the floats that they represent.

| integers of | scale | found by |
|---|---|---|
| int8 weights and tables | one for each output or row | `by_output`, from the weight |
| int8-weights, int4 | one for each block of 32 inputs | `by_block`, from the weight |
| int8 activations | one constant for each product | `activation_scale`, from `calibration.activation_ranges` |
| int8 caches | one for each component of keys and values | `cache_scales`, from `calibration.cache_peaks` |

The scale of a weight is the best of eleven, from the one that just reaches the largest value down to 0.8 of it:
`round_to_integers` takes the one with the least squared error.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_export.precision.calibration import Range
from dragoman_export.precision.editable_graph import Floats

# Shares of the scale that reaches the largest value. A smaller scale clips that value and fits all others better.
SHARES = tuple(1 - 0.02 * step for step in range(11))
LARGEST_FACTOR = 63  # int8 weights in products have 7 bits and are symmetric, see precision.int8
LARGEST_IN_TABLE = 127  # int8 tables of which only rows are gathered
LARGEST_CACHED = 127  # int8 caches
MOST_NUMBERS = 1 << 20  # of a weight that are rounded at a time
BLOCK = 32  # inputs that share a scale in int8-weights and int4


def round_to_integers(
    values: Floats, scales: Floats, least: int, most: int, shares: Sequence[float] = SHARES
) -> tuple[Floats, Floats]:
    """Rounds values to integers, each group with the best of a few scales.

    Args:
        values: Values [..., n]; the last axis is a group.
        scales: Scales [..., 1] that just reach the largest value of each group.
        least, most: Bounds of the integers.
        shares: Shares of `scales` to try.

    Returns:
        Integers as floats, in the shape of `values`, and their scales [..., 1].
    """
    integers, best = np.zeros_like(values), scales
    error = np.full_like(scales, np.inf)
    for share in shares:
        scale = scales * np.float32(share)
        rounded = np.clip(np.rint(values / scale), least, most)
        squared = np.square(rounded * scale - values).sum(-1, keepdims=True)
        better = squared < error
        integers, best = np.where(better, rounded, integers), np.where(better, scale, best)
        error = np.minimum(error, squared)
    return integers, best


def by_output(weight: Floats, largest: int = LARGEST_FACTOR) -> tuple[NDArray[np.int8], Floats]:
    """Returns a weight [out, in] as integers from -largest to largest, and the scale of each row [out]."""
    stored, scales = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    for rows in _some_rows(weight):
        some = weight[rows]
        peaks = np.abs(some).max(1, keepdims=True)
        reaching = np.where(peaks == 0, 1, peaks / largest).astype(np.float32)
        integers, best = round_to_integers(some, reaching, -largest, largest)
        stored[rows], scales[rows] = integers, best[:, 0]
    return stored, scales


def by_block(weight: Floats, bits: int) -> tuple[NDArray[np.uint8], Floats]:
    """Returns a weight in the layout of `MatMulNBits`.

    Args:
        weight: [out, in].
        bits: 8 or 4.

    Returns:
        Integers [out, blocks, BLOCK * bits / 8] around 128 or 8, two 4-bit ones in a byte with the first in its lower
        half, and their scales [out, blocks].
    """
    outputs, inputs = weight.shape
    blocks = -(-inputs // BLOCK)
    stored = np.empty((outputs, blocks, BLOCK * bits // 8), np.uint8)
    scales = np.empty((outputs, blocks), np.float32)
    zero = 1 << (bits - 1)
    for rows in _some_rows(weight):
        some = np.pad(weight[rows], ((0, 0), (0, -inputs % BLOCK))).reshape(-1, blocks, BLOCK)
        # The value of the largest magnitude becomes the least integer, as there is one more below zero than above.
        peaks = np.take_along_axis(some, np.abs(some).argmax(-1)[..., None], -1)
        reaching = np.where(peaks == 0, 1, peaks / -zero).astype(np.float32)
        rounded, best = round_to_integers(some, reaching, -zero, zero - 1, SHARES if bits == 4 else (1.0,))
        integers = (rounded + zero).astype(np.uint8)
        if bits == 4:
            integers = integers[..., ::2] | (integers[..., 1::2] << np.uint8(4))
        stored[rows], scales[rows] = integers, best[..., 0]
    return stored, scales


def _some_rows(weight: Floats) -> Iterator[slice]:
    """Yields all rows in parts, as rounding takes several copies."""
    step = max(1, MOST_NUMBERS // weight.shape[1])
    for start in range(0, len(weight), step):
        yield slice(start, start + step)


def activation_scale(seen: Range) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Returns the scale and the zero point of 8-bit activations."""
    least, most = min(float(seen.least.min()), 0.0), max(float(seen.most.max()), 0.0)
    scale = (most - least) / 255 or 1.0
    return np.array(scale, np.float32), np.array(round(-least / scale), np.uint8)


def cache_scales(peaks: Mapping[str, Floats]) -> dict[str, Floats]:
    """Returns the scales of 8-bit caches by name, float32 [1, heads, 1, d_head]."""
    return {name: np.where(peak == 0, 1, peak / LARGEST_CACHED).astype(np.float32) for name, peak in peaks.items()}
