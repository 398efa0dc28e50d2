"""Reads numbers of GenerationOptions and checks their ranges."""

import math
from typing import NoReturn

import numpy as np

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.api_error import invalid

# Options that need `beam_size`, and those that need `sample`.
BEAM_OPTIONS = (
    "length_normalization",
    "length_penalty",
    "coverage_penalty",
    "early_stopping",
    "patience",
    "beam_groups",
    "diversity_penalty",
    "stopping",
)
SAMPLING_OPTIONS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "seed")


class OptionReader:
    """Reads the options of one request.

    Attributes:
        options: The options.
        present: Names of the options that the client set. A field that is not `optional` counts as set if its value is
            not the default.
    """

    def __init__(self, options: pb.GenerationOptions) -> None:
        self.options = options
        self.present = {field.name for field, _ in options.ListFields()}

    def has(self, name: str) -> bool:
        """Returns whether the client set an option."""
        return name in self.present

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raises ApiError for an option."""
        raise invalid(f"options.{name}", problem)

    def require(self, required: str, names: tuple[str, ...]) -> None:
        """Raises ApiError if one of the options is present, because it needs one that is not."""
        for name in names:
            if name in self.present:
                self.refuse(name, f"needs {required}")

    def integer(self, name: str, default: int, low: int, high: int | None = None, reason: str = "") -> int:
        """Returns an option, or the default if it is absent.

        Args:
            low: The smallest allowed value.
            high: The largest allowed value; None for no bound.
            reason: Explanation of the range, appended to the error.

        Raises:
            ApiError: the value is out of range.
        """
        if name not in self.present:
            return default
        value: int = getattr(self.options, name)
        if value < low or (high is not None and value > high):
            if high is None:
                range_ = f"at least {low}"
            else:
                range_ = f"from {low} to {high}" if low < high else str(low)
            self.refuse(name, f"is {value}, but must be {range_}{reason}")
        return value

    def number(
        self, name: str, default: float, low: float, high: float, *, above: bool = False, below: bool = False
    ) -> float:
        """Returns an option, or the default if it is absent.

        A 32-bit field returns 0.1 as 0.10000000149. The result is the shortest decimal with the same 32 bits, which is
        what the client wrote.

        Args:
            low: Lower bound.
            high: Upper bound.
            above: Whether `low` itself is not allowed.
            below: Whether `high` itself is not allowed.

        Raises:
            ApiError: the value is out of range, or not a number.
        """
        if name not in self.present:
            return default
        value = float(str(np.float32(getattr(self.options, name))))
        inside = low <= value <= high and not (above and value == low) and not (below and value == high)
        if not inside or math.isnan(value):
            least = f"more than {low:g}" if above else f"at least {low:g}"
            most = f"less than {high:g}" if below else f"at most {high:g}"
            self.refuse(name, f"is {value:.9g}, but must be {least} and {most}")
        return value
