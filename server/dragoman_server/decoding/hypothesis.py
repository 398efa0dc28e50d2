"""Hypotheses of a beam search, as a tree: each is its last token and the hypothesis that it continues."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, HypothesisResult, TokenChoice
from dragoman_server.core.search import LogitEdits
from dragoman_server.decoding.stop_sequences import StopTracker


class Hypothesis:
    """One token and what came before it. The root of the tree has no token, and no parent.

    Attributes:
        token: its last token.
        parent: the hypothesis without it.
        log_probability: of the token; 0 for a forced one.
        total: sum of the log-probabilities of its tokens.
        row: its place among the rows of its search, while it runs.
        ids: all its tokens, where the constraints must know them; else None.
        edits: made before its step, if any.
        top: the most probable tokens that its step found, best first, and their log-probabilities; where asked for.
        coverage: attention that each source token got from its step and those before; where that counts: [source].
        stops: looks for stop sequences in its text, where there are any to look for.
    """

    __slots__ = ("coverage", "edits", "ids", "log_probability", "parent", "row", "stops", "token", "top", "total")

    def __init__(self, parent: Hypothesis | None, token: int, log_probability: float, total: float) -> None:
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

    def path(self) -> list[Hypothesis]:
        """From its first token to its last."""
        path: list[Hypothesis] = []
        hypothesis = self
        while hypothesis.parent is not None:
            path.append(hypothesis)
            hypothesis = hypothesis.parent
        path.reverse()
        return path


class Finished(NamedTuple):
    """A hypothesis that goes on no more. Where the reason is EOS, its last token is the end token."""

    score: float
    hypothesis: Hypothesis
    reason: FinishReason
    characters: int | None

    def ids(self) -> list[int]:
        """Its tokens without the end token."""
        ids = [hypothesis.token for hypothesis in self.hypothesis.path()]
        return ids[:-1] if self.reason is FinishReason.EOS else ids

    def result(self, prefix: int, top_tokens: int) -> HypothesisResult:
        """As part of an answer.

        Args:
            prefix: how many of its tokens were forced.
            top_tokens: alternatives to tell at each place, those that may not be chosen left out.
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
