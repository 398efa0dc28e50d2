"""Beam search that always runs to the end, and looks at everything."""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from server.engine.requests import FinishReason, HypothesisResult, TokenChoice
from server.search.options import BeamOptions, LengthNormalization, SearchOptions
from tests.reference.distribution import Vector, distribution, forced, ranked
from tests.reference.margins import Margins
from tests.reference.model import Forward
from tests.reference.results import places
from tests.reference.stops import Decode, completed


@dataclass
class Hypothesis:
    """One in the beam; `attention` is summed over the steps that generated its tokens, [source]."""

    ids: list[int]
    log_probabilities: list[float] = field(default_factory=list)
    alternatives: list[list[TokenChoice]] = field(default_factory=list)
    attention: Vector | None = None

    @property
    def total(self) -> float:
        return sum(self.log_probabilities)


class Move(NamedTuple):
    """A hypothesis continued by a token; `value` is what moves compete by."""

    parent: Hypothesis
    token: int
    value: float
    child: Hypothesis
    reason: FinishReason | None
    characters: int | None


class BeamReference:
    """One beam search.

    The default stopping rule is defined by what it must not change: the answer. So this search goes on until nothing
    runs, and takes the best of all that ever finished.
    """

    def __init__(
        self, forward: Forward, options: SearchOptions, end: int, decode: Decode, margins: Margins, rank: int | None
    ) -> None:
        assert options.beam is not None
        self.options, self.beam, self.constraints = options, options.beam, options.constraints
        self.forward, self.end, self.decode, self.margins, self.rank = forward, end, decode, margins, rank
        self.finished: list[HypothesisResult] = []

    def run(self, count: int) -> list[HypothesisResult]:
        """The `count` best."""
        prefix = forced(self.constraints)
        size = self.beam.beam_size // self.beam.groups
        groups = [[Hypothesis(prefix)] for _ in range(self.beam.groups)]
        for generated in range(1, self.options.max_new_tokens + 1):
            chosen: Counter[int] = Counter()
            stuck = [h for group in groups for h in group]
            for i, group in enumerate(groups):
                moves = self._moves(group, chosen, generated) if group else []
                if self.rank and generated == 1 and self.rank >= len(moves):
                    return []
                if self.rank is not None and generated == 1:
                    moves = self._ranked_move(moves, self.rank)
                groups[i] = self._select(moves, size)
                chosen.update(h.ids[-1] for h in groups[i])
            if self.beam.early_stopping and len(self.finished) >= round(self.beam.patience * self.beam.beam_size):
                break
            if not any(groups):
                break
        if not self.finished:
            for h in stuck:
                self._end(h, FinishReason.DEAD_END, None)
        return self._best(count)

    def _moves(self, group: list[Hypothesis], chosen: Counter[int], generated: int) -> list[Move]:
        """All possible continuations, best first."""
        logits, attention = self.forward([h.ids for h in group])
        moves = []
        for h, row, looks in zip(group, logits, attention, strict=True):
            log_probabilities = distribution(row, h.ids, self.constraints, self.end)
            order = ranked(log_probabilities)
            for token in order:
                child = Hypothesis(
                    h.ids if token == self.end else [*h.ids, token],
                    [*h.log_probabilities, float(log_probabilities[token])],
                    [*h.alternatives, places(log_probabilities, order, self.options.top_tokens)],
                    looks if h.attention is None else h.attention + looks,
                )
                reason, characters = self._end_of(child, token, generated)
                value = child.total - self.beam.diversity_penalty * chosen[token]
                moves.append(Move(h, token, value, child, reason, characters))
        return sorted(moves, key=lambda move: -move.value)

    def _end_of(self, child: Hypothesis, token: int, generated: int) -> tuple[FinishReason | None, int | None]:
        if token == self.end:
            return FinishReason.EOS, None
        if (characters := completed(child.ids, self.constraints, self.decode)) is not None:
            return FinishReason.STOP_SEQUENCE, characters
        return (FinishReason.LENGTH if generated == self.options.max_new_tokens else None), None

    def _ranked_move(self, moves: list[Move], rank: int) -> list[Move]:
        values = [move.value for move in moves]
        self.margins.cut(values, rank)
        self.margins.cut(values, rank + 1)
        return moves[rank : rank + 1]

    def _select(self, moves: list[Move], size: int) -> list[Hypothesis]:
        """Finishes what ends among the first `size`, and gives the `size` best others of the first 2 * `size`."""
        values = [move.value for move in moves]
        others: list[Move] = []
        for place, move in enumerate(moves):
            if move.reason not in (FinishReason.EOS, FinishReason.STOP_SEQUENCE):
                others.append(move)
                continue
            if place < size:
                self._finish(move)
            border = size if place < size else size - 1
            if border < len(values):
                self.margins.note(move.value - values[border])
        self.margins.cut([move.value for move in others], size)
        running = [move for move in others[:size] if move.value >= values[: 2 * size][-1]]
        if len(running) < size:
            self.margins.cut(values, 2 * size)
        for move in running:
            if move.reason is FinishReason.LENGTH:
                self._finish(move)
        return [move.child for move in running if move.reason is None]

    def _finish(self, move: Move) -> None:
        if move.reason is not None:
            self._end(move.child, move.reason, move.characters)

    def _end(self, h: Hypothesis, reason: FinishReason, characters: int | None) -> None:
        score = normalised(h.total, len(h.log_probabilities), self.beam)
        if self.beam.coverage_penalty and h.attention is not None:
            score += self.beam.coverage_penalty * float(np.log(np.minimum(h.attention, 1)).sum())
        self.finished.append(
            HypothesisResult(
                ids=h.ids,
                log_probabilities=h.log_probabilities,
                reason=reason,
                score=score,
                prefix=len(forced(self.constraints)),
                alternatives=h.alternatives if self.options.top_tokens else [],
                characters=characters,
            )
        )

    def _best(self, count: int) -> list[HypothesisResult]:
        distinct: list[HypothesisResult] = []
        for result in sorted(self.finished, key=lambda result: -result.score):
            if all(result.ids != better.ids for better in distinct):
                distinct.append(result)
        for better, worse in itertools.pairwise(distinct[: count + 1]):
            self.margins.note(better.score - worse.score)
        return distinct[:count]


def normalised(total: float, tokens: int, beam: BeamOptions) -> float:
    """The score of a sum of log-probabilities of so many generated tokens."""
    if beam.length_normalization is LengthNormalization.NONE or tokens == 0:
        return total
    if beam.length_normalization is LengthNormalization.GNMT:
        return float(total / ((5 + tokens) / 6) ** beam.length_penalty)
    return float(total / tokens**beam.length_penalty)
