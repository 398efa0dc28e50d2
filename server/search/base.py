"""What a search is to the engine."""

from collections.abc import Sequence
from typing import Protocol

from server.engine.requests import FinishReason, HypothesisResult, Progress


class Search(Protocol):
    """Decides, step by step, how the hypotheses of one request go on.

    The engine gives a request `rows` cache rows, feeds `advance` with the best `candidates` continuations of each after
    every step, and decodes on with the tokens it gets back, until there are none.
    """

    rows: int
    candidates: int

    def advance(
        self, ids: Sequence[Sequence[int]], log_probabilities: Sequence[Sequence[float]]
    ) -> Sequence[int] | None:
        """Takes one step's result.

        Args:
            ids: for each row, at least `candidates` token ids, best first.
            log_probabilities: theirs.

        Returns:
            the next token of each row, or None where the search is over.
        """

    def stop(self, reason: FinishReason) -> None:
        """Ends the search from outside, with what it has."""

    def progress(self) -> Progress | None:
        """What was decided since the last call; None where nothing was."""

    def hypotheses(self) -> list[HypothesisResult]:
        """The answer, best first, once the search is over."""
