"""Beam search: the most probable hypotheses side by side, one token longer with every step."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

import numpy as np

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult
from dragoman_server.core.search import Continuation, RowScores, StepRequest
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.hypothesis import Finished, Hypothesis
from dragoman_server.decoding.hypothesis_score import Scoring
from dragoman_server.decoding.placement import place
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.token_rules import TokenRules

Found = tuple[list[int], list[float]]  # tokens, best first, and their log-probabilities
Candidate = tuple[float, int, float, Hypothesis]  # what it is ranked by, token, log-probability, what it continues


@dataclass(slots=True)
class Group:
    """A beam of its own: the whole beam, or one of the groups of diverse beam search.

    Attributes:
        running: best first.
        most: how many of those that have finished may become part of the answer, whatever other groups give.
        finished: the best of them, best first.
        count: how many have finished.
    """

    running: list[Hypothesis]
    most: int
    finished: list[Finished] = field(default_factory=list)
    count: int = 0


class BeamSearch:
    """Keeps the `beam_size` hypotheses that are the most probable so far.

    Each step ranks the continuations by one token of all running hypotheses by the sums of their log-probabilities. Of
    the best 2 * beam_size, those with the end token (or with the end of a stop sequence) are finished if they are among
    the first beam_size, and dropped if not; the best beam_size of the others run on. So do Hugging Face and
    CTranslate2. Of those that have max_new_tokens, the first beam_size are finished and the rest is dropped.

    Those that have finished compete by score (scoring.py). The search is over when none runs on, or when no running
    one can become better than those that the answer would take now. With `early_stopping` it is over, too,
    when round(patience * beam_size) have finished, halves rounded up, but not before there are num_hypotheses.

    Diverse groups (Vijayakumar et al. 2016) are beams of width beam_size / groups, each of which is over by itself. In
    each step they choose one after the other: a token's log-probability is lowered, for the ranking only, by the
    diversity penalty for every hypothesis of an earlier group that runs on with it. The answer takes the best of all
    groups, at most its width from each, group by group: of what an earlier one gives a later one gives nothing again.

    The answer after `stop` has those that are finished first, then the best running ones if there are too few. Where
    nothing is left to go on with and none has finished, it has those that ran last.

    Args:
        options: of the request; `beam` is among them.
        end: id of the end token.
        vocabulary_size: of the target.
        rules: of the request's constraints.
        stops: of an empty text; None where there are no stop sequences.
        rank: with `options.alternatives`, which token to take at the first place behind the prefix; 0 is the best.

    Attributes:
        rows: see Search.
    """

    def __init__(
        self,
        options: SearchOptions,
        end: int,
        vocabulary_size: int,
        rules: TokenRules,
        stops: StopTracker | None,
        rank: int = 0,
    ) -> None:
        beam, constraints = options.beam, options.constraints
        assert beam is not None
        self._end = end
        self._max_new_tokens = options.max_new_tokens
        self._rules = rules
        self._rank = rank if options.alternatives else None
        self._top_tokens = options.top_tokens
        self._covers = beam.coverage_penalty != 0
        self._inspects = bool(rules.soft or self._covers or options.top_tokens or options.alternatives)

        self._wanted = 1 if options.alternatives else options.num_hypotheses
        self._width = beam.beam_size // beam.groups
        self._kept = min(self._wanted, self._width)
        self._quota = math.inf
        if beam.early_stopping:
            self._quota = max(beam.enough(self._width), self._kept)
        self._diversity = beam.diversity_penalty
        self._scoring = Scoring(beam, options.max_new_tokens)  # with the end token there are no more, nor without

        # Of one hypothesis's best tokens, those that earlier groups chose may fall behind all others.
        self._breadth = 2 * self._width + (beam.beam_size - self._width)
        choosable = vocabulary_size if constraints.vocabulary is None else len(constraints.vocabulary)
        candidates = min(max(self._breadth, options.top_tokens), choosable)
        self._demand = StepRequest(candidates, vocabulary=constraints.vocabulary, attention=self._covers)
        self._first_demand = replace(self._demand, candidates=max(candidates, min(rank + 1, choosable)))
        self._unscored = StepRequest(0, vocabulary=constraints.vocabulary)

        root = Hypothesis(None, -1, 0.0, 0.0)
        root.ids = None if rules.trivial else []
        root.stops = stops
        self._running = [root]  # by row
        self._groups = [Group([root], most=self._kept * (n + 1)) for n in range(beam.groups)]
        self._prefix = 0  # forced tokens of a running hypothesis so far
        self._generated = 0  # its tokens behind them
        self._forced = rules.forced(0)
        self._reported = BeamProgress(0, 1, 0)
        self._answer: list[Finished] | None = None
        self.rows = beam.beam_size

    def step_requests(self) -> Sequence[StepRequest]:
        if self._forced is not None:
            return [self._unscored]
        step_request = self._demand if self._generated else self._first_demand
        if self._rules.trivial:
            return [step_request] * len(self._running)
        step_requests: list[StepRequest] = []
        for hypothesis in self._running:
            assert hypothesis.ids is not None
            hypothesis.edits = self._rules.edits(hypothesis.ids)
            step_requests.append(
                step_request if hypothesis.edits is None else replace(step_request, edits=hypothesis.edits)
            )
        return step_requests

    def needs_more(self, scores: RowScores, rows: Sequence[int]) -> bool:
        return False

    def advance(self, scores: RowScores, rows: Sequence[int]) -> Sequence[Continuation] | None:
        if self._forced is not None:
            return self._follow_prefix(self._forced)
        found = [scores.top(row) for row in rows]
        if self._inspects:
            found = [self._inspect(*step, scores) for step in zip(self._running, found, rows, strict=True)]

        children: list[Hypothesis] = []
        for group in self._groups:
            if group.running:
                self._extend(group, self._candidates(group, found, children))
                children += group.running
        if len(self._groups) > 1 and self._beaten(children, self._finished(), self._wanted, self._generated + 1):
            children = []
        if not children:
            self._end_with(self._finished() or self._unfinished(FinishReason.DEAD_END))
            return None
        self._running, continuations = place(children, self._running, self._prefix + self._generated)
        self._generated += 1
        return continuations

    def stop(self, reason: FinishReason) -> None:
        """Answers with what has finished and, where that does not suffice, the best of what runs."""
        if self._answer is not None:
            return
        while self._forced is not None:  # a forced prefix is part of every answer
            self._follow_prefix(self._forced)
        self._end_with(self._finished() + self._unfinished(reason))

    def progress(self) -> Sequence[BeamProgress]:
        """One event after each step behind the prefix."""
        before = self._reported
        finished = sum(group.count for group in self._groups)
        self._reported = BeamProgress(self._generated, len(self._running), finished)
        return () if self._reported == before else (self._reported,)

    def hypotheses(self) -> list[HypothesisResult]:
        assert self._answer is not None, "the search goes on"
        return [finished.result(self._prefix, self._top_tokens) for finished in self._answer]

    def _follow_prefix(self, token: int) -> Sequence[Continuation]:
        """The only hypothesis gets the next token of the forced prefix."""
        (parent,) = self._running
        child = self._child(parent, token, 0.0)
        if child.stops is not None:
            child.stops.push(token)
        self._running = [child]
        for group in self._groups:
            group.running = [child]
        self._prefix += 1
        self._forced = self._rules.forced(self._prefix)
        return (Continuation(0, token),)

    def _inspect(self, hypothesis: Hypothesis, top: Found, row: int, scores: RowScores) -> Found:
        """Keeps what is wanted of a hypothesis's step, and returns its candidates as the constraints want them."""
        parent = hypothesis.parent
        if self._covers:
            attention = scores.attention(row).astype(np.float64)
            covered = None if parent is None else parent.coverage
            hypothesis.coverage = attention if covered is None else covered + attention
        ids = hypothesis.ids
        if ids is not None and self._rules.preferred(ids) is not None:
            top = self._rules.biased(ids, top, hypothesis.edits, scores.edited(row))
        tokens, log_probabilities = top
        if self._top_tokens:
            hypothesis.top = tokens[: self._top_tokens], log_probabilities[: self._top_tokens]
        if self._rank is not None and self._generated == 0:
            only = slice(self._rank, self._rank + 1)
            return tokens[only], log_probabilities[only]
        return top

    def _candidates(self, group: Group, found: Sequence[Found], earlier: Sequence[Hypothesis]) -> list[Candidate]:
        """A group's 2 * width best continuations.

        Args:
            found: by row.
            earlier: what groups before this one chose in this step.
        """
        candidates: list[Candidate] = []
        for hypothesis in group.running:
            total = hypothesis.total
            ids, log_probabilities = found[hypothesis.row]
            candidates += [
                (total + log_probability, token, log_probability, hypothesis)
                for token, log_probability in zip(ids[: self._breadth], log_probabilities, strict=False)
            ]
        if earlier and self._diversity:
            times = Counter(hypothesis.token for hypothesis in earlier)
            candidates = [
                (key - self._diversity * times[token], token, log_probability, hypothesis)
                for key, token, log_probability, hypothesis in candidates
            ]
        candidates.sort(key=itemgetter(0), reverse=True)  # stable: the better hypothesis first, then the better token
        return candidates[: 2 * self._width]

    def _extend(self, group: Group, candidates: Sequence[Candidate]) -> None:
        """Finishes or goes on with a group's best continuations, given best first."""
        group.running = []
        length = self._generated + 1
        for position, (_, token, log_probability, parent) in enumerate(candidates):
            if log_probability == -math.inf:
                break
            may_finish = position < self._width
            if token == self._end:
                if may_finish:
                    child = Hypothesis(parent, token, log_probability, parent.total + log_probability)
                    child.stops = parent.stops
                    self._finish(group, child, FinishReason.EOS)
                continue
            child = self._child(parent, token, log_probability)
            characters = None if child.stops is None else child.stops.push(token)
            if characters is not None:
                if may_finish:
                    self._finish(group, child, FinishReason.STOP_SEQUENCE, characters)
            elif length == self._max_new_tokens:
                if may_finish:
                    self._finish(group, child, FinishReason.LENGTH)
            else:
                group.running.append(child)
                if len(group.running) == self._width:
                    break
        part = self._part(group)
        enough = group.count >= self._quota and len(part) == self._kept
        if enough or self._beaten(group.running, part, self._kept, length):
            group.running = []
        if not group.running:
            self.rows -= self._width

    def _child(self, parent: Hypothesis, token: int, log_probability: float) -> Hypothesis:
        child = Hypothesis(parent, token, log_probability, parent.total + log_probability)
        if parent.ids is not None:
            child.ids = [*parent.ids, token]
        if parent.stops is not None:
            child.stops = parent.stops.copy()
        return child

    def _finish(
        self, group: Group, hypothesis: Hypothesis, reason: FinishReason, characters: int | None = None
    ) -> None:
        """Takes note of one that ended in this step."""
        group.count += 1
        group.finished.append(self._judged(hypothesis, self._generated + 1, reason, characters))
        group.finished.sort(key=itemgetter(0), reverse=True)
        del group.finished[group.most :]

    def _judged(
        self, hypothesis: Hypothesis, length: int, reason: FinishReason, characters: int | None = None
    ) -> Finished:
        """With its score. Where text that is certain only at the end completes a stop sequence, an end token is no
        part of the hypothesis, which yet keeps the score with it.
        """
        parent = hypothesis.parent
        score = self._scoring.score(hypothesis.total, length, None if parent is None else parent.coverage)
        if characters is None and hypothesis.stops is not None:
            characters = hypothesis.stops.finish()
            if characters is not None:
                if reason is FinishReason.EOS and parent is not None:
                    hypothesis = parent
                reason = FinishReason.STOP_SEQUENCE
        return Finished(score, hypothesis, reason, characters)

    def _beaten(self, running: Sequence[Hypothesis], finished: Sequence[Finished], count: int, length: int) -> bool:
        """Whether none that runs, with so many tokens, can get among the `count` best of those that have finished."""
        if len(finished) < count:
            return False
        worst = finished[count - 1].score
        for hypothesis in running:
            assert hypothesis.parent is not None
            if self._scoring.bound(hypothesis.total, length, hypothesis.parent.coverage) > worst:
                return False
        return True

    def _part(self, group: Group) -> list[Finished]:
        """What a group has for the answer: its best, without what the groups before it give."""
        if group is self._groups[0]:
            return group.finished
        given: set[tuple[int, ...]] = set()
        for one in self._groups:
            part = [finished for finished in one.finished if tuple(finished.ids()) not in given][: self._kept]
            if one is group:
                break
            given.update(tuple(finished.ids()) for finished in part)
        return part

    def _finished(self) -> list[Finished]:
        """What all groups have for the answer, best first."""
        return sorted((one for group in self._groups for one in self._part(group)), key=itemgetter(0), reverse=True)

    def _unfinished(self, reason: FinishReason) -> list[Finished]:
        """What ran last, best first, as if it ended there."""
        judged = [self._judged(hypothesis, self._generated, reason) for hypothesis in self._running]
        judged.sort(key=itemgetter(0), reverse=True)
        return list({tuple(one.ids()): one for one in judged}.values())  # groups may run the same ones

    def _end_with(self, answer: list[Finished]) -> None:
        self._answer = answer[: self._wanted]
        self._running = []
