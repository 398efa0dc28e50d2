"""A plain beam search that runs: what it has behind it, and how it goes on. beam.py explains the rules."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from dragoman_server.core.requests import FinishReason, HypothesisResult
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.decoding.beam import BeamSearch


class BeamStep(NamedTuple):
    """A step of a search.

    Attributes:
        tokens, log_probabilities: The candidates, best first.
        parents: Ranks of the hypotheses that they continue.
        chosen: Which candidates run on, by rank.
    """

    tokens: list[int]
    log_probabilities: list[float]
    parents: list[int]
    chosen: Sequence[int]


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
    """A plain search, see BeamPlan, that has its whole prefix.

    Ranks number its running hypotheses by falling probability. A rank that is not in use has a row all the same, whose
    results do not count.

    Attributes:
        rows: Cache rows, by rank; the same one for all ranks until the first step.
        totals: Sums of log-probabilities, by rank; -inf for a rank that is not in use.
        steps: The steps so far.
        finished: Best finished hypotheses, best first.
        finished_count: Number of hypotheses that have finished, those not kept included.
        contested: Whether its answer could be complete.
    """

    search: BeamSearch
    rows: list[int]
    totals: list[float]
    steps: list[BeamStep] = field(default_factory=list)
    finished: list[Ending] = field(default_factory=list)
    finished_count: int = 0
    contested: bool = False

    @staticmethod
    def of(search: BeamSearch, row: int) -> "RunningBeam":
        """Returns a search that has one row and made no step."""
        width = search.plan.beam.beam_size
        return RunningBeam(search, [row] * width, [0.0] + [-math.inf] * (width - 1))

    def advance(self, result: StepResult) -> bool:
        """Ranks the continuations of all hypotheses: finishes some of the best, and lets others run on.

        Returns:
            whether the search is over; then it has its answer.
        """
        plan, number, width = self.search.plan, len(self.steps), len(self.rows)
        totals, tokens, log_probabilities, parents = self._candidates(result)
        last = number == plan.max_new_tokens - 1
        chosen: Sequence[int]
        if len(totals) == 2 * width and plan.end not in tokens and (not last or plan.forces_end):
            chosen = range(width)
        else:
            chosen = self._sort_out(totals, tokens, last and not plan.forces_end)
        self.steps.append(BeamStep(tokens, log_probabilities, parents, chosen))
        over = not chosen or (self.contested and self._is_over(totals[chosen[0]]))
        if last and not over:  # the model gives what still runs the end token
            for candidate in chosen:
                self._finish(totals[candidate], number, candidate, FinishReason.LENGTH, 1)
            over = True
        if over:
            self.search.set_answer(self.answer(number, None if self.finished else FinishReason.DEAD_END))
        else:
            self.totals = [totals[candidate] for candidate in chosen] + [-math.inf] * (width - len(chosen))
        return over

    def next_tokens(self) -> list[int]:
        """Returns the last token of each rank; any for a rank that is not in use."""
        tokens, chosen = self.steps[-1].tokens, self.steps[-1].chosen
        return [tokens[candidate] for candidate in chosen] + [tokens[0]] * (len(self.rows) - len(chosen))

    def new_request(self) -> StepRequest | None:
        """Returns the step request of its rows from now on if it is another one than before the last step."""
        rules, generated = self.search.rules, len(self.steps)
        if generated == 1 or generated == rules.min_length - len(rules.prefix):
            return self.search.request_at(generated)
        return None

    def assign_rows(self) -> Sequence[tuple[int, int, int]]:
        """Gives each hypothesis a row: its parent's to the first of a parent, and free ones to the others.

        Returns:
            copies to make: from row, to row, leading target positions that they have in common.
        """
        rows, step = self.rows, self.steps[-1]
        parents = [step.parents[candidate] for candidate in step.chosen]
        free = dict.fromkeys(range(len(rows)))
        assigned, moved = [-1] * len(rows), []
        for rank, parent in enumerate(parents):
            if parent in free:
                del free[parent]
                assigned[rank] = rows[parent]
            else:
                moved.append(rank)
        self.rows = assigned
        if not free:
            return ()
        moved += range(len(parents), len(rows))
        before = len(self.steps[-2].chosen)
        copies: list[tuple[int, int, int]] = []
        for rank, target in zip(moved, free, strict=True):
            assigned[rank] = rows[target]
            if rank < len(parents):
                shared = self._shared_positions(parents[rank], target) if target < before else 0
                copies.append((rows[parents[rank]], rows[target], shared))
        return copies

    def answer(self, length: int, reason: FinishReason | None) -> list[HypothesisResult]:
        """Returns what has finished and, if that is too little, the best of what runs.

        Args:
            length: Number of tokens of the hypotheses that run.
            reason: Why these end; None if they do not count.
        """
        plan, size = self.search.plan, self.search.plan.sizes.answer
        answer = self.finished[:size]
        if reason is not None and len(answer) < size:
            totals = [total for total in self.totals if total > -math.inf]
            scores = [plan.score.score(total, length + plan.counted, None) for total in totals]
            for rank in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: size - len(answer)]:
                candidate = self.steps[length - 1].chosen[rank] if length else -1
                answer.append(Ending(scores[rank], length - 1, candidate, reason))
        return [self._hypothesis(ending) for ending in answer]

    def _candidates(self, result: StepResult) -> tuple[list[float], list[int], list[float], list[int]]:
        """Returns the best continuations, at most 2 * width, best first.

        Of equal sums the better hypothesis comes first, then the better token.

        Returns:
            sums of log-probabilities, last tokens and their log-probabilities, ranks of the continued hypotheses.
        """
        most = 2 * len(self.rows)
        totals: list[float] = []
        tokens: list[int] = []
        log_probabilities: list[float] = []
        parents: list[int] = []
        for rank, (row, total) in enumerate(zip(self.rows, self.totals, strict=True)):
            ids, values = result.top(row)
            if len(ids) > most:
                ids, values = ids[:most], values[:most]
            totals += [total + value for value in values]
            tokens += ids
            log_probabilities += values
            parents += [rank] * len(ids)
        best = sorted(range(len(totals)), key=totals.__getitem__, reverse=True)[:most]  # stable
        while best and totals[best[-1]] == -math.inf:
            best.pop()
        return (
            [totals[place] for place in best],
            [tokens[place] for place in best],
            [log_probabilities[place] for place in best],
            [parents[place] for place in best],
        )

    def _sort_out(self, totals: list[float], tokens: list[int], all_end: bool) -> list[int]:
        """Finishes candidates of a step that is not among `steps` yet.

        Returns:
            those that run on.
        """
        width, end, number = len(self.rows), self.search.plan.end, len(self.steps)
        going: list[int] = []
        for candidate, total in enumerate(totals):
            if all_end or tokens[candidate] == end:
                if candidate < width:
                    reason = FinishReason.EOS if tokens[candidate] == end else FinishReason.LENGTH
                    self._finish(total, number, candidate, reason)
            elif len(going) < width:
                going.append(candidate)
        return going

    def _finish(self, total: float, step: int, candidate: int, reason: FinishReason, extra: int = 0) -> None:
        """Adds a hypothesis that finishes with a candidate of a step.

        Args:
            total: Sum of its log-probabilities.
            extra: Tokens that count in its length after that of the step.
        """
        plan = self.search.plan
        score = total / plan.divisors[0][step + extra] + 0.0
        self.finished_count += 1
        if self.contested:
            if score <= self.finished[-1].score:  # of equal scores the earlier hypothesis comes first
                return
            self.finished.pop()
        self.finished.append(Ending(score, step, candidate, reason))
        self.finished.sort(key=itemgetter(0), reverse=True)  # stable
        self.contested = len(self.finished) == plan.kept

    def _is_over(self, best: float) -> bool:
        """Returns whether it ends after a step although hypotheses could run on.

        Args:
            best: Sum of log-probabilities of the best one of them.
        """
        plan = self.search.plan
        if self.finished_count >= plan.sizes.finished_quota:
            return True
        return best / plan.divisors[1][len(self.steps) - 1] <= self.finished[-1].score

    def _hypothesis(self, ending: Ending) -> HypothesisResult:
        ids: list[int] = []
        log_probabilities: list[float] = []
        candidate = ending.candidate
        if candidate >= 0:
            for number in range(ending.step, -1, -1):
                step = self.steps[number]
                ids.append(step.tokens[candidate])
                log_probabilities.append(step.log_probabilities[candidate])
                if number:
                    candidate = self.steps[number - 1].chosen[step.parents[candidate]]
        ids.reverse()
        log_probabilities.reverse()
        if ending.reason is FinishReason.EOS:
            ids.pop()
        prefix = self.search.rules.prefix
        return HypothesisResult([*prefix, *ids], log_probabilities, ending.reason, ending.score, len(prefix))

    def _shared_positions(self, one: int, other: int) -> int:
        """Returns the number of leading cache positions that two hypotheses of the step before have in common.

        That is one for the begin token and one for each token before the first difference.
        """
        number, before = len(self.steps) - 2, len(self.search.rules.prefix) + 1
        shared = number + 1 + before
        while one != other:
            step = self.steps[number]
            one, other = step.chosen[one], step.chosen[other]
            if step.tokens[one] != step.tokens[other]:
                shared = number + before
            if not number:
                break
            one, other = step.parents[one], step.parents[other]
            number -= 1
        return shared
