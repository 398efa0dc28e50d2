"""Beam search: the most probable hypotheses side by side, one token longer with every step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult
from dragoman_server.core.search import Continuation, StepRequest, StepResult
from dragoman_server.core.search_options import Stopping
from dragoman_server.decoding.beam_plan import BeamPlan
from dragoman_server.decoding.finish import finish_reason
from dragoman_server.decoding.hypothesis import FinishedHypothesis, Hypothesis, assign_rows
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.token_rules import TokenRules, TopTokens, neutral

Candidate = tuple[float, int, float, Hypothesis]  # ranking value, token, log-probability, hypothesis that it continues


@dataclass(slots=True)
class BeamGroup:
    """One group of a diverse beam search (Vijayakumar et al. 2016), or the whole beam where there is one group.

    Attributes:
        running: Running hypotheses, best first.
        max_finished: Number of finished hypotheses to keep: as many as may enter the answer, whatever the groups
            before this one contribute.
        finished: Best finished hypotheses, best first.
        finished_count: Number of hypotheses that have finished, those not kept included.
    """

    running: list[Hypothesis]
    max_finished: int
    finished: list[FinishedHypothesis] = field(default_factory=list)
    finished_count: int = 0

    def add_finished(self, finished: FinishedHypothesis) -> None:
        self.finished_count += 1
        self.finished.append(finished)
        self.finished.sort(key=itemgetter(0), reverse=True)  # stable: of equal scores the earlier hypothesis first
        del self.finished[self.max_finished :]


class BeamSearch:
    """Keeps the `beam_size` most probable hypotheses of each length.

    Each step ranks the one-token continuations of all running hypotheses by the sums of their log-probabilities. Of the
    best 2 * beam_size, those with the end token (or with the end of a stop sequence) finish if they are among the first
    beam_size, and are dropped if not; the best beam_size of the others run on, as in Hugging Face and CTranslate2. Of
    those that reach max_new_tokens, the first beam_size finish and the rest are dropped.

    Finished hypotheses compete by score (hypothesis_score.py; Wu et al. 2016). The search is over when none runs on, or
    when no running one can score higher than the hypotheses currently in the answer. With Stopping.EARLY it is also
    over when round(patience * beam_size) have finished, halves rounded up (Kasai et al. 2022), but not before there are
    num_hypotheses. With CURRENT_LENGTH and MAX_LENGTH it is over when beam_size have finished and the best running one,
    scored at that length, is not better than the worst of the beam_size best finished ones.

    Diverse groups (Vijayakumar et al. 2016) are beams of width beam_size / groups, each of which ends on its own. In
    each step they choose one after the other: a token's log-probability is lowered, for the ranking only, by the
    diversity penalty for every hypothesis of an earlier group that runs on with it. The answer takes the best of all
    groups, at most a group's width from each. A hypothesis of an earlier group is not taken from a later one again.

    The answer after `stop` has the finished hypotheses first, then the best running ones if there are too few. Where no
    continuation is possible and none has finished, it has the hypotheses that were still running.

    Args:
        plan: What follows from the options.
        rules: The request's constraints.
        stops: Stop sequence tracker of an empty text; None without stop sequences.

    Attributes:
        rows: See Search.
    """

    def __init__(self, plan: BeamPlan, rules: TokenRules, stops: StopTracker | None) -> None:
        self.plan, self.rules = plan, rules
        root = Hypothesis.root()
        root.ids = None if rules.trivial else []
        root.stops = stops
        self._running = [root]  # by row
        self._groups = [BeamGroup([root], max_finished=plan.kept * (n + 1)) for n in range(plan.beam.groups)]
        self._prefix = 0  # forced tokens of a running hypothesis so far
        self._generated = 0  # its tokens after them
        self._forced = rules.forced(0)
        self._reported = BeamProgress(0, 1, 0)
        self._answer: list[HypothesisResult] | None = None
        self.rows = plan.beam.beam_size

    def step_requests(self) -> Sequence[StepRequest]:
        if self._forced is not None:
            return self.plan.prefix_requests
        request = self.plan.request if self._generated else self.plan.first_request
        if self.rules.trivial:
            return [request] * len(self._running)
        requests: list[StepRequest] = []
        for hypothesis in self._running:
            assert hypothesis.ids is not None
            edits = hypothesis.edits = self.rules.edits(hypothesis.ids)
            if edits is None:
                requests.append(request)
            elif self.plan.edits_late:
                candidates = min(request.candidates + len(edits.ids), self.plan.choosable)
                requests.append(replace(request, candidates=candidates, edits=neutral(edits)))
            else:
                requests.append(replace(request, edits=edits))
        return requests

    def needs_more(self, result: StepResult, rows: Sequence[int]) -> bool:
        return False

    def advance(self, result: StepResult, rows: Sequence[int]) -> Sequence[Continuation] | None:
        if self._forced is not None:
            return self._follow_prefix(self._forced)
        top = [result.top(row) for row in rows]
        if self.plan.inspects:
            top = [self._inspect(*step, result) for step in zip(self._running, top, rows, strict=True)]

        children: list[Hypothesis] = []
        for group in self._groups:
            if group.running:
                self._extend(group, self._candidates(group, top, children))
                children += group.running
        if len(self._groups) > 1 and self._cannot_improve(children, self._finished(), self.plan.sizes.answer):
            children = []
        if not children:
            self._end_with(self._finished() or self._unfinished(FinishReason.DEAD_END))
            return None
        self._running, continuations = assign_rows(children, self._running, self._prefix + self._generated)
        self._generated += 1
        return continuations

    def stop(self, reason: FinishReason) -> None:
        """Answers with what has finished and, if that is too little, the best of what runs."""
        if self._answer is not None:
            return
        while self._forced is not None:  # a forced prefix is part of every answer
            self._follow_prefix(self._forced)
        self._end_with(self._finished() + self._unfinished(reason))

    def progress(self) -> Sequence[BeamProgress]:
        """Returns one event after each step that follows the prefix."""
        before = self._reported
        finished = sum(group.finished_count for group in self._groups)
        self._reported = BeamProgress(self._generated, len(self._running), finished)
        return () if self._reported == before else (self._reported,)

    def hypotheses(self) -> list[HypothesisResult]:
        assert self._answer is not None, "the search is not over"
        return self._answer

    @property
    def is_plain(self) -> bool:
        """Whether BeamRows can advance it from now on: it has its whole prefix, and nothing more."""
        return self.plan.plain and self._forced is None and self._generated == 0

    def request_at(self, generated: int) -> StepRequest:
        """Returns the step request of hypotheses with that many tokens after the prefix, for BeamRows."""
        edits = None if self.rules.trivial else self.rules.edits(range(len(self.rules.prefix) + generated))
        return self.plan.request if edits is None else replace(self.plan.request, edits=edits)

    def set_answer(self, answer: list[HypothesisResult]) -> None:
        """Ends the search with an answer that BeamRows found."""
        self._answer = answer

    def _follow_prefix(self, token: int) -> Sequence[Continuation]:
        """Appends the next token of the forced prefix to the only hypothesis."""
        (parent,) = self._running
        child = self._child(parent, token, 0.0)
        if child.stops is not None:
            child.stops.push(token)
        self._running = [child]
        for group in self._groups:
            group.running = [child]
        self._prefix += 1
        self._forced = self.rules.forced(self._prefix)
        return (Continuation(0, token),)

    def _inspect(self, hypothesis: Hypothesis, top: TopTokens, row: int, result: StepResult) -> TopTokens:
        """Stores coverage and alternatives of a hypothesis's step, and returns its candidates.

        A soft prefix changes the candidates by its bias; an alternative has only the candidate of its rank.
        """
        if self.plan.uses_coverage:
            attention = result.attention(row).astype(np.float64)
            covered = None if hypothesis.parent is None else hypothesis.parent.coverage
            hypothesis.coverage = attention if covered is None else covered + attention
        ids = hypothesis.ids
        if self.plan.edits_late and hypothesis.edits is not None:
            top = self.rules.after_softmax(
                top, hypothesis.edits, result.edited(row), renormalized=self.plan.renormalizes
            )
        if ids is not None and self.rules.preferred(ids) is not None:
            top = self.rules.biased(ids, top, hypothesis.edits, result.edited(row))
        tokens, log_probabilities = top
        if self.plan.top_tokens:
            hypothesis.top = tokens[: self.plan.top_tokens], log_probabilities[: self.plan.top_tokens]
        if self.plan.rank is not None and self._generated == 0:
            ranked = slice(self.plan.rank, self.plan.rank + 1)
            return tokens[ranked], log_probabilities[ranked]
        return top

    def _candidates(self, group: BeamGroup, top: Sequence[TopTokens], earlier: Sequence[Hypothesis]) -> list[Candidate]:
        """Returns a group's 2 * width best continuations, best first.

        Args:
            top: Candidates of each row.
            earlier: Hypotheses that earlier groups run on with in this step; their tokens are penalized
                (Vijayakumar et al. 2016, Hamming diversity).
        """
        candidates: list[Candidate] = []
        for hypothesis in group.running:
            total = hypothesis.total
            ids, log_probabilities = top[hypothesis.row]
            candidates += [
                (total + log_probability, token, log_probability, hypothesis)
                for token, log_probability in zip(ids[: self.plan.sizes.choices], log_probabilities, strict=False)
            ]
        if earlier and self.plan.beam.diversity_penalty:
            times = Counter(hypothesis.token for hypothesis in earlier)
            candidates = [
                (value - self.plan.beam.diversity_penalty * times[token], token, log_probability, hypothesis)
                for value, token, log_probability, hypothesis in candidates
            ]
        candidates.sort(key=itemgetter(0), reverse=True)  # stable: the better hypothesis first, then the better token
        return candidates[: 2 * self.plan.sizes.group]

    def _extend(self, group: BeamGroup, candidates: Sequence[Candidate]) -> None:
        """Finishes a group's best continuations or lets them run on.

        Args:
            candidates: At most 2 * width, best first. Only the first `width` may finish.
        """
        group.running = []
        at_end = self._generated == self.plan.max_new_tokens - 1
        last_position = -1 if self.plan.forces_end else self.plan.max_new_tokens - 1
        for rank, (_, token, log_probability, parent) in enumerate(candidates):
            reason = finish_reason(token, log_probability, self._generated, self.plan.end, last_position)
            if reason is FinishReason.DEAD_END:
                break  # so are the others
            may_finish = rank < self.plan.sizes.group
            if reason is not None and not may_finish:
                continue
            child = self._child(parent, token, log_probability)
            characters = None
            if child.stops is not None and reason is not FinishReason.EOS:
                characters = child.stops.push(token)
                if characters is not None:
                    reason = FinishReason.STOP_SEQUENCE
            if reason is None:
                group.running.append(child)
                if len(group.running) == self.plan.sizes.group:
                    break
            elif may_finish:
                group.add_finished(self._finish(child, self._generated + 1, reason, characters))
        if self._is_over(group):
            group.running = []
        if at_end and self.plan.forces_end:
            for hypothesis in group.running:
                group.add_finished(self._finish(hypothesis, self._generated + 2, FinishReason.LENGTH))
            group.running = []
        if not group.running:
            self.rows -= self.plan.sizes.group

    def _is_over(self, group: BeamGroup) -> bool:
        """Returns whether a group ends after this step although some of its hypotheses could run on."""
        contribution = self._contribution(group)
        size = self.plan.sizes.group_answer
        if group.finished_count >= self.plan.sizes.finished_quota and len(contribution) == size:
            return True  # early stopping
        if self.plan.heuristic:
            return self._seems_over(group)
        return self._cannot_improve(group.running, contribution, size)

    def _seems_over(self, group: BeamGroup) -> bool:
        """Returns whether the best running hypothesis, scored at an assumed length, is too bad for a full pool.

        The length is the current one or, with Stopping.MAX_LENGTH and a positive length penalty, the longest possible:
        `early_stopping=False` and "never" of transformers.
        """
        if group.finished_count < self.plan.sizes.group or not group.running:
            return False
        best = max(hypothesis.total for hypothesis in group.running)
        length = self._generated + 1 + self.plan.counted
        longest = self.plan.beam.stopping is Stopping.MAX_LENGTH and self.plan.beam.length_penalty > 0
        assumed = self.plan.score.at_max_length(best) if longest else self.plan.score.score(best, length, None)
        return assumed <= group.finished[self.plan.sizes.group - 1].score

    def _child(self, parent: Hypothesis, token: int, log_probability: float) -> Hypothesis:
        child = Hypothesis(parent, token, log_probability, parent.total + log_probability)
        if parent.ids is not None:
            child.ids = [*parent.ids, token]
        if parent.stops is not None:
            child.stops = parent.stops.copy()
        return child

    def _finish(
        self, hypothesis: Hypothesis, length: int, reason: FinishReason, characters: int | None = None
    ) -> FinishedHypothesis:
        """Scores a hypothesis that ends.

        The text that becomes certain only at the end may complete a stop sequence. An end token is then no longer
        part of the hypothesis; the score still includes it.
        """
        parent = hypothesis.parent
        score = self.plan.score.score(
            hypothesis.total, length + self.plan.counted, None if parent is None else parent.coverage
        )
        if characters is None and hypothesis.stops is not None:
            characters = hypothesis.stops.finish()
            if characters is not None:
                if reason is FinishReason.EOS and parent is not None:
                    hypothesis = parent
                reason = FinishReason.STOP_SEQUENCE
        return FinishedHypothesis(score, hypothesis, reason, characters)

    def _cannot_improve(
        self, running: Sequence[Hypothesis], finished: Sequence[FinishedHypothesis], count: int
    ) -> bool:
        """Returns whether no running hypothesis of this step can get among the `count` best finished ones."""
        if len(finished) < count:
            return False
        worst, length = finished[count - 1].score, self._generated + 1 + self.plan.counted
        for hypothesis in running:
            assert hypothesis.parent is not None
            if self.plan.score.upper_bound(hypothesis.total, length, hypothesis.parent.coverage) > worst:
                return False
        return True

    def _contribution(self, group: BeamGroup) -> list[FinishedHypothesis]:
        """Returns what a group contributes to the answer: its best, without the contributions of earlier groups."""
        if group is self._groups[0]:
            return group.finished
        taken: set[tuple[int, ...]] = set()
        contribution: list[FinishedHypothesis] = []
        for other in self._groups:
            distinct = [finished for finished in other.finished if tuple(finished.ids()) not in taken]
            contribution = distinct[: self.plan.sizes.group_answer]
            if other is group:
                break
            taken.update(tuple(finished.ids()) for finished in contribution)
        return contribution

    def _finished(self) -> list[FinishedHypothesis]:
        """Returns the contributions of all groups, best first."""
        contributions = (finished for group in self._groups for finished in self._contribution(group))
        return sorted(contributions, key=itemgetter(0), reverse=True)

    def _unfinished(self, reason: FinishReason) -> list[FinishedHypothesis]:
        """Returns the hypotheses that still run, best first, as if they ended here."""
        cut = [self._finish(hypothesis, self._generated, reason) for hypothesis in self._running]
        cut.sort(key=itemgetter(0), reverse=True)
        return list({tuple(finished.ids()): finished for finished in cut}.values())  # groups may run the same ones

    def _end_with(self, answer: list[FinishedHypothesis]) -> None:
        best = answer[: self.plan.sizes.answer]
        self._answer = [finished.result(self._prefix, self.plan.top_tokens) for finished in best]
        self._running = []
