"""Runs one search over a model that is a function, and checks that it keeps to the contract in core/search.py."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray
from tokenizers import Tokenizer, decoders, models

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, Progress
from dragoman_server.core.search import Continuation, Search, StepRequest
from dragoman_server.decoding.text_stream import TargetDecoder

Script = Callable[[tuple[int, ...]], ArrayLike]
"""Tokens so far, without the begin token, to the probabilities of the next one, [vocabulary]: above 0, any sum."""

END = 0  # of the models below
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # tokens 1 to 26
BEGIN, GARBAGE = -1, -2
FOREIGN_ROWS = 3  # rows of other requests, before those of the search


def letters_decoder(letters: str = LETTERS, *steps: decoders.Decoder) -> TargetDecoder:
    """Returns a decoder of the end token and a token for each letter."""
    tokenizer = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["</s>", *letters])}, "</s>"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), *steps])
    tokenizer.add_special_tokens(["</s>"])
    return TargetDecoder(tokenizer)


def ids_of(text: str) -> list[int]:
    return [LETTERS.index(letter) + 1 for letter in text]


def spell(text: str, weight: float = 8.0) -> Script:
    """Returns a model that spells a text and ends: each token has weight / (weight + 26)."""
    ids = [*ids_of(text), END]

    def probabilities(so_far: tuple[int, ...]) -> list[float]:
        likely = ids[min(len(so_far), len(ids) - 1)]
        return [weight if token == likely else 1.0 for token in range(1 + len(LETTERS))]

    return probabilities


def table(
    rows: Mapping[tuple[int, ...], Mapping[int, float]], otherwise: Mapping[int, float] | None = None, *, size: int
) -> Script:
    """Returns a model with these probabilities; all others are 0."""

    def probabilities(ids: tuple[int, ...]) -> Sequence[float]:
        row = rows[ids] if otherwise is None else rows.get(ids, otherwise)
        assert abs(sum(row.values()) - 1.0) < 1e-9
        return [row.get(token, 0.0) for token in range(size)]

    return probabilities


def random_model(seed: int, size: int, spread: float) -> Script:
    """Returns a model with logits of both signs, drawn for every hypothesis."""

    def probabilities(so_far: tuple[int, ...]) -> NDArray[np.float64]:
        return np.exp(np.random.default_rng([seed, *so_far]).normal(scale=spread, size=size))

    return probabilities


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns -inf everywhere if all logits are -inf."""
    best = logits.max()
    if best == -np.inf:
        return logits
    shifted: NDArray[np.float64] = logits - best
    with np.errstate(divide="ignore"):
        normalized: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum())
    return normalized


def edited_logits(probabilities: ArrayLike, request: StepRequest) -> NDArray[np.float64]:
    """Returns logits with the request's edits, -inf outside its shortlist: [vocabulary]."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.asarray(probabilities, dtype=np.float64))
    if request.edits is not None:
        for token, penalty, offset in zip(
            request.edits.ids, request.edits.penalties, request.edits.offsets, strict=True
        ):
            x = logits[token]
            logits[token] = (x / penalty if x > 0 else x * penalty) + offset
    if request.vocabulary is not None:
        outside = np.ones(len(logits), dtype=bool)
        outside[list(request.vocabulary)] = False
        logits[outside] = -np.inf
    return logits


@dataclass
class ScriptedRow:
    """One row's step."""

    probabilities: ArrayLike
    request: StepRequest
    attention: ArrayLike | None = None

    @cached_property
    def untempered(self) -> NDArray[np.float32]:
        """Log-probabilities at temperature 1, [vocabulary]."""
        return log_softmax(edited_logits(self.probabilities, self.request)).astype(np.float32)

    @cached_property
    def tempered(self) -> NDArray[np.float32]:
        """Log-probabilities, [vocabulary]."""
        logits = edited_logits(self.probabilities, self.request) / self.request.temperature
        return log_softmax(logits).astype(np.float32)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The tokens that may be chosen, best first, the lowest id first on ties."""
        shortlist = self.request.vocabulary
        ids = np.arange(len(self.tempered)) if shortlist is None else np.array(shortlist)
        return ids[np.argsort(-self.tempered[ids], kind="stable")]


class ScriptedResult:
    """A StepResult that refuses to return what was not requested.

    Args:
        rows: Steps by cache row.
        delivered: Number of candidates of every row, as if other rows of the step had requested as many.
    """

    def __init__(self, rows: dict[int, ScriptedRow], delivered: int = 0) -> None:
        self._rows = rows
        self._delivered = max([delivered, *(row.request.candidates for row in rows.values())])

    def best(self, row: int) -> tuple[int, float]:
        ids, values = self.top(row)
        return ids[0], values[0]

    def best_rows(self, rows: slice | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        raise AssertionError("a search reads its rows one by one")

    def top(self, row: int) -> tuple[list[int], list[float]]:
        step = self._rows[row]
        assert step.request.candidates, "no candidates were requested"
        ids = step.order[: self._delivered]
        return ids.tolist(), step.tempered[ids].tolist()

    def untempered(self, row: int) -> list[float]:
        step = self._rows[row]
        assert step.request.untempered, "log-probabilities at temperature 1 were not requested"
        values: list[float] = step.untempered[step.order[: self._delivered]].tolist()
        return values

    def edited(self, row: int) -> list[float]:
        step = self._rows[row]
        assert step.request.edits is not None, "there were no edits"
        ids = list(step.request.edits.ids)
        assert len(set(ids)) == len(ids)
        assert step.request.vocabulary is None or set(ids) <= set(step.request.vocabulary), "a token without a logit"
        values: list[float] = step.tempered[ids].tolist()
        return values

    def attention(self, row: int) -> NDArray[np.float32]:
        step = self._rows[row]
        assert step.request.attention, "attention was not requested"
        assert step.attention is not None, "the script has no attention"
        return np.asarray(step.attention, dtype=np.float32)


@dataclass
class Run:
    """What a search did.

    Attributes:
        hypotheses: Its answer.
        events: Its progress by step; the last entry is its progress after the end.
        steps: Decode steps; a repeated step counts once.
        repeated: Number of repeated steps.
        rows: Rows in use at each step.
        step_requests: Step requests by step, then by row; of a repeated step the last.
        copied: Cache positions copied from row to row.
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
        """The only hypothesis."""
        (only,) = self.hypotheses
        return only

    def ids(self) -> list[list[int]]:
        return [hypothesis.ids for hypothesis in self.hypotheses]

    def endings(self) -> list[tuple[list[int], FinishReason]]:
        return [(hypothesis.ids, hypothesis.reason) for hypothesis in self.hypotheses]

    def progress(self, hypothesis: int | None = None) -> list[Progress]:
        """Returns the token events, of all hypotheses or of one."""
        events = [event for events in self.events for event in events if isinstance(event, Progress)]
        return [event for event in events if hypothesis in (None, event.hypothesis)]

    def candidates(self) -> list[int]:
        """Returns the candidates requested for the first row at each step."""
        return [requests[0].candidates for requests in self.step_requests]


def run(
    search: Search,
    script: Script,
    *,
    attention: Script | None = None,
    delivered: int = 0,
    stop_after: int | None = None,
    reason: FinishReason = FinishReason.TIME_LIMIT,
    max_steps: int = 1000,
) -> Run:
    """Plays the engine until the search is over, and checks that the search keeps to its contract.

    Args:
        attention: Tokens so far to attention over the source, [source].
        delivered: See ScriptedResult.
        stop_after: Steps after which the search is stopped from outside.
        reason: Why it is stopped.
        max_steps: Steps that the search may take.
    """
    played = Run()
    inputs = [BEGIN]  # of the next step, by row
    cache: list[list[int]] = [[]]  # decoder inputs whose keys and values each row holds
    max_rows = search.rows
    continuations: Sequence[Continuation] | None = []
    while continuations is not None:
        if played.steps == stop_after:
            search.stop(reason)
            break
        assert played.steps < max_steps, "the search does not end"
        assert len(inputs) <= search.rows <= max_rows, "the search has more rows than it announced"
        max_rows = search.rows
        played.steps += 1
        played.rows.append(len(inputs))
        for row, token in enumerate(inputs):
            cache[row].append(token)
        rows = [FOREIGN_ROWS + len(inputs) - 1 - row for row in range(len(inputs))]
        requests = list(search.step_requests())
        while True:
            assert len(requests) == len(inputs)
            result = _step(script, attention, cache, requests, rows, delivered)
            if not search.needs_more(result, rows):
                break
            before, requests = requests, list(search.step_requests())
            played.repeated += 1
            assert any(now.candidates > old.candidates for now, old in zip(requests, before, strict=True)), (
                "the search requests the same again"
            )
        played.step_requests.append(requests)
        continuations = search.advance(result, rows)
        played.events.append(list(search.progress()))
        if continuations is not None:
            played.copied += _copy(cache, continuations)
            inputs = [continuation.token for continuation in continuations]
    played.events.append(list(search.progress()))
    played.hypotheses = search.hypotheses()
    assert played.hypotheses
    return played


def _step(
    script: Script,
    attention: Script | None,
    cache: list[list[int]],
    requests: Sequence[StepRequest],
    rows: Sequence[int],
    delivered: int,
) -> ScriptedResult:
    steps: dict[int, ScriptedRow] = {}
    for held, request, row in zip(cache, requests, rows, strict=True):
        ids = tuple(held[1:])
        probabilities = np.asarray(script(ids), dtype=np.float64)
        assert 0 <= request.candidates <= len(probabilities), "more candidates than there are tokens"
        if request.vocabulary is not None:
            assert list(request.vocabulary) == sorted(set(request.vocabulary))
        attended = attention(ids) if attention is not None and request.attention else None
        steps[row] = ScriptedRow(probabilities, request, attended)
    assert len({request.vocabulary for request in requests if request.candidates}) <= 1
    return ScriptedResult(steps, delivered)


def _copy(cache: list[list[int]], continuations: Sequence[Continuation]) -> int:
    """Copies rows as the continuations say, in place, and returns the number of copied positions."""
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
