"""What answers the sources of bulk work: engines in this process, or servers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeVar

Item = TypeVar("Item")


class Answer(NamedTuple):
    """What became of one source.

    Attributes:
        text: The answer; None if there is none.
        problem: Why there is none, or what is wrong with it; empty if nothing is.
    """

    text: str | None
    problem: str = ""

    @property
    def complaint(self) -> str:
        """The problem as a sentence, such as "the source is empty"; empty if there is none."""
        return self.problem and f"the {'source' if self.text is None else 'answer'} {self.problem}"


class Backend(Protocol):
    """Answers sources, window by window.

    Attributes:
        model: The model, in words that no other model has.
    """

    @property
    def model(self) -> str: ...

    def answers(self, windows: Iterable[Sequence[str]]) -> Iterator[list[Answer]]:
        """Yields the answers to the sources of each window, in order. Reads windows ahead to keep busy.

        Raises:
            BulkError: The work can't continue.
            StoppedError: The work should stop.
            DragomanError: No server answers, or the servers refuse all sources.
        """
        ...

    def measure(self) -> tuple[int, int]:
        """Returns how many sources are answered so far, and their target tokens. Called in another thread."""
        ...

    def close(self) -> None:
        """Ends engines or connections."""
        ...


def cut_at_limit(tokens: int) -> str:
    """Returns what is wrong with an answer that the model's limit has ended."""
    return f"was cut at the model's limit of {tokens} tokens"


def dead_end(tokens: int) -> str:
    """Returns what is wrong with an answer that constraints have ended."""
    return f"ends early: the constraints allowed no further token after {tokens} tokens"


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Returns the indices of the lengths, longest first."""
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def in_order(items: Sequence[Item], order: Sequence[int]) -> list[Item]:
    """Returns the items in their original order; `order` has the original index of each."""
    placed = dict(zip(order, items, strict=True))
    return [placed[index] for index in range(len(items))]
