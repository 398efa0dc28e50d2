import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LengthNormalization(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LENGTH_NORMALIZATION_UNSPECIFIED: _ClassVar[LengthNormalization]
    LENGTH_NORMALIZATION_LENGTH: _ClassVar[LengthNormalization]
    LENGTH_NORMALIZATION_GNMT: _ClassVar[LengthNormalization]
    LENGTH_NORMALIZATION_NONE: _ClassVar[LengthNormalization]

class Stopping(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOPPING_UNSPECIFIED: _ClassVar[Stopping]
    STOPPING_EXACT: _ClassVar[Stopping]
    STOPPING_EARLY: _ClassVar[Stopping]
    STOPPING_CURRENT_LENGTH: _ClassVar[Stopping]
    STOPPING_MAX_LENGTH: _ClassVar[Stopping]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_EOS: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_STOP_SEQUENCE: _ClassVar[FinishReason]
    FINISH_REASON_TIME_LIMIT: _ClassVar[FinishReason]
    FINISH_REASON_CANCELLED: _ClassVar[FinishReason]
    FINISH_REASON_DEAD_END: _ClassVar[FinishReason]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BATCH: _ClassVar[Priority]

class Side(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIDE_UNSPECIFIED: _ClassVar[Side]
    SIDE_SOURCE: _ClassVar[Side]
    SIDE_TARGET: _ClassVar[Side]

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]
    MODEL_STATE_RETIRING: _ClassVar[ModelState]
    MODEL_STATE_UNLOADED: _ClassVar[ModelState]
LENGTH_NORMALIZATION_UNSPECIFIED: LengthNormalization
LENGTH_NORMALIZATION_LENGTH: LengthNormalization
LENGTH_NORMALIZATION_GNMT: LengthNormalization
LENGTH_NORMALIZATION_NONE: LengthNormalization
STOPPING_UNSPECIFIED: Stopping
STOPPING_EXACT: Stopping
STOPPING_EARLY: Stopping
STOPPING_CURRENT_LENGTH: Stopping
STOPPING_MAX_LENGTH: Stopping
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_EOS: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_STOP_SEQUENCE: FinishReason
FINISH_REASON_TIME_LIMIT: FinishReason
FINISH_REASON_CANCELLED: FinishReason
FINISH_REASON_DEAD_END: FinishReason
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BATCH: Priority
SIDE_UNSPECIFIED: Side
SIDE_SOURCE: Side
SIDE_TARGET: Side
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_FAILED: ModelState
MODEL_STATE_RETIRING: ModelState
MODEL_STATE_UNLOADED: ModelState

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("text", "token_ids", "source_language", "target_language")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: TokenIds
    source_language: str
    target_language: str
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ...) -> None: ...

class GenerationOptions(_message.Message):
    __slots__ = ("max_new_tokens", "time_limit", "min_new_tokens", "num_hypotheses", "beam_size", "length_normalization", "length_penalty", "coverage_penalty", "early_stopping", "patience", "beam_groups", "diversity_penalty", "sample", "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "prefix", "prefix_bias", "suppressed_tokens", "suppressed_sequences", "repetition_penalty", "no_repeat_ngram_size", "stop_sequences", "include_stop_sequence", "vocabulary", "alternatives", "stopping", "encoder_no_repeat_ngram_size", "use_shortlist")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MIN_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    LENGTH_NORMALIZATION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PENALTY_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    BEAM_GROUPS_FIELD_NUMBER: _ClassVar[int]
    DIVERSITY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PREFIX_BIAS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    ENCODER_NO_REPEAT_NGRAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    USE_SHORTLIST_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    time_limit: _duration_pb2.Duration
    min_new_tokens: int
    num_hypotheses: int
    beam_size: int
    length_normalization: LengthNormalization
    length_penalty: float
    coverage_penalty: float
    early_stopping: bool
    patience: float
    beam_groups: int
    diversity_penalty: float
    sample: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    seed: int
    prefix: Input
    prefix_bias: float
    suppressed_tokens: _containers.RepeatedScalarFieldContainer[int]
    suppressed_sequences: _containers.RepeatedCompositeFieldContainer[Input]
    repetition_penalty: float
    no_repeat_ngram_size: int
    stop_sequences: _containers.RepeatedScalarFieldContainer[str]
    include_stop_sequence: bool
    vocabulary: TokenIds
    alternatives: bool
    stopping: Stopping
    encoder_no_repeat_ngram_size: int
    use_shortlist: bool
    def __init__(self, max_new_tokens: _Optional[int] = ..., time_limit: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., min_new_tokens: _Optional[int] = ..., num_hypotheses: _Optional[int] = ..., beam_size: _Optional[int] = ..., length_normalization: _Optional[_Union[LengthNormalization, str]] = ..., length_penalty: _Optional[float] = ..., coverage_penalty: _Optional[float] = ..., early_stopping: _Optional[bool] = ..., patience: _Optional[float] = ..., beam_groups: _Optional[int] = ..., diversity_penalty: _Optional[float] = ..., sample: _Optional[bool] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., seed: _Optional[int] = ..., prefix: _Optional[_Union[Input, _Mapping]] = ..., prefix_bias: _Optional[float] = ..., suppressed_tokens: _Optional[_Iterable[int]] = ..., suppressed_sequences: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., repetition_penalty: _Optional[float] = ..., no_repeat_ngram_size: _Optional[int] = ..., stop_sequences: _Optional[_Iterable[str]] = ..., include_stop_sequence: _Optional[bool] = ..., vocabulary: _Optional[_Union[TokenIds, _Mapping]] = ..., alternatives: _Optional[bool] = ..., stopping: _Optional[_Union[Stopping, str]] = ..., encoder_no_repeat_ngram_size: _Optional[int] = ..., use_shortlist: _Optional[bool] = ...) -> None: ...

class Details(_message.Message):
    __slots__ = ("tokens", "log_probabilities", "top_tokens", "alignment", "attention")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    tokens: bool
    log_probabilities: bool
    top_tokens: int
    alignment: bool
    attention: bool
    def __init__(self, tokens: _Optional[bool] = ..., log_probabilities: _Optional[bool] = ..., top_tokens: _Optional[int] = ..., alignment: _Optional[bool] = ..., attention: _Optional[bool] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "text", "log_probability", "alternatives")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    log_probability: float
    alternatives: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., log_probability: _Optional[float] = ..., alternatives: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class Attention(_message.Message):
    __slots__ = ("layers", "heads", "target_tokens", "source_tokens", "weights")
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    layers: int
    heads: int
    target_tokens: int
    source_tokens: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, layers: _Optional[int] = ..., heads: _Optional[int] = ..., target_tokens: _Optional[int] = ..., source_tokens: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ...) -> None: ...

class Hypothesis(_message.Message):
    __slots__ = ("text", "finish_reason", "target_tokens", "tokens", "log_probability", "score", "alignment", "attention")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    text: str
    finish_reason: FinishReason
    target_tokens: int
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    log_probability: float
    score: float
    alignment: _containers.RepeatedScalarFieldContainer[int]
    attention: Attention
    def __init__(self, text: _Optional[str] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., target_tokens: _Optional[int] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., log_probability: _Optional[float] = ..., score: _Optional[float] = ..., alignment: _Optional[_Iterable[int]] = ..., attention: _Optional[_Union[Attention, _Mapping]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("model", "input", "options", "details", "priority")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    model: str
    input: Input
    options: GenerationOptions
    details: Details
    priority: Priority
    def __init__(self, model: _Optional[str] = ..., input: _Optional[_Union[Input, _Mapping]] = ..., options: _Optional[_Union[GenerationOptions, _Mapping]] = ..., details: _Optional[_Union[Details, _Mapping]] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("hypotheses", "source_tokens", "model", "model_version", "seed", "source", "unseen_source_tokens")
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    hypotheses: _containers.RepeatedCompositeFieldContainer[Hypothesis]
    source_tokens: int
    model: str
    model_version: str
    seed: int
    source: _containers.RepeatedCompositeFieldContainer[Token]
    unseen_source_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hypotheses: _Optional[_Iterable[_Union[Hypothesis, _Mapping]]] = ..., source_tokens: _Optional[int] = ..., model: _Optional[str] = ..., model_version: _Optional[str] = ..., seed: _Optional[int] = ..., source: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., unseen_source_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateStreamResponse(_message.Message):
    __slots__ = ("text", "tokens", "final", "hypothesis", "progress")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESIS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    final: GenerateResponse
    hypothesis: int
    progress: BeamProgress
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., final: _Optional[_Union[GenerateResponse, _Mapping]] = ..., hypothesis: _Optional[int] = ..., progress: _Optional[_Union[BeamProgress, _Mapping]] = ...) -> None: ...

class BeamProgress(_message.Message):
    __slots__ = ("tokens", "running", "finished")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    tokens: int
    running: int
    finished: int
    def __init__(self, tokens: _Optional[int] = ..., running: _Optional[int] = ..., finished: _Optional[int] = ...) -> None: ...

class GenerateBatchRequest(_message.Message):
    __slots__ = ("model", "inputs", "options", "details", "priority")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    model: str
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    options: GenerationOptions
    details: Details
    priority: Priority
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., options: _Optional[_Union[GenerationOptions, _Mapping]] = ..., details: _Optional[_Union[Details, _Mapping]] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class BatchItem(_message.Message):
    __slots__ = ("response", "error")
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    response: GenerateResponse
    error: _status_pb2.Status
    def __init__(self, response: _Optional[_Union[GenerateResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GenerateBatchResponse(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[BatchItem]
    def __init__(self, items: _Optional[_Iterable[_Union[BatchItem, _Mapping]]] = ...) -> None: ...

class GenerateManyRequest(_message.Message):
    __slots__ = ("defaults", "cancel", "items")
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    defaults: GenerateRequest
    cancel: _containers.RepeatedScalarFieldContainer[str]
    items: _containers.RepeatedCompositeFieldContainer[ManyItem]
    def __init__(self, defaults: _Optional[_Union[GenerateRequest, _Mapping]] = ..., cancel: _Optional[_Iterable[str]] = ..., items: _Optional[_Iterable[_Union[ManyItem, _Mapping]]] = ...) -> None: ...

class ManyItem(_message.Message):
    __slots__ = ("id", "request")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: GenerateRequest
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ...) -> None: ...

class ManyAnswer(_message.Message):
    __slots__ = ("id", "response", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    response: GenerateResponse
    error: _status_pb2.Status
    def __init__(self, id: _Optional[str] = ..., response: _Optional[_Union[GenerateResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class GenerateManyResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[ManyAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[ManyAnswer, _Mapping]]] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model", "input", "targets", "alignment", "attention")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    model: str
    input: Input
    targets: _containers.RepeatedCompositeFieldContainer[Input]
    alignment: bool
    attention: bool
    def __init__(self, model: _Optional[str] = ..., input: _Optional[_Union[Input, _Mapping]] = ..., targets: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., alignment: _Optional[bool] = ..., attention: _Optional[bool] = ...) -> None: ...

class TargetScore(_message.Message):
    __slots__ = ("log_probability", "tokens", "alignment", "attention")
    LOG_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    log_probability: float
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    alignment: _containers.RepeatedScalarFieldContainer[int]
    attention: Attention
    def __init__(self, log_probability: _Optional[float] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., alignment: _Optional[_Iterable[int]] = ..., attention: _Optional[_Union[Attention, _Mapping]] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("scores", "source", "model", "model_version", "unseen_source_tokens")
    SCORES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNSEEN_SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.RepeatedCompositeFieldContainer[TargetScore]
    source: _containers.RepeatedCompositeFieldContainer[Token]
    model: str
    model_version: str
    unseen_source_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, scores: _Optional[_Iterable[_Union[TargetScore, _Mapping]]] = ..., source: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., model: _Optional[str] = ..., model_version: _Optional[str] = ..., unseen_source_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "side", "source_language", "target_language")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    side: Side
    source_language: str
    target_language: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., side: _Optional[_Union[Side, str]] = ..., source_language: _Optional[str] = ..., target_language: _Optional[str] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "token_ids", "side")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: TokenIds
    side: Side
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., side: _Optional[_Union[Side, str]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "version", "description", "license", "precision", "device", "max_source_tokens", "max_target_tokens", "source_vocabulary_size", "target_vocabulary_size", "parameters", "quality", "examples", "decoder_layers", "heads", "limits", "state", "problem", "aliases", "current", "default", "languages", "default_source_language", "default_target_language", "default_options", "origin", "many_window")
    class QualityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LICENSE_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MAX_SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    TARGET_VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    QUALITY_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    DECODER_LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    LANGUAGES_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SOURCE_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TARGET_LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    MANY_WINDOW_FIELD_NUMBER: _ClassVar[int]
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
    quality: _containers.ScalarMap[str, float]
    examples: _containers.RepeatedScalarFieldContainer[str]
    decoder_layers: int
    heads: int
    limits: Limits
    state: ModelState
    problem: str
    aliases: _containers.RepeatedScalarFieldContainer[str]
    current: bool
    default: bool
    languages: _containers.RepeatedCompositeFieldContainer[Language]
    default_source_language: str
    default_target_language: str
    default_options: GenerationOptions
    origin: str
    many_window: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., description: _Optional[str] = ..., license: _Optional[str] = ..., precision: _Optional[str] = ..., device: _Optional[str] = ..., max_source_tokens: _Optional[int] = ..., max_target_tokens: _Optional[int] = ..., source_vocabulary_size: _Optional[int] = ..., target_vocabulary_size: _Optional[int] = ..., parameters: _Optional[int] = ..., quality: _Optional[_Mapping[str, float]] = ..., examples: _Optional[_Iterable[str]] = ..., decoder_layers: _Optional[int] = ..., heads: _Optional[int] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., state: _Optional[_Union[ModelState, str]] = ..., problem: _Optional[str] = ..., aliases: _Optional[_Iterable[str]] = ..., current: _Optional[bool] = ..., default: _Optional[bool] = ..., languages: _Optional[_Iterable[_Union[Language, _Mapping]]] = ..., default_source_language: _Optional[str] = ..., default_target_language: _Optional[str] = ..., default_options: _Optional[_Union[GenerationOptions, _Mapping]] = ..., origin: _Optional[str] = ..., many_window: _Optional[int] = ...) -> None: ...

class Language(_message.Message):
    __slots__ = ("code", "source", "target")
    CODE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    code: str
    source: bool
    target: bool
    def __init__(self, code: _Optional[str] = ..., source: _Optional[bool] = ..., target: _Optional[bool] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("beam_size", "hypotheses", "top_tokens", "stop_sequences", "stop_sequence_characters", "suppressed_sequences", "batch_items", "score_targets", "suppressed_tokens", "attention_weights", "answer_bytes")
    BEAM_SIZE_FIELD_NUMBER: _ClassVar[int]
    HYPOTHESES_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BATCH_ITEMS_FIELD_NUMBER: _ClassVar[int]
    SCORE_TARGETS_FIELD_NUMBER: _ClassVar[int]
    SUPPRESSED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_BYTES_FIELD_NUMBER: _ClassVar[int]
    beam_size: int
    hypotheses: int
    top_tokens: int
    stop_sequences: int
    stop_sequence_characters: int
    suppressed_sequences: int
    batch_items: int
    score_targets: int
    suppressed_tokens: int
    attention_weights: int
    answer_bytes: int
    def __init__(self, beam_size: _Optional[int] = ..., hypotheses: _Optional[int] = ..., top_tokens: _Optional[int] = ..., stop_sequences: _Optional[int] = ..., stop_sequence_characters: _Optional[int] = ..., suppressed_sequences: _Optional[int] = ..., batch_items: _Optional[int] = ..., score_targets: _Optional[int] = ..., suppressed_tokens: _Optional[int] = ..., attention_weights: _Optional[int] = ..., answer_bytes: _Optional[int] = ...) -> None: ...
