"""Numbers of GenerationOptions, read and checked; what is wrong is said with the field's name and its range."""

import math
from typing import NoReturn

import numpy as np

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.api_error import invalid


class OptionReader:
    """The options of one request.

    Attributes:
        options: all of them.
        given: names of those that the client gave; one that is not `optional` only where it is not the default.
    """

    def __init__(self, options: pb.GenerationOptions) -> None:
        self.options = options
        self.given = {field.name for field, _ in options.ListFields()}

    def has(self, name: str) -> bool:
        return name in self.given

    def refuse(self, name: str, problem: str) -> NoReturn:
        raise invalid(f"options.{name}", problem)

    def need(self, names: tuple[str, ...], needed: str) -> None:
        """Raises ApiError where one of the fields is there, for want of what makes sense of it."""
        for name in names:
            if name in self.given:
                self.refuse(name, f"needs {needed}")

    def integer(self, name: str, default: int, low: int, high: int | None = None, why: str = "") -> int:
        """The field, or the default where it is absent.

        Args:
            low, high: what it must lie in, both included; None for no bound.
            why: to be said behind the range.

        Raises:
            ApiError: it does not.
        """
        if name not in self.given:
            return default
        asked: int = getattr(self.options, name)
        if asked < low or (high is not None and asked > high):
            range_ = f"at least {low}" if high is None else f"in {low} to {high}"
            self.refuse(name, f"is {asked}, but must be {range_}{why}")
        return asked

    def number(
        self, name: str, default: float, low: float, high: float, *, above: bool = False, below: bool = False
    ) -> float:
        """The field, or the default where it is absent.

        A field has 32 bits, and gives 0.1 as 0.10000000149. What is taken is the shortest decimal that the field holds,
        for that is what the client wrote.

        Args:
            low, high: what it must lie in.
            above, below: whether it must not be `low` or `high` itself.

        Raises:
            ApiError: it does not, or is not a number at all.
        """
        if name not in self.given:
            return default
        asked = float(str(np.float32(getattr(self.options, name))))
        inside = low <= asked <= high and not (above and asked == low) and not (below and asked == high)
        if not inside or math.isnan(asked):
            least = f"more than {low:g}" if above else f"at least {low:g}"
            most = f"less than {high:g}" if below else f"at most {high:g}"
            self.refuse(name, f"is {asked:.9g}, but must be {least} and {most}")
        return asked
