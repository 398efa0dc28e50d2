"""The contract between an engine and the searches of its jobs.

An engine calls a search in this order, once per decode step:

    while True:
        requests = search.step_requests()       # one per row of the search
        result = <run of the decoder graph>     # all searches of the engine in one step
        if not search.needs_more(result, rows): # of any search of the engine
            break                               # else the same step runs again, with the new step requests
    continuations = search.advance(result, rows)
    search.progress()                           # streaming requests only
    if continuations is None:
        search.hypotheses()                     # the answer

`stop` may come between two steps; `hypotheses` follows it. The engine decodes jobs whose search is a GreedySearch, or a
plain BeamSearch, without these calls, all rows at once: see decoding/greedy.py and decoding/beam_rows.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, Progress


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Changes to the logits of a few tokens of one row, made in the graph before the softmax.

    The logit x of a token becomes (x / penalty if x > 0 else x * penalty) + offset.

    Attributes:
        ids: Distinct token ids.
        penalties: Repetition penalties; 1 leaves the logit as it is.
        offsets: Added to the logit; -inf forbids the token.
    """

    ids: Sequence[int]
    penalties: Sequence[float]
    offsets: Sequence[float]


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a search asks of one row's next step.

    Attributes:
        candidates: Number of most probable tokens to return; 0 where the next token is known already.
        edits: Logit edits, made before the softmax.
        temperature: Divisor of the logits, after the edits; the candidates' log-probabilities include it.
        untempered: Whether to return the candidates' log-probabilities at temperature 1 as well.
        vocabulary: Shortlist, sorted ids of the only tokens that may be chosen; None for all. The same object at
            every step.
        attention: Whether to return the row's cross-attention.
    """

    candidates: int
    edits: LogitEdits | None = None
    temperature: float = 1.0
    untempered: bool = False
    vocabulary: Sequence[int] | None = None
    attention: bool = False


BEST_TOKEN = StepRequest(1)


class StepResult(Protocol):
    """The result of one step, by cache row. Log-probabilities are natural logarithms, of the edited distribution."""

    def best(self, row: int) -> tuple[int, float]:
        """Returns the most probable token (the lowest id on ties) and its log-probability, -inf if there is none."""

    def best_rows(self, rows: slice | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Returns `best` of many rows as two arrays [rows]. All of them must have asked for one candidate."""

    def top(self, row: int) -> tuple[list[int], list[float]]:
        """Returns the candidates, most probable first (the lowest id first on ties), and their log-probabilities.

        Entries with -inf are no candidates, whatever their id. There are at least `StepRequest.candidates` entries, or
        one for every token; more where another row of the step asked for more.
        """

    def untempered(self, row: int) -> list[float]:
        """Returns the log-probabilities of the tokens of `top` at temperature 1, if requested."""

    def edited(self, row: int) -> list[float]:
        """Returns the log-probabilities of the tokens in `edits.ids`, in their order."""

    def attention(self, row: int) -> NDArray[np.float32]:
        """Returns the cross-attention, if requested: mean over the heads of the last layer, [source]."""


class Continuation(NamedTuple):
    """How a hypothesis goes on.

    Attributes:
        parent: Index of the parent hypothesis among the rows of its search.
        token: Next token of the hypothesis.
        shared: Number of leading cache positions that the destination row and the parent's row have in common; the
            engine copies the rest. Unused where the destination is the parent's own row.
    """

    parent: int
    token: int
    shared: int = 0


class Search(Protocol):
    """Chooses the tokens of one request, step by step. The module docstring lists the calls in order.

    A search starts with one row, whose first decoder input is the begin token. The i-th continuation goes to the
    search's i-th row. There may be more continuations than rows (the engine adds rows at the end) or fewer (it frees
    the last ones), but never more than `rows`.

    NOTE: the engine copies rows in place. A search must keep one child of each continued hypothesis in its row, so
    that a row either is the parent of its own continuation or nobody's parent.

    Attributes:
        rows: Upper bound of the rows that the search needs from now on. It may fall, never rise.
    """

    rows: int

    def step_requests(self) -> Sequence[StepRequest]:
        """Returns the step requests of its rows."""

    def needs_more(self, result: StepResult, rows: Sequence[int]) -> bool:
        """Returns whether the result has too few candidates; the next step requests then ask for more.

        A repeated step changes nothing in the cache.
        """

    def advance(self, result: StepResult, rows: Sequence[int]) -> Sequence[Continuation] | None:
        """Chooses the next tokens.

        Args:
            result: Result of the step.
            rows: Cache row of each of its rows.

        Returns:
            The continuations to decode next, or None where the search is over.
        """

    def stop(self, reason: FinishReason) -> None:
        """Ends the search from outside, with the hypotheses it has."""

    def progress(self) -> Sequence[Progress | BeamProgress]:
        """Returns what was decided since the last call."""

    def hypotheses(self) -> list[HypothesisResult]:
        """Returns the answer once the search is over: at least one hypothesis, best first, samples in their order."""
