"""How far graphs may be from the model that they were exported from."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman_server.bundle.manifest import Precision

# In nats. Two implementations with the same integers may round a number halfway between two of them differently. That
# is rare, and then costs a whole quantization step.
TOLERANCE: dict[Precision, float] = {
    "fp32": 1e-4,
    "fp16": 1e-1,
    "bf16": 1.0,
    "int8": 1.0,
    "int8-weights": 1.0,
    "int4": 2.0,  # 1.2 in a model of 24 layers of random weights, where every product adds its own rounding
}
ROUNDING_FACTOR = 10  # times the measured rounding; programs that add in other orders differ by a few times as much


def largest_difference(a: NDArray[np.floating[Any]], b: NDArray[np.floating[Any]]) -> float:
    """Returns the largest absolute difference: infinite for an infinity or NaN, 0 for two equal infinities."""
    different = a != b
    difference = np.zeros(a.shape)
    np.subtract(a, b, out=difference, where=different, dtype=np.float64)
    largest = float(np.abs(difference).max(initial=0.0))
    return largest if largest == largest else float("inf")


def allowed_difference(tolerance: float, rounding: float) -> float:
    """Returns the tolerance, or more if single precision is not enough for the model itself.

    To some inputs, above all long random ones, a model answers chaotically: its own forward pass in PyTorch is then off
    by the tolerance or more, and no graph can do better than that order of magnitude. A model that overflows in single
    precision allows no more, as its graphs overflow too.
    """
    return max(tolerance, ROUNDING_FACTOR * rounding) if math.isfinite(rounding) else tolerance


def describe_excess(subject: str, reference: str, difference: float, tolerance: float, rounding: float) -> str:
    """Returns a sentence on a difference that is too large: what was seen, and what is allowed and why."""
    allowed = allowed_difference(tolerance, rounding)
    if allowed > tolerance:
        reason = f"{ROUNDING_FACTOR} times the {rounding:.2g} that rounding to single precision changes for this model"
    else:
        reason = f"the tolerance, of which rounding to single precision takes {rounding:.2g} for this model"
    return f"{subject} and {reference} differ by {difference:.2g}; expected at most {allowed:.2g}, {reason}"
