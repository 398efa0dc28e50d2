"""What a search is to the engine, and the engine to a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, Progress


@dataclass(frozen=True, slots=True)
class LogitEdits:
    """Changes to the logits of a few tokens of one row, made in the graph before the softmax.

    A logit x of a token becomes (x / penalty if x > 0 else x * penalty) + offset.

    Attributes:
        ids: distinct token ids.
        penalties: 1 to leave the logit as it is.
        offsets: -inf to forbid the token.
    """

    ids: Sequence[int]
    penalties: Sequence[float]
    offsets: Sequence[float]


@dataclass(frozen=True, slots=True)
class StepRequest:
    """What a search wants to know of one row's next step.

    Attributes:
        candidates: how many of the most probable tokens; 0 for none, where the next token is known already.
        edits: made before the softmax.
        temperature: divides the logits (after the edits); the candidates' log-probabilities are those of this
            temperature.
        plain: whether their log-probabilities at temperature 1 are wanted as well.
        vocabulary: sorted ids of the only tokens that may be chosen, the same tuple at every step; None for all.
        attention: whether to tell where the row looks in the source.
    """

    candidates: int
    edits: LogitEdits | None = None
    temperature: float = 1.0
    plain: bool = False
    vocabulary: tuple[int, ...] | None = None
    attention: bool = False


class RowScores(Protocol):
    """What a step found out, by row of the cache. Log-probabilities are natural, of the distribution after edits."""

    def best(self, row: int) -> tuple[int, float]:
        """The most probable token (the lowest id of several) and its log-probability, -inf if all are forbidden."""

    def top(self, row: int) -> tuple[list[int], list[float]]:
        """The most probable tokens, best first and of equal ones the lowest id, and their log-probabilities.

        Those of -inf stand for no token at all, whatever their id. At least as many as were asked for, or all there
        are. (More, where another row of the step wanted more.)
        """

    def plain(self, row: int) -> list[float]:
        """Log-probabilities at temperature 1 of the tokens of `top`, if they were asked for."""

    def edited(self, row: int) -> list[float]:
        """Log-probabilities of the tokens in `edits.ids`, in their order."""

    def attention(self, row: int) -> NDArray[np.float32]:
        """Shares of attention over the source tokens, mean over the last layer's heads, if asked for: [source]."""


class StepScores(RowScores, Protocol):
    """Those of a whole step."""

    def best_of(self, rows: slice | NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """As `best`, of many rows that asked for the most probable of all tokens and for nothing else: [rows] each."""


class Continuation(NamedTuple):
    """How a hypothesis goes on.

    Attributes:
        parent: the place, among the rows of its search, of the row that it continues.
        token: its next token.
        shared: positions of the cache that the row it goes to and the parent's have in common, from the start: the
            number of equal decoder inputs. What follows is copied. Of no meaning where the row is the parent's own.
    """

    parent: int
    token: int
    shared: int = 0


class Search(Protocol):
    """Decides, step by step, how the hypotheses of one request go on.

    A search starts with one row, whose first decoder input is the begin token. The engine asks for its
    `step_requests`, steps, and asks with `needs_more` whether that was enough. If not, it asks for the step requests
    again and repeats the step, which changes nothing. Then it calls `advance`, which returns the
    continuations of the next step: the i-th goes to the search's i-th row. There may be more of them than before (new
    rows are added at the end) or fewer (the last rows are freed), but never more than `rows`.

    NOTE: rows are copied in place. A search keeps one child of a hypothesis in its row, so that a row is either the
    parent of its own continuation or nobody's parent.

    Attributes:
        rows: the most rows that the search will want from now on; it may fall.
    """

    rows: int

    def step_requests(self) -> Sequence[StepRequest]:
        """For each of its rows."""

    def needs_more(self, scores: RowScores, rows: Sequence[int]) -> bool:
        """Whether these scores have too few candidates; the next step requests then ask for more."""

    def advance(self, scores: RowScores, rows: Sequence[int]) -> Sequence[Continuation] | None:
        """Takes one step's result.

        Args:
            rows: where in the scores each of its rows is.

        Returns:
            what to decode next, or None where the search is over.
        """

    def stop(self, reason: FinishReason) -> None:
        """Ends the search from outside, with what it has."""

    def progress(self) -> Sequence[Progress | BeamProgress]:
        """What was decided since the last call."""

    def hypotheses(self) -> list[HypothesisResult]:
        """The answer, best first (samples in their order), once the search is over. At least one."""
