"""Beam search that always runs to the end, and considers every continuation."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from dragoman_server.core.requests import FinishReason, HypothesisResult, TokenChoice
from dragoman_server.core.search_options import BeamOptions, LengthNormalization, SearchOptions, Stopping
from tests.reference.model import Forward
from tests.reference.step import Decode, Margins, Vector, choices, completed, distribution, forced, ranked

ASSUMED = (Stopping.CURRENT_LENGTH, Stopping.MAX_LENGTH)  # end a search by the score at an assumed length


@dataclass(eq=False)
class Hypothesis:
    """A running hypothesis.

    Attributes:
        attention: Attention summed over the steps that chose its tokens, [source].
        next, next_attention: Result of its own step: log-probabilities of what follows, [vocabulary], and attention.
    """

    ids: list[int]
    log_probabilities: list[float] = field(default_factory=list)
    alternatives: list[list[TokenChoice]] = field(default_factory=list)
    attention: Vector | None = None
    next: Vector | None = None
    next_attention: Vector | None = None

    @property
    def total(self) -> float:
        return sum(self.log_probabilities)


@dataclass(eq=False)
class Group:
    """A group of the beam, which searches on its own."""

    running: list[Hypothesis]
    finished: list[HypothesisResult] = field(default_factory=list)


class Move(NamedTuple):
    """A hypothesis continued by a token; `value` is what moves are ranked by."""

    value: float
    token: int
    parent: Hypothesis
    log_probability: float


class BeamReference:
    """One beam search.

    Without groups the default stopping rule is defined by what it must not change, the answer: the search goes on until
    nothing runs, and takes the best of all that ever finished. The rules of transformers are those of its `generate`.

    Attributes:
        steps: Steps after which nothing that runs could change the answer any more or, with a rule that may miss better
            answers, after which nothing runs.
        step_margins: How close that was.
    """

    def __init__(
        self,
        forward: Forward,
        options: SearchOptions,
        end: int,
        text: Decode,
        margins: Margins,
        rank: int | None = None,
    ) -> None:
        assert options.beam is not None
        self.options, self.beam, self.constraints = options, options.beam, options.constraints
        self.forward, self.end, self.text, self.margins, self.rank = forward, end, text, margins, rank
        self.size = self.beam.beam_size // self.beam.groups
        self.groups = [Group([Hypothesis(forced(self.constraints))]) for _ in range(self.beam.groups)]
        self.steps, self.step_margins = 0, Margins()

    def run(self, count: int) -> list[HypothesisResult]:
        """Returns the `count` best hypotheses."""
        kept = min(count, self.size)
        last: list[Hypothesis] = []
        for generated in range(1, self.options.max_new_tokens + 1):
            last = self._running() or last
            chosen: Counter[int] = Counter()
            for group in self.groups:
                moves = self._moves(group, chosen)
                if self.rank is not None and generated == 1:
                    if 0 < self.rank >= len(moves):
                        return []  # there are too few tokens
                    moves = self._ranked_move(moves, self.rank)
                self._select(group, moves, at_limit=generated == self.options.max_new_tokens)
                if self._is_over(group, kept, generated):
                    group.running = []
                chosen.update(h.ids[-1] for h in group.running)
            parts = [h for part in self._parts(kept) for h in part]
            if not self.steps and self._ends(parts, count, generated):
                self.steps = generated
        for group in self.groups:
            scores = sorted((h.score for h in group.finished), reverse=True)
            if kept < len(scores):
                _compare(self.margins, scores[kept - 1], scores[kept])
        found = [h for part in self._parts(kept) for h in part]
        return self._best(found or [self._result(h, FinishReason.DEAD_END, None) for h in last], count)

    def _ends(self, parts: Sequence[HypothesisResult], count: int, generated: int) -> bool:
        """Returns whether nothing that runs could change the answer, or nothing runs."""
        if self.beam.stopping in ASSUMED and len(self.groups) == 1:
            return not self._running()
        return self._beaten(self._running(), parts, count, generated, self.step_margins)

    def _running(self) -> list[Hypothesis]:
        return [h for group in self.groups for h in group.running]

    def _moves(self, group: Group, chosen: Counter[int]) -> list[Move]:
        """Returns all possible continuations, best first."""
        if not group.running:
            return []
        moves = []
        logits, attention = self.forward([h.ids for h in group.running])
        for h, row, attended in zip(group.running, logits, attention, strict=True):
            h.next, h.next_attention = distribution(row, h.ids, self.constraints, self.end), attended
            for token in ranked(h.next):
                log_probability = float(h.next[token])
                value = h.total + log_probability - self.beam.diversity_penalty * chosen[token]
                moves.append(Move(value, token, h, log_probability))
        return sorted(moves, key=lambda move: -move.value)

    def _ranked_move(self, moves: list[Move], rank: int) -> list[Move]:
        values = [move.value for move in moves]
        self.margins.cut(values, rank)
        self.margins.cut(values, rank + 1)
        return moves[rank : rank + 1]

    def _select(self, group: Group, moves: list[Move], at_limit: bool) -> None:
        """Of the 2 * size best, finishes what ends among the first `size`; the `size` best others run on."""
        values = [move.value for move in moves]
        others: list[tuple[float, Hypothesis]] = []
        for rank, move in enumerate(moves):
            if rank >= 2 * self.size and len(others) > self.size:
                break
            child = self._child(move)
            reason, characters = self._end_of(child, move.token, at_limit)
            if reason is None:
                others.append((move.value, child))
                continue
            if rank < self.size:
                group.finished.append(self._result(child, reason, characters))
            border = self.size if rank < self.size else self.size - 1
            if border < len(values):
                self.margins.note(move.value - values[border])
        self.margins.cut([value for value, _ in others], self.size)
        group.running = [child for value, child in others[: self.size] if value >= values[: 2 * self.size][-1]]
        if len(group.running) < self.size:
            self.margins.cut(values, 2 * self.size)

    def _child(self, move: Move) -> Hypothesis:
        parent = move.parent
        assert parent.next is not None
        assert parent.next_attention is not None
        return Hypothesis(
            parent.ids if move.token == self.end else [*parent.ids, move.token],
            [*parent.log_probabilities, move.log_probability],
            [*parent.alternatives, choices(parent.next, self.options.top_tokens)],
            parent.next_attention + (0 if parent.attention is None else parent.attention),
        )

    def _end_of(self, child: Hypothesis, token: int, at_limit: bool) -> tuple[FinishReason | None, int | None]:
        if token == self.end:
            return FinishReason.EOS, None
        if (characters := completed(child.ids, self.constraints, self.text)) is not None:
            return FinishReason.STOP_SEQUENCE, characters
        return (FinishReason.LENGTH if at_limit else None), None

    def _is_over(self, group: Group, kept: int, generated: int) -> bool:
        """Returns whether a group ends although some of its hypotheses could run on."""
        quota = max(math.floor(self.beam.patience * self.size + 0.5), kept)
        part = self._parts(kept)[self.groups.index(group)]
        if self.beam.stopping is Stopping.EARLY and len(part) == kept and len(group.finished) >= quota:
            return True
        if self.beam.stopping in ASSUMED:
            return self._seems_beaten(group, generated)
        # A group that is over no longer keeps the others from its tokens, so it matters when it is.
        return len(self.groups) > 1 and self._beaten(group.running, part, kept, generated, self.margins)

    def _beaten(
        self,
        running: Sequence[Hypothesis],
        finished: Sequence[HypothesisResult],
        count: int,
        generated: int,
        margins: Margins,
    ) -> bool:
        """Returns whether no running hypothesis can get among the `count` best, whatever follows."""
        if not running:
            return True
        if len(finished) < count:
            return False
        worst = sorted((h.score for h in finished), reverse=True)[count - 1]
        lengths = range(generated + 1, self.options.max_new_tokens + 1)
        bounds = [
            max(normalized(h.total, length, self.beam) for length in lengths)
            + (self._coverage(h) if self.beam.coverage_penalty < 0 else 0)  # otherwise it may rise to 0
            for h in running
        ]
        for bound in bounds:
            _compare(margins, worst, bound)
        return all(bound <= worst for bound in bounds)

    def _seems_beaten(self, group: Group, generated: int) -> bool:
        """Returns whether the best running hypothesis, as if it ended, is no better than `size` finished ones."""
        if len(group.finished) < self.size or not group.running:
            return False
        worst = sorted((h.score for h in group.finished), reverse=True)[self.size - 1]
        longest = self.beam.stopping is Stopping.MAX_LENGTH and self.beam.length_penalty > 0
        best = max(h.total for h in group.running)
        assumed = normalized(best, self.options.max_new_tokens if longest else generated, self.beam)
        _compare(self.margins, worst, assumed)
        return assumed <= worst

    def _parts(self, kept: int) -> list[list[HypothesisResult]]:
        """Returns what each group contributes to the answer: its best, without those of a group before it."""
        taken: list[list[int]] = []
        parts = []
        for group in self.groups:
            ranking = sorted(group.finished, key=lambda result: -result.score)
            parts.append([result for result in ranking if result.ids not in taken][:kept])
            taken += [result.ids for result in parts[-1]]
        return parts

    def _best(self, found: list[HypothesisResult], count: int) -> list[HypothesisResult]:
        distinct: list[HypothesisResult] = []
        for result in sorted(found, key=lambda result: -result.score):
            if all(result.ids != better.ids for better in distinct):
                distinct.append(result)
        for better, worse in itertools.pairwise(distinct[: count + 1]):
            _compare(self.margins, better.score, worse.score)
        return distinct[:count]

    def _coverage(self, h: Hypothesis) -> float:
        """Returns the coverage term of a score."""
        if not self.beam.coverage_penalty or h.attention is None:
            return 0.0
        return self.beam.coverage_penalty * float(np.log(np.minimum(h.attention, 1)).sum())

    def _result(self, h: Hypothesis, reason: FinishReason, characters: int | None) -> HypothesisResult:
        return HypothesisResult(
            ids=h.ids,
            log_probabilities=h.log_probabilities,
            reason=reason,
            score=normalized(h.total, len(h.log_probabilities), self.beam) + self._coverage(h),
            prefix=len(forced(self.constraints)),
            alternatives=h.alternatives if self.options.top_tokens else [],
            characters=characters,
        )


def normalized(total: float, length: int, beam: BeamOptions) -> float:
    """Returns the score of a sum of log-probabilities of `length` generated tokens, without coverage."""
    if beam.length_normalization is LengthNormalization.NONE or length == 0:
        return total
    if beam.length_normalization is LengthNormalization.GNMT:
        return float(total / ((5 + length) / 6) ** beam.length_penalty)
    return float(total / length**beam.length_penalty)


def _compare(margins: Margins, better: float, worse: float) -> None:
    """Notes how close two scores are, which a negative length penalty makes large, as it does their rounding."""
    margins.note((better - worse) / max(1.0, abs(worse)))
