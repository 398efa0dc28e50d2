"""What a server says of itself and of its models: health, models, versions and their limits."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
