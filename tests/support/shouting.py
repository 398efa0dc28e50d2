"""A backend of bulk work without a model."""

from collections.abc import Iterable, Iterator, Sequence

from dragoman.bulk.backend import Answer


class Shouting:
    """Answers every source in capitals, and refuses those with a digit."""

    model = "shouting version 1"

    def __init__(self) -> None:
        self.windows: list[list[str]] = []
        self.closed = False

    def answers(self, windows: Iterable[Sequence[str]]) -> Iterator[list[Answer]]:
        for window in windows:
            self.windows.append(list(window))
            yield [self._answer(source) for source in window]

    def measure(self) -> tuple[int, int]:
        return sum(map(len, self.windows)), 0

    def close(self) -> None:
        self.closed = True

    def _answer(self, source: str) -> Answer:
        if any(map(str.isdigit, source)):
            return Answer(None, "has a digit")
        return Answer(source.upper(), "was cut" if source.endswith("-") else "")
