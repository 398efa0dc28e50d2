"""Greedy search: the most probable token, every time."""

from collections.abc import Sequence

from server.engine.requests import FinishReason, HypothesisResult, Progress


class GreedySearch:
    """One row, one candidate.

    Args:
        end: id of the end token, which ends the hypothesis and is not part of it.
        max_new_tokens: ends the hypothesis when it has that many tokens, without a look at what would come next.
    """

    rows = 1
    candidates = 1

    def __init__(self, end: int, max_new_tokens: int) -> None:
        self._end = end
        self._max_new_tokens = max_new_tokens
        self._ids: list[int] = []
        self._log_probabilities: list[float] = []
        self._reason: FinishReason | None = None
        self._reported = 0

    def advance(
        self, ids: Sequence[Sequence[int]], log_probabilities: Sequence[Sequence[float]]
    ) -> Sequence[int] | None:
        token = ids[0][0]
        self._log_probabilities.append(log_probabilities[0][0])
        if token == self._end:
            self._reason = FinishReason.EOS
            return None
        self._ids.append(token)
        if len(self._ids) == self._max_new_tokens:
            self._reason = FinishReason.LENGTH
            return None
        return (token,)

    def stop(self, reason: FinishReason) -> None:
        self._reason = reason

    def progress(self) -> Progress | None:
        start, self._reported = self._reported, len(self._ids)
        if start == self._reported:
            return None
        return Progress(self._ids[start:], self._log_probabilities[start : self._reported])

    def hypotheses(self) -> list[HypothesisResult]:
        assert self._reason is not None, "the search goes on"
        return [HypothesisResult(self._ids, self._log_probabilities, self._reason)]
