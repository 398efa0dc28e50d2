"""The most probable token every time, and nothing else: what most requests want."""

import math
from collections.abc import Sequence

from dragoman_server.core.requests import FinishReason, HypothesisResult, Progress
from dragoman_server.core.search import Continuation, RowScores, StepRequest

BEST = (StepRequest(1),)  # the most probable token


class GreedySearch:
    """Greedy search without constraints, alternatives or stop sequences.

    It can be led step by step, as any search can. But since there is nothing to decide, whoever runs many of them may
    choose the tokens itself, and tell each of its own with `decided` when somebody wants to know them.

    Args:
        end: id of the end token.
        limit: tokens at most, the end token not counted.
    """

    __slots__ = ("_ids", "_log_probabilities", "_reason", "_reported", "end", "limit")

    rows = 1

    def __init__(self, end: int, limit: int) -> None:
        self.end, self.limit = end, limit
        self._ids: list[int] = []
        self._log_probabilities: list[float] = []
        self._reason: FinishReason | None = None
        self._reported = 0  # ids

    def step_requests(self) -> Sequence[StepRequest]:
        return BEST

    def needs_more(self, scores: RowScores, rows: Sequence[int]) -> bool:
        return False

    def advance(self, scores: RowScores, rows: Sequence[int]) -> Sequence[Continuation] | None:
        token, log_probability = scores.best(rows[0])
        if log_probability == -math.inf:
            self._reason = FinishReason.DEAD_END
            return None
        self._log_probabilities.append(log_probability)
        if token == self.end:
            self._reason = FinishReason.EOS
            return None
        self._ids.append(token)
        if len(self._ids) == self.limit:
            self._reason = FinishReason.LENGTH
            return None
        return (Continuation(0, token),)

    def decided(self, ids: list[int], log_probabilities: list[float], reason: FinishReason | None) -> None:
        """All tokens so far, in place of so many calls of `advance`.

        Args:
            ids, log_probabilities: as in HypothesisResult.
            reason: None where it is not over.
        """
        self._ids, self._log_probabilities, self._reason = ids, log_probabilities, reason

    def stop(self, reason: FinishReason) -> None:
        if self._reason is None:
            self._reason = reason

    def progress(self) -> Sequence[Progress]:
        first, self._reported = self._reported, len(self._ids)
        if first == self._reported:
            return ()
        return (Progress(self._ids[first:], self._log_probabilities[first : self._reported]),)

    def hypotheses(self) -> list[HypothesisResult]:
        assert self._reason is not None, "the search goes on"
        score = sum(self._log_probabilities, 0.0)
        return [HypothesisResult(self._ids, self._log_probabilities, self._reason, score)]
