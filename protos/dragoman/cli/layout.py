"""How answers and scores look: as lines with tabs between columns, or as JSON. What was not asked for is left out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from dragoman.cli.output import one_line
from dragoman.options import GenerateOptions
from dragoman.results import Attention, Hypothesis, Piece, Result, ScoreResult, TargetScore, Token

_ATTENTION_DECIMALS = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """What answers to GenerateOptions show.

    Attributes:
        several: whether more than one hypothesis was asked for: each has a line of its own.
    """

    several: bool
    tokens: bool
    log_probabilities: bool
    alignment: bool
    attention: bool

    @classmethod
    def of(cls, options: GenerateOptions) -> Self:
        return cls(
            several=(options.get("num_hypotheses") or 1) > 1,
            tokens=bool(options.get("tokens")),
            log_probabilities=bool(options.get("log_probabilities") or options.get("top_tokens")),
            alignment=bool(options.get("alignment")),
            attention=bool(options.get("attention")),
        )

    def lines(self, result: Result) -> str:
        """The answer's line, or the lines of its hypotheses, with their ends."""
        if not self.several:
            return f"{one_line(result.text)}{self.columns(result.best)}\n"
        return "".join(
            f"{index}\t{_number(each.score)}\t{one_line(each.text)}{self.columns(each)}\n"
            for index, each in enumerate(result.hypotheses, 1)
        )

    def columns(self, hypothesis: Hypothesis) -> str:
        """What follows the text on its line."""
        parts = [""]
        if self.log_probabilities:
            parts.append(_number(hypothesis.log_probability))
        if self.tokens or self.log_probabilities:
            parts.append(" ".join(_shown(each, self.log_probabilities) for each in hypothesis.tokens))
        if self.alignment:
            parts.append(_pairs(hypothesis.alignment))
        return "\t".join(map(one_line, parts))

    def object(self, result: Result) -> dict[str, Any]:
        """The answer for JSON."""
        if self.several:
            shown: dict[str, Any] = {"hypotheses": [self._hypothesis(each) for each in result.hypotheses]}
        else:
            shown = self._hypothesis(result.best)
        shown |= {"source_tokens": result.source_tokens, "model": result.model}
        if result.seed is not None:
            shown["seed"] = result.seed
        if result.unseen_source_tokens:
            shown["unseen_source_tokens"] = result.unseen_source_tokens
        if self.alignment or self.attention:
            shown["source"] = self._tokens(result.source)
        return shown

    def piece(self, piece: Piece) -> dict[str, Any]:
        """A part of a streamed answer for JSON."""
        if piece.progress is not None and not piece.text:
            progress = piece.progress
            return {"progress": {"tokens": progress.tokens, "running": progress.running, "finished": progress.finished}}
        shown: dict[str, Any] = {"piece": piece.text}
        if self.several:
            shown["hypothesis"] = piece.hypothesis
        if piece.tokens and (self.tokens or self.log_probabilities):
            shown["tokens"] = self._tokens(piece.tokens)
        return shown

    def _hypothesis(self, hypothesis: Hypothesis) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "text": hypothesis.text,
            "finish_reason": hypothesis.finish_reason.value,
            "target_tokens": hypothesis.target_tokens,
        }
        if self.log_probabilities:
            shown["log_probability"] = hypothesis.log_probability
        if self.log_probabilities or self.several:
            shown["score"] = hypothesis.score
        if self.tokens or self.log_probabilities or self.alignment or self.attention:
            shown["tokens"] = self._tokens(hypothesis.tokens)
        if self.alignment:
            shown["alignment"] = hypothesis.alignment
        if self.attention and hypothesis.attention is not None:
            shown["attention"] = _nested(hypothesis.attention)
        return shown

    def _tokens(self, tokens: Sequence[Token]) -> list[dict[str, Any]]:
        return token_objects(tokens, log_probabilities=self.log_probabilities)


def score_columns(target: str, found: TargetScore, *, tokens: bool) -> list[str]:
    """A target's columns: its log-probability, itself, and its tokens and alignment, where they were asked for."""
    parts = [_number(found.log_probability), target]
    if tokens:
        parts.append(" ".join(_shown(each, True) for each in found.tokens))
    if found.alignment:
        parts.append(_pairs(found.alignment))
    return parts


def scores_object(targets: Sequence[str], result: ScoreResult) -> dict[str, Any]:
    """The scores of the targets for JSON."""
    scores = []
    for target, found in zip(targets, result.scores, strict=True):
        shown: dict[str, Any] = {
            "target": target,
            "log_probability": found.log_probability,
            "tokens": token_objects(found.tokens),
        }
        if found.alignment:
            shown["alignment"] = found.alignment
        if found.attention is not None:
            shown["attention"] = _nested(found.attention)
        scores.append(shown)
    shown = {"scores": scores, "source": token_objects(result.source), "model": result.model}
    if result.unseen_source_tokens:
        shown["unseen_source_tokens"] = result.unseen_source_tokens
    return shown


def token_objects(tokens: Sequence[Token], *, log_probabilities: bool = True) -> list[dict[str, Any]]:
    """Tokens for JSON."""
    objects = []
    for token in tokens:
        shown: dict[str, Any] = {"id": token.id, "text": token.text}
        if log_probabilities and token.log_probability is not None:
            shown["log_probability"] = token.log_probability
        if token.alternatives:
            shown["alternatives"] = token_objects(token.alternatives)
        objects.append(shown)
    return objects


def _nested(attention: Attention) -> list[list[list[list[float]]]]:
    """[layer][head][target token][source token]"""
    return [
        [[[round(share, _ATTENTION_DECIMALS) for share in row] for row in matrix] for matrix in layer]
        for layer in attention.tolist()
    ]


def _pairs(alignment: Sequence[int]) -> str:
    return " ".join(f"{source}-{target}" for target, source in enumerate(alignment))


def _shown(token: Token, log_probabilities: bool) -> str:
    if not log_probabilities or token.log_probability is None:
        return token.text
    others = [each for each in token.alternatives if each.id != token.id]
    return "|".join(f"{each.text}({_number(each.log_probability)})" for each in [token, *others])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
