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

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_export.precision.calibration import Range
from dragoman_export.precision.editable_graph import Floats

# Shares of the scale that reaches the largest value. A smaller scale clips that value and fits all others better.
SHARES = tuple(1 - 0.02 * step for step in range(11))
LARGEST_FACTOR = 63  # int8 weights in products have 7 bits and are symmetric, see precision.int8
LARGEST_IN_TABLE = 127  # int8 tables of which only rows are gathered
LARGEST_CACHED = 127  # int8 caches
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
    peaks = np.abs(weight).max(1, keepdims=True)
    reaching = np.where(peaks == 0, 1, peaks / largest).astype(np.float32)
    integers, scales = round_to_integers(weight, reaching, -largest, largest)
    return integers.astype(np.int8), scales[:, 0]


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
    weight = np.pad(weight, ((0, 0), (0, -inputs % BLOCK))).reshape(outputs, -1, BLOCK)
    zero = 1 << (bits - 1)
    # The value of the largest magnitude becomes the least integer, as there is one more integer below zero than above.
    peaks = np.take_along_axis(weight, np.abs(weight).argmax(-1)[..., None], -1)
    reaching = np.where(peaks == 0, 1, peaks / -zero).astype(np.float32)
    shares = SHARES if bits == 4 else (1.0,)
    rounded, scales = round_to_integers(weight, reaching, -zero, zero - 1, shares)
    integers = (rounded + zero).astype(np.uint8)
    if bits == 4:
        integers = integers[..., ::2] | (integers[..., 1::2] << np.uint8(4))
    return integers, scales[..., 0]


def activation_scale(seen: Range) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Returns the scale and the zero point of 8-bit activations."""
    least, most = min(float(seen.least.min()), 0.0), max(float(seen.most.max()), 0.0)
    scale = (most - least) / 255 or 1.0
    return np.array(scale, np.float32), np.array(round(-least / scale), np.uint8)


def cache_scales(peaks: Mapping[str, Floats]) -> dict[str, Floats]:
    """Returns the scales of 8-bit caches by name, float32 [1, heads, 1, d_head]."""
    return {name: np.where(peak == 0, 1, peak / LARGEST_CACHED).astype(np.float32) for name, peak in peaks.items()}
