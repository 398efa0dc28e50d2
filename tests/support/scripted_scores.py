"""An engine for one search over a model that is a function. It checks that the search keeps to the protocol."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, Progress
from dragoman_server.core.search import Continuation, Search, StepRequest

Script = Callable[[tuple[int, ...]], ArrayLike]
"""Tokens so far, without the begin token, to the probabilities of the next one, [vocabulary]: above 0, any sum."""

BEGIN, GARBAGE = -1, -2
FOREIGN_ROWS = 3  # of other requests, before those of the search


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """-inf everywhere where it is so already."""
    best = logits.max()
    if best == -np.inf:
        return logits
    shifted: NDArray[np.float64] = logits - best
    with np.errstate(divide="ignore"):
        normalised: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return normalised


def edited_logits(probabilities: ArrayLike, step_request: StepRequest) -> NDArray[np.float64]:
    """Their logarithms, changed as the step_request says; -inf outside its vocabulary. [vocabulary]"""
    with np.errstate(divide="ignore"):
        logits = np.log(np.asarray(probabilities, dtype=np.float64))
    if step_request.edits is not None:
        for token, penalty, offset in zip(
            step_request.edits.ids, step_request.edits.penalties, step_request.edits.offsets, strict=True
        ):
            x = logits[token]
            logits[token] = (x / penalty if x > 0 else x * penalty) + offset
    if step_request.vocabulary is not None:
        outside = np.ones(len(logits), dtype=bool)
        outside[list(step_request.vocabulary)] = False
        logits[outside] = -np.inf
    return logits


@dataclass
class ScriptedRow:
    """One row's step."""

    probabilities: ArrayLike
    step_request: StepRequest
    shares: ArrayLike | None = None

    @cached_property
    def plain(self) -> NDArray[np.float32]:
        """At temperature 1. [vocabulary]"""
        return log_softmax(edited_logits(self.probabilities, self.step_request)).astype(np.float32)

    @cached_property
    def tempered(self) -> NDArray[np.float32]:
        """[vocabulary]"""
        logits = edited_logits(self.probabilities, self.step_request) / self.step_request.temperature
        return log_softmax(logits).astype(np.float32)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The tokens that may be asked for, best first, the lowest id first where several are equal."""
        ids = (
            np.arange(len(self.tempered))
            if self.step_request.vocabulary is None
            else np.array(self.step_request.vocabulary)
        )
        return ids[np.argsort(-self.tempered[ids], kind="stable")]


class ScriptedScores:
    """StepResult of rows whose tokens so far are known. Refuses to tell what was not demanded.

    Args:
        rows: by place.
        delivered: candidates of every row, as if other rows of the step wanted so many; at least those demanded.
    """

    def __init__(self, rows: dict[int, ScriptedRow], delivered: int = 0) -> None:
        self._rows = rows
        self._delivered = max([delivered, *(row.step_request.candidates for row in rows.values())])

    def best(self, row: int) -> tuple[int, float]:
        ids, values = self.top(row)
        return ids[0], values[0]

    def best_rows(self, rows: slice | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        raise AssertionError("a search steps its rows one by one")

    def top(self, row: int) -> tuple[list[int], list[float]]:
        step = self._rows[row]
        assert step.step_request.candidates, "no candidates were demanded"
        ids = step.order[: self._delivered]
        return ids.tolist(), step.tempered[ids].tolist()

    def untempered(self, row: int) -> list[float]:
        step = self._rows[row]
        assert step.step_request.untempered, "log-probabilities at temperature 1 were not demanded"
        values: list[float] = step.plain[step.order[: self._delivered]].tolist()
        return values

    def edited(self, row: int) -> list[float]:
        step = self._rows[row]
        assert step.step_request.edits is not None, "there were no edits"
        ids = list(step.step_request.edits.ids)
        assert len(set(ids)) == len(ids)
        assert step.step_request.vocabulary is None or set(ids) <= set(step.step_request.vocabulary), (
            "a token without a logit"
        )
        values: list[float] = step.tempered[ids].tolist()
        return values

    def attention(self, row: int) -> NDArray[np.float32]:
        step = self._rows[row]
        assert step.step_request.attention, "attention was not demanded"
        assert step.shares is not None, "the script has no attention"
        return np.asarray(step.shares, dtype=np.float32)


@dataclass
class Run:
    """What a search did.

    Attributes:
        hypotheses: its answer.
        events: its progress, by step; the last is what it told after its end.
        steps: steps that were decoded, those that were repeated for more candidates counted once.
        repeated: how often a step was repeated.
        rows: rows that it had at each step.
        step_requests: what it demanded, by step, then by row; of a repeated step the last.
        copied: positions of the cache copied from row to row.
    """

    hypotheses: list[HypothesisResult] = field(default_factory=list)
    events: list[list[Progress | BeamProgress]] = field(default_factory=list)
    steps: int = 0
    repeated: int = 0
    rows: list[int] = field(default_factory=list)
    step_requests: list[list[StepRequest]] = field(default_factory=list)
    copied: int = 0

    @property
    def hypothesis(self) -> HypothesisResult:
        """The only one."""
        (only,) = self.hypotheses
        return only


def run(
    search: Search,
    script: Script,
    *,
    attention: Script | None = None,
    delivered: int = 0,
    stop_after: int | None = None,
    reason: FinishReason = FinishReason.TIME_LIMIT,
    limit: int = 1000,
) -> Run:
    """Plays the engine until the search is over, and checks that it keeps to the protocol of searches.

    Args:
        attention: tokens so far to shares over the source, [source].
        delivered: see ScriptedScores.
        stop_after: steps after which the search is stopped from outside.
        reason: why.
        limit: steps that it may take.
    """
    made = Run()
    inputs = [BEGIN]  # of the next step, by row
    cache: list[list[int]] = [[]]  # decoder inputs whose keys and values each row holds
    most = search.rows
    continuations: Sequence[Continuation] | None = []
    while continuations is not None:
        if made.steps == stop_after:
            search.stop(reason)
            break
        assert made.steps < limit, "the search does not end"
        assert len(inputs) <= search.rows <= most, "the search has more rows than it said it would want"
        most = search.rows
        made.steps += 1
        made.rows.append(len(inputs))
        for row, token in enumerate(inputs):
            cache[row].append(token)
        places = [FOREIGN_ROWS + len(inputs) - 1 - row for row in range(len(inputs))]
        step_requests = list(search.step_requests())
        while True:
            assert len(step_requests) == len(inputs)
            made.step_requests.append(step_requests)
            scores = _scores(script, attention, cache, step_requests, places, delivered)
            if not search.needs_more(scores, places):
                break
            before = step_requests
            step_requests = list(search.step_requests())
            made.repeated += 1
            made.step_requests.pop()
            assert any(now.candidates > old.candidates for now, old in zip(step_requests, before, strict=True)), (
                "the search wants to see the same again"
            )
        continuations = search.advance(scores, places)
        made.events.append(list(search.progress()))
        if continuations is not None:
            made.copied += _copy(cache, continuations)
            inputs = [continuation.token for continuation in continuations]
    made.events.append(list(search.progress()))
    made.hypotheses = search.hypotheses()
    assert made.hypotheses
    return made


def _scores(
    script: Script,
    attention: Script | None,
    cache: list[list[int]],
    step_requests: Sequence[StepRequest],
    places: Sequence[int],
    delivered: int,
) -> ScriptedScores:
    rows: dict[int, ScriptedRow] = {}
    for held, step_request, place in zip(cache, step_requests, places, strict=True):
        ids = tuple(held[1:])
        probabilities = np.asarray(script(ids), dtype=np.float64)
        shares = attention(ids) if attention is not None and step_request.attention else None
        size = len(probabilities)
        assert 0 <= step_request.candidates <= size, "more candidates than there are tokens"
        if step_request.vocabulary is not None:
            assert list(step_request.vocabulary) == sorted(set(step_request.vocabulary))
        rows[place] = ScriptedRow(probabilities, step_request, shares)
    assert len({step_request.vocabulary for step_request in step_requests if step_request.candidates}) <= 1
    return ScriptedScores(rows, delivered)


def _copy(cache: list[list[int]], continuations: Sequence[Continuation]) -> int:
    """Moves what rows hold as the continuations say, in place, and returns how many positions were copied."""
    rows, length = len(cache), len(cache[0])
    assert continuations, "a search without rows is over"
    assert all(0 <= continuation.parent < rows for continuation in continuations)
    held = [row.copy() for row in cache]
    parents = {continuation.parent for continuation in continuations}
    cache += [[GARBAGE] * length for _ in range(len(continuations) - rows)]
    copied = 0
    for row, (parent, _, shared) in enumerate(continuations):
        if parent == row:
            continue
        assert row not in parents, "a row that others continue is overwritten"
        equal = next((n for n in range(length) if row >= rows or held[row][n] != held[parent][n]), length)
        assert shared == equal, f"{equal} positions are equal, not {shared}"
        cache[row][shared:] = cache[parent][shared:]
        copied += length - shared
    del cache[len(continuations) :]
    for row, continuation in enumerate(continuations):
        assert cache[row] == held[continuation.parent]
    return copied
