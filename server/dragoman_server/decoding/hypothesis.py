"""Hypotheses of a search as a tree, finished hypotheses, and the cache rows of running ones.

Each node of the tree is a token and the hypothesis that it continues.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, HypothesisResult, TokenChoice
from dragoman_server.core.search import Continuation, LogitEdits
from dragoman_server.decoding.stop_sequences import StopTracker


class Hypothesis:
    """A token and the hypothesis that it continues. The root of the tree has neither.

    Attributes:
        parent: The hypothesis without its last token.
        token: Last token.
        log_probability: Log-probability of the token; 0 for a forced one.
        total: Sum of the log-probabilities of all tokens.
        row: Index among the rows of its search, while it runs.
        ids: All tokens, where the constraints depend on them; else None.
        edits: Logit edits of its step, if any.
        top: Candidates of its step, best first, and their log-probabilities, if `top_tokens` were requested.
        coverage: Attention to each source token, summed over its step and those before, if there is a coverage
            penalty: [source].
        stops: Stop sequence tracker of its text, if there are stop sequences.
    """

    __slots__ = ("coverage", "edits", "ids", "log_probability", "parent", "row", "stops", "token", "top", "total")

    def __init__(self, parent: Hypothesis | None, token: int, log_probability: float = 0.0, total: float = 0.0) -> None:
        self.parent = parent
        self.token = token
        self.log_probability = log_probability
        self.total = total
        self.row = 0
        self.ids: list[int] | None = None
        self.edits: LogitEdits | None = None
        self.top: tuple[list[int], list[float]] | None = None
        self.coverage: NDArray[np.float64] | None = None
        self.stops: StopTracker | None = None

    @classmethod
    def root(cls) -> Hypothesis:
        return cls(None, -1)

    def path(self) -> list[Hypothesis]:
        """Returns the nodes from the first token to the last."""
        path: list[Hypothesis] = []
        hypothesis = self
        while hypothesis.parent is not None:
            path.append(hypothesis)
            hypothesis = hypothesis.parent
        path.reverse()
        return path


class FinishedHypothesis(NamedTuple):
    """A hypothesis that has ended.

    Attributes:
        score: Normalised score.
        hypothesis: Its last node; the end token where the reason is EOS.
        reason: Why it ended.
        characters: Length that a stop sequence leaves of its text; None for all.
    """

    score: float
    hypothesis: Hypothesis
    reason: FinishReason
    characters: int | None

    def ids(self) -> list[int]:
        """Returns its tokens without the end token."""
        ids = [hypothesis.token for hypothesis in self.hypothesis.path()]
        return ids[:-1] if self.reason is FinishReason.EOS else ids

    def result(self, prefix: int, top_tokens: int) -> HypothesisResult:
        """Converts it for the answer.

        Args:
            prefix: Number of its tokens that were forced.
            top_tokens: Alternatives to report at each position, forbidden tokens left out; 0 for none.
        """
        generated = self.hypothesis.path()[prefix:]
        alternatives: list[list[TokenChoice]] = []
        if top_tokens:
            for hypothesis in generated:
                assert hypothesis.parent is not None
                assert hypothesis.parent.top is not None
                choices = zip(*hypothesis.parent.top, strict=True)
                alternatives.append([TokenChoice(*choice) for choice in choices if choice[1] > -math.inf])
        return HypothesisResult(
            self.ids(),
            [hypothesis.log_probability for hypothesis in generated],
            self.reason,
            self.score,
            prefix,
            alternatives,
            self.characters,
        )


def assign_rows(
    children: Sequence[Hypothesis], rows: Sequence[Hypothesis], length: int
) -> tuple[list[Hypothesis], list[Continuation]]:
    """Assigns rows to the hypotheses that run on such that little is copied, and sets their `row`.

    The first child of a hypothesis stays in its row. The other children take the rows whose hypotheses nobody
    continues, then new rows. Where there are fewer children than rows, the search loses its last rows, and children
    in those move.

    Args:
        children: Hypotheses that run on, each one token longer than its parent.
        rows: Hypotheses of the step before by row, the parents among them.
        length: Number of tokens of each hypothesis in `rows`.

    Returns:
        The children by row, and their continuations.
    """
    assigned: list[Hypothesis | None] = [None] * len(children)
    moved: list[Hypothesis] = []
    for child in children:
        assert child.parent is not None
        row = child.parent.row
        if row < len(assigned) and assigned[row] is None:
            child.row = row
            assigned[row] = child
        else:
            moved.append(child)
    if moved:
        free = [row for row, child in enumerate(assigned) if child is None]
        for row, child in zip(free, moved, strict=True):
            child.row = row
            assigned[row] = child

    running: list[Hypothesis] = []
    continuations: list[Continuation] = []
    for row, hypothesis in enumerate(assigned):
        assert hypothesis is not None
        assert hypothesis.parent is not None
        parent = hypothesis.parent
        overwrites = parent.row != row and row < len(rows)
        shared = shared_positions(rows[row], parent, length) if overwrites else 0
        running.append(hypothesis)
        continuations.append(Continuation(parent.row, hypothesis.token, shared))
    return running, continuations


def shared_positions(first: Hypothesis, second: Hypothesis, length: int) -> int:
    """Returns the number of leading cache positions that two hypotheses have in common.

    That is one for the begin token and one for each token before the first difference.

    Args:
        length: Number of tokens of each.
    """
    shared = length + 1
    while first is not second:
        assert first.parent is not None
        assert second.parent is not None
        if first.token != second.token:
            shared = length
        first, second = first.parent, second.parent
        length -= 1
    return shared
