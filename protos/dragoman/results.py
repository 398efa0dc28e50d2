"""The types that the client returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product
from math import prod
from typing import Any


class FinishReason(StrEnum):
    """Why an answer ended."""

    UNSPECIFIED = "UNSPECIFIED"  # a reason that is newer than this client
    EOS = "EOS"  # the model generated the end token
    LENGTH = "LENGTH"  # max_new_tokens were generated
    STOP_SEQUENCE = "STOP_SEQUENCE"  # a stop sequence was generated
    TIME_LIMIT = "TIME_LIMIT"  # the time limit passed; the text is incomplete
    CANCELLED = "CANCELLED"  # the server cancelled the request
    DEAD_END = "DEAD_END"  # the constraints allowed no further token


class HealthStatus(StrEnum):
    """Health of a service, as reported by the server (grpc.health.v1)."""

    UNKNOWN = "UNKNOWN"
    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    SERVICE_UNKNOWN = "SERVICE_UNKNOWN"  # the server has no such service


class ModelState(StrEnum):
    """State of one version of a model."""

    UNSPECIFIED = "UNSPECIFIED"  # a state that is newer than this client
    READY = "READY"
    LOADING = "LOADING"
    FAILED = "FAILED"  # it cannot be loaded; see `problem`
    RETIRING = "RETIRING"  # it takes no new requests and finishes running ones
    UNLOADED = "UNLOADED"  # it is in the repository, but not loaded


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


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum values of one request; 0 if the server does not report one.

    Attributes:
        beam_size: Maximum `beam_size`, and so of the hypotheses that beam search returns.
        hypotheses: Maximum `num_hypotheses` of sampling and alternatives; for alternatives by beam search, maximum of
            `num_hypotheses * beam_size`.
        top_tokens: Maximum `top_tokens`.
        stop_sequences: Maximum number of stop sequences.
        stop_sequence_characters: Maximum length of one stop sequence.
        suppressed_sequences: Maximum number of suppressed sequences.
        suppressed_tokens: Maximum number of suppressed tokens.
        batch_items: Maximum number of sources of one `generate_batch` call.
        score_targets: Maximum number of targets of one `score` call.
        attention_weights: Maximum number of attention weights in one answer.
        answer_bytes: Maximum size of one response in bytes; requests that could exceed it are refused.
    """

    beam_size: int = 0
    hypotheses: int = 0
    top_tokens: int = 0
    stop_sequences: int = 0
    stop_sequence_characters: int = 0
    suppressed_sequences: int = 0
    suppressed_tokens: int = 0
    batch_items: int = 0
    score_targets: int = 0
    attention_weights: int = 0
    answer_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Language:
    """A language of a model: its code, and whether it can be that of a source and that of a target."""

    code: str
    source: bool
    target: bool


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One version of a model on a server. If it is not ready, only name, version, state, problem and aliases are known.

    Attributes:
        name: Name of the model.
        version: Name of the version.
        description: Description from the manifest.
        license: License from the manifest.
        precision: Precision of the weights, such as "fp32" or "int8".
        device: Device that runs the model, such as "cpu" or "cuda:0".
        max_source_tokens: Maximum length of a source in tokens, the end token included.
        max_target_tokens: Maximum length of a target in tokens, the end token not counted.
        source_vocabulary_size: Number of tokens in the source vocabulary.
        target_vocabulary_size: Number of tokens in the target vocabulary.
        parameters: Number of weights of the model.
        quality: Quality measured at export, by metric.
        examples: Example sources.
        decoder_layers: Number of decoder layers.
        heads: Number of attention heads of one decoder layer.
        limits: Maximum values of one request.
        state: Whether the version answers.
        problem: Why the version is not ready; empty otherwise.
        aliases: Names that may replace the version in NAME@VERSION.
        current: Whether requests for NAME without a version use this version.
        default: Whether requests without a model use this version.
        languages: Languages that requests can name; empty if there is no choice.
        default_source_language, default_target_language: Languages of requests that name none; empty for none.
        default_options: Options of requests that do not set them, under the names of GenerateOptions.
        origin: Where an imported model comes from; empty for others.
    """

    name: str
    version: str
    description: str
    license: str
    precision: str
    device: str
    max_source_tokens: int
    max_target_tokens: int
    source_vocabulary_size: int
    target_vocabulary_size: int
    parameters: int
    quality: dict[str, float]
    examples: tuple[str, ...]
    decoder_layers: int = 0
    heads: int = 0
    limits: Limits = Limits()
    state: ModelState = ModelState.READY
    problem: str = ""
    aliases: tuple[str, ...] = ()
    current: bool = False
    default: bool = False
    languages: tuple[Language, ...] = ()
    default_source_language: str = ""
    default_target_language: str = ""
    default_options: dict[str, Any] = field(default_factory=dict)
    origin: str = ""


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """Status of one version of a model, for administrators.

    Attributes:
        model: Name of the model.
        version: Name of the version.
        state: Whether the version answers.
        problem: Why the version is not ready, or why its changed files were not loaded; empty otherwise.
        aliases: See ModelInfo.
        current: See ModelInfo.
        default: See ModelInfo.
        held: Whether an administrator unloaded the version.
        calls: Number of calls in progress.
        load_seconds: Seconds that loading took.
        cache_bytes: Size of the cache pools of all engines, in bytes.
        engines: Number of engines.
        threads_per_engine: Number of CPU threads of each engine.
        device: Device that runs the model.
    """

    model: str
    version: str
    state: ModelState
    problem: str = ""
    aliases: tuple[str, ...] = ()
    current: bool = False
    default: bool = False
    held: bool = False
    calls: int = 0
    load_seconds: float = 0.0
    cache_bytes: int = 0
    engines: int = 0
    threads_per_engine: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True)
class RepositoryStatus:
    """Status of a model repository, for administrators.

    Attributes:
        path: Path of the repository on the server.
        problem: What is wrong with the repository as a whole; empty otherwise.
        versions: All versions, by model, the latest first.
    """

    path: str
    problem: str
    versions: tuple[VersionStatus, ...]
