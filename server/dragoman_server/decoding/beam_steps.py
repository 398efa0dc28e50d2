"""What beam searches in arrays have behind them: their steps, and the hypotheses that finished."""

from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, HypothesisResult
from dragoman_server.decoding.beam import BeamSearch

Integers = NDArray[np.int64]


class BeamStep(NamedTuple):
    """A step of many searches, each of which has a place in the arrays.

    Attributes:
        tokens, log_probabilities: The candidates of each search, best first, [searches, candidates].
        parents: Ranks of the hypotheses that they continue, [searches, candidates].
        chosen: Which candidates run on, by rank, [searches, width].
    """

    tokens: Integers
    log_probabilities: NDArray[np.float32]
    parents: Integers
    chosen: Integers


class Ending(NamedTuple):
    """A hypothesis of the answer.

    Attributes:
        score: Normalized score.
        step, candidate: Where its last token was chosen; -1 for the candidate if it has none.
        reason: Why it ended.
    """

    score: float
    step: int
    candidate: int
    reason: FinishReason


@dataclass(slots=True, eq=False)
class RunningBeam:
    """A search in arrays. Steps are numbered alike for all of them.

    Attributes:
        row: Its only row until its first step.
        start: Number of its first step.
        places: Its places in the arrays: from which step on, and the place.
        finished: Best finished hypotheses, best first.
        finished_count: Number of hypotheses that have finished, those not kept included.
        contested: Whether its answer could be complete.
        last: Number of the step at which its hypotheses reach their maximum length.
        changes: Number of the step after which it has another step request.
        over: Whether it has been removed.
    """

    search: BeamSearch
    row: int
    start: int = 0
    places: list[tuple[int, int]] = field(default_factory=list)
    finished: list[Ending] = field(default_factory=list)
    finished_count: int = 0
    contested: bool = False
    last: int = 0
    changes: int = 0
    over: bool = False

    @property
    def place(self) -> int:
        """Its place in the arrays."""
        return self.places[-1][1]

    def place_at(self, step: int) -> int:
        """Returns its place in the arrays of a step."""
        for first, place in reversed(self.places):
            if first <= step:
                return place
        raise AssertionError("the search had not started")

    def finish(self, total: float, step: int, candidate: int, reason: FinishReason, extra: int = 0) -> None:
        """Adds a hypothesis that finishes with a step.

        Args:
            total: Sum of its log-probabilities.
            extra: Tokens that count in its length after that of the step.
        """
        plan = self.search.plan
        score = total / plan.divisors[0][step - self.start + extra] + 0.0
        self.finished_count += 1
        if self.contested:
            if score <= self.finished[-1].score:  # of equal scores the earlier hypothesis comes first
                return
            self.finished.pop()
        self.finished.append(Ending(score, step, candidate, reason))
        self.finished.sort(key=itemgetter(0), reverse=True)  # stable
        self.contested = len(self.finished) == plan.kept

    def is_over(self, best: float, step: int) -> bool:
        """Returns whether it ends after a step although hypotheses could run on.

        Args:
            best: Sum of log-probabilities of the best one of them.
        """
        if not self.contested:
            return False
        plan = self.search.plan
        if self.finished_count >= plan.sizes.finished_quota:
            return True
        return best / plan.divisors[1][step - self.start] <= self.finished[-1].score


class BeamHistory:
    """The steps that running searches have made."""

    def __init__(self) -> None:
        self._steps: list[BeamStep] = []
        self._first = 0  # number of the first of them
        self.next = 0  # number of the next step

    def append(self, step: BeamStep) -> None:
        self._steps.append(step)
        self.next += 1

    def forget(self, before: int) -> None:
        """Forgets the steps before one; often enough to have no more than twice as many as are needed."""
        if 2 * (before - self._first) > len(self._steps):
            del self._steps[: before - self._first]
            self._first = before

    def hypothesis(self, beam: RunningBeam, ending: Ending) -> HypothesisResult:
        """Returns a hypothesis of a search."""
        ids: list[int] = []
        log_probabilities: list[float] = []
        candidate = ending.candidate
        if candidate >= 0:
            for number in range(ending.step, beam.start - 1, -1):
                step, place = self._steps[number - self._first], beam.place_at(number)
                ids.append(step.tokens.item(place, candidate))
                log_probabilities.append(step.log_probabilities.item(place, candidate))
                if number > beam.start:
                    candidate = self.candidate(beam, number - 1, step.parents.item(place, candidate))
        ids.reverse()
        log_probabilities.reverse()
        if ending.reason is FinishReason.EOS:
            ids.pop()
        prefix = beam.search.rules.prefix
        return HypothesisResult([*prefix, *ids], log_probabilities, ending.reason, ending.score, len(prefix))

    def candidate(self, beam: RunningBeam, number: int, rank: int) -> int:
        """Returns which candidate of a step became the hypothesis of a rank."""
        candidate: int = self._steps[number - self._first].chosen.item(beam.place_at(number), rank)
        return candidate

    def shared_positions(self, beam: RunningBeam, number: int, one: int, other: int) -> int:
        """Returns the number of leading cache positions that the hypotheses of two ranks of a step have in common.

        That is one for the begin token and one for each token before the first difference.
        """
        before = len(beam.search.rules.prefix) - beam.start + 1
        shared = number + before + 1
        while one != other:
            step, place = self._steps[number - self._first], beam.place_at(number)
            one, other = step.chosen.item(place, one), step.chosen.item(place, other)
            if step.tokens.item(place, one) != step.tokens.item(place, other):
                shared = number + before
            if number == beam.start:
                break
            one, other = step.parents.item(place, one), step.parents.item(place, other)
            number -= 1
        return shared
