"""The hypotheses of a batch of beam searches: what they consist of, and which have finished."""

import math
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, GenerationResult, HypothesisResult
from dragoman_server.core.search_options import SearchOptions, Stopping
from dragoman_server.decoding.hypothesis_score import HypothesisScore

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class Continuations(NamedTuple):
    """Continuations of the running hypotheses, by search and rank, the best first: [searches, ranks].

    Attributes:
        totals: Sums of log-probabilities, -inf where there is none.
        tokens: Their last tokens.
        log_probabilities: Those of the last tokens.
        parents: Ranks of the hypotheses that they continue.
    """

    totals: Floats
    tokens: Integers
    log_probabilities: Floats
    parents: Integers

    def take(self, indices: Integers) -> "Continuations":
        """Returns the continuations at indices [searches, n]."""
        searches, ranks = self.totals.shape
        flat = indices + np.arange(0, searches * ranks, ranks)[:, None]  # several times as fast as take_along_axis
        return Continuations(
            self.totals.take(flat), self.tokens.take(flat), self.log_probabilities.take(flat), self.parents.take(flat)
        )

    def of(self, searches: Booleans) -> "Continuations":
        """Returns the continuations of some searches."""
        return Continuations(
            self.totals[searches], self.tokens[searches], self.log_probabilities[searches], self.parents[searches]
        )


class Finished(NamedTuple):
    """A finished hypothesis.

    Attributes:
        score: Normalized score.
        position: Position of its last token.
        parent: Rank of the hypothesis that it continues.
        token, log_probability: Its last token.
        reason: Why it ended.
    """

    score: float
    position: int
    parent: int
    token: int
    log_probability: float
    reason: FinishReason


class BatchHypotheses:
    """The hypotheses of all searches of a batch.

    Args:
        count: Number of sources.
        options: A plain beam search.
        end: Id of the end token.
    """

    def __init__(self, count: int, options: SearchOptions, end: int) -> None:
        assert options.beam is not None
        self._beam, self._width, self._end = options.beam, options.beam.beam_size, end
        self._score = HypothesisScore(options.beam, options.max_new_tokens)
        self._heuristic = options.beam.stopping in (Stopping.CURRENT_LENGTH, Stopping.MAX_LENGTH)
        self._answer = min(options.num_hypotheses, self._width)
        self._kept = self._width if self._heuristic else self._answer
        early = options.beam.stopping is Stopping.EARLY
        self._quota = options.beam.finished_quota(self._width) if early else math.inf
        self._finished: list[list[Finished]] = [[] for _ in range(count)]
        self._counts = [0] * count  # of finished hypotheses, those not kept included
        # By position, source and rank: the rank that a hypothesis continues, its token and its log-probability.
        shape = options.max_new_tokens, count, self._width
        self._parents, self._tokens = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._log_probabilities = np.zeros(shape)

    def run_on(self, sources: Integers, position: int, children: Continuations) -> None:
        """Notes the hypotheses that run on, by the source of each search."""
        self._parents[position, sources], self._tokens[position, sources] = children.parents, children.tokens
        self._log_probabilities[position, sources] = children.log_probabilities

    def finish(self, sources: Integers, position: int, finishing: Booleans, found: Continuations) -> None:
        """Notes the hypotheses that finish.

        Args:
            sources: Source of each search.
            finishing: Which continuations finish, [searches, ranks].
        """
        searches, ranks = finishing.nonzero()
        ended = [values[searches, ranks].tolist() for values in found]
        for source, value, token, log_probability, parent in zip(sources[searches].tolist(), *ended, strict=True):
            reason = FinishReason.EOS if token == self._end else FinishReason.LENGTH
            score = self._score.score(value, position + 1, None)
            finished = self._finished[source]
            finished.append(Finished(score, position, parent, token, log_probability, reason))
            finished.sort(key=itemgetter(0), reverse=True)  # stable: of equal scores the earlier hypothesis first
            del finished[self._kept :]
            self._counts[source] += 1

    def is_over(self, source: int, best: float, position: int) -> bool:
        """Returns whether a search ends although hypotheses could run on, the most probable of them with this sum."""
        finished, count = self._finished[source], self._counts[source]
        if count >= self._quota and len(finished) >= self._answer:
            return True
        if self._heuristic:
            if count < self._width:
                return False
            longest = self._beam.stopping is Stopping.MAX_LENGTH and self._beam.length_penalty > 0
            assumed = self._score.at_max_length(best) if longest else self._score.score(best, position + 1, None)
            return assumed <= finished[self._width - 1].score
        if len(finished) < self._answer:
            return False
        return not self._score.upper_bound(best, position + 1, None) > finished[self._answer - 1].score

    def give_up(self, source: int, position: int, totals: list[float]) -> None:
        """Ends a search without any continuation or finished hypothesis with those that were running.

        Args:
            totals: Their sums of log-probabilities by rank; -inf for none.
        """
        if self._finished[source]:
            return
        for rank, total in enumerate(totals):
            if total > -math.inf:
                score, last = self._score.score(total, position, None), position - 1
                parent = token = 0
                log_probability = 0.0
                if position:
                    parent, token = int(self._parents[last, source, rank]), int(self._tokens[last, source, rank])
                    log_probability = float(self._log_probabilities[last, source, rank])
                dead_end = Finished(score, last, parent, token, log_probability, FinishReason.DEAD_END)
                self._finished[source].append(dead_end)
        self._finished[source].sort(key=itemgetter(0), reverse=True)

    def result(self, source: int) -> GenerationResult:
        """Returns the answer to a source."""
        answer = self._finished[source][: self._answer]
        most = max(finished.position for finished in answer)
        histories = (self._parents, self._tokens, self._log_probabilities)
        parents, tokens, log_probabilities = (history[: max(most, 0), source].tolist() for history in histories)
        hypotheses = []
        for finished in answer:
            ids, scores, rank = [], [], finished.parent
            if finished.position >= 0:
                ids, scores = [finished.token], [finished.log_probability]
            for position in range(finished.position - 1, -1, -1):
                ids.append(tokens[position][rank])
                scores.append(log_probabilities[position][rank])
                rank = parents[position][rank]
            ids.reverse()
            scores.reverse()
            if finished.reason is FinishReason.EOS:
                ids.pop()
            hypotheses.append(HypothesisResult(ids, scores, finished.reason, finished.score))
        return GenerationResult(hypotheses)
