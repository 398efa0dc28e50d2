"""Answers, as the client returns them: results, streamed pieces and scores."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from math import prod


class FinishReason(StrEnum):
    """Why an answer ended."""

    UNSPECIFIED = "UNSPECIFIED"  # a reason that is newer than this client
    EOS = "EOS"  # the model generated the end token
    LENGTH = "LENGTH"  # max_new_tokens were generated
    STOP_SEQUENCE = "STOP_SEQUENCE"  # a stop sequence was generated
    TIME_LIMIT = "TIME_LIMIT"  # the time limit passed; the text is incomplete
    CANCELLED = "CANCELLED"  # the server cancelled the request
    DEAD_END = "DEAD_END"  # the constraints allowed no further token


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a vocabulary.

    Attributes:
        id: Id in the vocabulary.
        text: Text of the token, as it is in the vocabulary.
        log_probability: Natural logarithm of its probability, if requested; None for tokens of a prefix.
        alternatives: The most probable tokens at its position, best first, if `top_tokens` was set.
    """

    id: int
    text: str
    log_probability: float | None = None
    alternatives: tuple["Token", ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Attention:
    """Cross-attention weights of a target over its source, for every layer and head of the decoder.

    Attributes:
        layers: Number of decoder layers.
        heads: Number of attention heads of one layer.
        target_tokens: Number of target positions: the target's tokens and the end token or, if the answer was cut, the
            token that would have come next. The weights of a token are those of the step that chose it.
        source_tokens: Number of source tokens that the model read.
        weights: Attention weights, flat in the order of `shape`; those of one target token over the source sum to 1.
            An array of 32-bit floats: `numpy.asarray(attention.weights).reshape(attention.shape)` does not copy it.

    Raises:
        ValueError: The number of weights does not match the shape.
    """

    layers: int
    heads: int
    target_tokens: int
    source_tokens: int
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.weights) != prod(self.shape):
            raise ValueError(f"attention: expected {self.shape} weights, got {len(self.weights)} of them")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(layers, heads, target_tokens, source_tokens)."""
        return self.layers, self.heads, self.target_tokens, self.source_tokens

    def matrix(self, layer: int, head: int) -> list[list[float]]:
        """Returns the weights of one head as [target_tokens][source_tokens].

        Args:
            layer: Index of the layer; negative indices count from the last layer.
            head: Index of the head, likewise.

        Raises:
            IndexError: There is no such layer or head.
        """
        first = range(self.layers)[layer] * self.heads + range(self.heads)[head]
        starts = range(first * self.target_tokens * self.source_tokens, len(self.weights), self.source_tokens or 1)
        return [list(self.weights[start : start + self.source_tokens]) for start in starts[: self.target_tokens]]

    def mean(self, layer: int | None = None, head: int | None = None) -> list[list[float]]:
        """Returns the mean over layers and heads as [target_tokens][source_tokens].

        Args:
            layer: Only this layer, indexed as in `matrix`; None for all layers.
            head: Only this head; None for all heads.

        Raises:
            IndexError: There is no such layer or head.
        """
        layers = range(self.layers) if layer is None else (layer,)
        heads = range(self.heads) if head is None else (head,)
        matrices = [self.matrix(*indices) for indices in product(layers, heads)]
        return [
            [sum(weights) / len(matrices) for weights in zip(*rows, strict=True)]
            for rows in zip(*matrices, strict=True)
        ]

    def tolist(self) -> list[list[list[list[float]]]]:
        """Returns all weights as nested lists, [layer][head][target token][source token]."""
        return [[self.matrix(layer, head) for head in range(self.heads)] for layer in range(self.layers)]

    def __repr__(self) -> str:
        return f"Attention(shape={self.shape})"


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One generated target.

    Attributes:
        text: Generated text, the prefix included.
        finish_reason: Why generation ended.
        target_tokens: Number of tokens, those of a prefix included, the end token not counted.
        tokens: The tokens, if requested; log-probabilities, alignment and attention imply them. A stop sequence may end
            within the last token.
        log_probability: Sum of the log-probabilities of all generated tokens, the end token included if the model
            generated it; None unless requested.
        score: Value by which hypotheses are ranked: for beam search `log_probability` with length normalization and
            penalties. None unless `log_probabilities` was set.
        alignment: For each token, the index of the source token with the highest attention; empty unless requested.
        attention: All attention weights; None unless requested.
    """

    text: str
    finish_reason: FinishReason
    target_tokens: int
    tokens: tuple[Token, ...] = ()
    log_probability: float | None = None
    score: float | None = None
    alignment: tuple[int, ...] = ()
    attention: Attention | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one source. `text` and the other properties are those of the best hypothesis.

    Attributes:
        hypotheses: At least one hypothesis, best first; samples in the order in which they were drawn.
        source_tokens: Number of tokens that the model read, the end token included.
        model: Name of the model that answered.
        model_version: Version of the model.
        seed: Seed that sampling used; None without sampling.
        source: Tokens that the model read, if `alignment` or `attention` was set.
        unseen_source_tokens: Indices of source tokens that do not occur in the model's training data, such as the bytes
            of an emoji. The answer to them is a guess.
    """

    hypotheses: tuple[Hypothesis, ...]
    source_tokens: int
    model: str
    seed: int | None = None
    source: tuple[Token, ...] = ()
    model_version: str = ""
    unseen_source_tokens: tuple[int, ...] = ()

    @property
    def best(self) -> Hypothesis:
        """The first hypothesis."""
        return self.hypotheses[0]

    @property
    def text(self) -> str:
        """Text of the best hypothesis."""
        return self.best.text

    @property
    def finish_reason(self) -> FinishReason:
        """Why the best hypothesis ended."""
        return self.best.finish_reason

    @property
    def target_tokens(self) -> int:
        """Number of tokens of the best hypothesis."""
        return self.best.target_tokens

    @property
    def tokens(self) -> tuple[Token, ...]:
        """Tokens of the best hypothesis, if requested."""
        return self.best.tokens

    @property
    def log_probability(self) -> float | None:
        """Log-probability of the best hypothesis, if requested."""
        return self.best.log_probability

    @property
    def score(self) -> float | None:
        """Score of the best hypothesis, if requested."""
        return self.best.score

    @property
    def alignment(self) -> tuple[int, ...]:
        """Alignment of the best hypothesis, if requested."""
        return self.best.alignment

    @property
    def attention(self) -> Attention | None:
        """Attention of the best hypothesis, if requested."""
        return self.best.attention


@dataclass(frozen=True, slots=True)
class BeamProgress:
    """Progress of a beam search.

    Attributes:
        tokens: Number of tokens of the running hypotheses, the prefix not counted.
        running: Number of running hypotheses.
        finished: Number of finished hypotheses.
    """

    tokens: int
    running: int
    finished: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a streamed answer.

    Attributes:
        text: Text to append to the hypothesis; may be empty. Beam search sends each text as a whole at the end, the
            best hypothesis first.
        tokens: Tokens that were decided since the last piece, if requested.
        hypothesis: Index of the hypothesis, in the order of the result.
        progress: Progress of a beam search that is still running.
    """

    text: str
    tokens: tuple[Token, ...] = ()
    hypothesis: int = 0
    progress: BeamProgress | None = None


@dataclass(frozen=True, slots=True)
class TargetScore:
    """The score of a given target.

    Attributes:
        log_probability: Sum of the log-probabilities of all tokens, the end token included.
        tokens: The tokens with their log-probabilities; the end token is the last.
        alignment: For each token, the index of the source token with the highest attention; empty unless requested.
        attention: All attention weights; None unless requested.
    """

    log_probability: float
    tokens: tuple[Token, ...]
    alignment: tuple[int, ...] = ()
    attention: Attention | None = None


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """The scores of the targets of one source.

    Attributes:
        scores: One score per target, in order.
        source: Tokens that the model read.
        model: Name of the model that answered.
        model_version: Version of the model.
        unseen_source_tokens: See Result.
    """

    scores: tuple[TargetScore, ...]
    source: tuple[Token, ...]
    model: str
    model_version: str = ""
    unseen_source_tokens: tuple[int, ...] = ()
