"""The calls of the service: how to build each request and parse its response. Pure; both clients share it."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from google.protobuf import json_format

from dragoman import requests
from dragoman.errors import ItemError, ServerError, from_status
from dragoman.models import (
    Language,
    Limits,
    ModelInfo,
    ModelState,
    RepositoryStatus,
    VersionStatus,
)
from dragoman.requests import Side, Source, Target
from dragoman.results import (
    Attention,
    BeamProgress,
    FinishReason,
    Hypothesis,
    Piece,
    Result,
    ScoreResult,
    TargetScore,
    Token,
)
from dragoman.v1 import admin_pb2
from dragoman.v1 import generation_pb2 as pb

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One call.

    Attributes:
        method: Name of the method.
        request: The request message.
        parse: Converts the response message.
        service: The service that has the method.
    """

    method: str
    request: Any
    parse: Callable[[Any], Answer]
    service: Literal["generation", "admin"] = "generation"


def generate(source: Source, **options: Any) -> Call[Result]:
    """Builds a Generate call from GenerateOptions.

    Raises:
        ValueError: A text has a lone surrogate, or a number does not fit its field.
        TypeError: The source is neither text nor ids, or there is no such option.
    """
    fields = requests.request_fields(**options)
    request = pb.GenerateRequest(input=requests.source_message(source, options), **fields)
    return Call("Generate", request, result)


def generate_stream(source: Source, **options: Any) -> Call[tuple[Piece, Result | None]]:
    """Builds a GenerateStream call; the last message has the result. Arguments and errors are those of `generate`."""
    return Call("GenerateStream", generate(source, **options).request, _piece)


def many_fields(**options: Any) -> dict[str, Any]:
    """Returns the fields of GenerateRequest that all sources of generate_many share. Errors are those of `generate`."""
    fields = requests.request_fields(**options)
    return fields if fields["priority"] is not None else {**fields, "priority": pb.PRIORITY_BATCH}


def generate_one(source: pb.Input, fields: dict[str, Any]) -> Call[Result]:
    """Builds the Generate call of one source of generate_many."""
    return Call("Generate", pb.GenerateRequest(input=source, **fields), result)


def score(
    source: Source, targets: Iterable[Target], *, model: str, alignment: bool, attention: bool, **languages: str | None
) -> Call[ScoreResult]:
    """Builds a Score call. Errors are those of `generate`."""
    request = pb.ScoreRequest(
        model=requests.text(model, "model"),
        input=requests.source_message(source, languages),
        targets=requests.input_messages(targets, "targets"),
        alignment=requests.flag(alignment, "alignment"),
        attention=requests.flag(attention, "attention"),
    )
    return Call("Score", request, lambda response: _score_result(response, len(request.targets)))


def tokenize(text: str, *, model: str, side: Side, **languages: str | None) -> Call[list[Token]]:
    source = requests.source_message(text, languages)
    request = pb.TokenizeRequest(model=requests.text(model, "model"), text=source.text, side=requests.side(side))
    for name in languages:
        if source.HasField(name):
            setattr(request, name, getattr(source, name))
    return Call("Tokenize", request, lambda response: list(_tokens(response.tokens)))


def detokenize(ids: Sequence[int], *, model: str, side: Side) -> Call[str]:
    request = pb.DetokenizeRequest(
        model=requests.text(model, "model"),
        token_ids=pb.TokenIds(ids=requests.token_ids(ids, "token_ids")),
        side=requests.side(side),
    )
    return Call("Detokenize", request, lambda response: str(response.text))


def models() -> Call[list[ModelInfo]]:
    return Call("ListModels", pb.ListModelsRequest(), lambda response: list(map(_model, response.models)))


def model(name: str) -> Call[ModelInfo]:
    request = pb.GetModelRequest(model=requests.text(name, "model"))
    return Call("GetModel", request, lambda response: _model(response.model))


def load_model(name: str, *, again: bool) -> Call[list[VersionStatus]]:
    request = admin_pb2.LoadModelRequest(model=requests.text(name, "name"), again=requests.flag(again, "again"))
    return Call("LoadModel", request, _versions, "admin")


def unload_model(name: str) -> Call[list[VersionStatus]]:
    return Call("UnloadModel", admin_pb2.UnloadModelRequest(model=requests.text(name, "name")), _versions, "admin")


def reload_repository() -> Call[RepositoryStatus]:
    return Call("ReloadRepository", admin_pb2.ReloadRepositoryRequest(), _repository, "admin")


def repository_status() -> Call[RepositoryStatus]:
    return Call("GetStatus", admin_pb2.GetStatusRequest(), _repository, "admin")


def batch_outcome(index: int, item: pb.BatchItem) -> Result | ItemError:
    """Returns the result or the error of one batch item."""
    if item.WhichOneof("result") == "error":
        return ItemError(index, from_status(item.error))
    return result(item.response)


def result(response: pb.GenerateResponse) -> Result:
    """Returns the result in a response.

    Raises:
        ServerError: The response has no hypothesis, or the attention is incomplete.
    """
    if not response.hypotheses:
        raise ServerError("the server's answer has no hypothesis", code="INTERNAL")
    return Result(
        hypotheses=tuple(map(_hypothesis, response.hypotheses)),
        source_tokens=response.source_tokens,
        model=response.model,
        model_version=response.model_version,
        seed=response.seed if response.HasField("seed") else None,
        source=_tokens(response.source),
        unseen_source_tokens=tuple(response.unseen_source_tokens),
    )


def _piece(message: pb.GenerateStreamResponse) -> tuple[Piece, Result | None]:
    """Returns a piece of a stream, and the result if the message is the last one."""
    progress = None
    if message.HasField("progress"):
        progress = BeamProgress(message.progress.tokens, message.progress.running, message.progress.finished)
    piece = Piece(message.text, _tokens(message.tokens), message.hypothesis, progress)
    return piece, result(message.final) if message.HasField("final") else None


def _score_result(response: pb.ScoreResponse, targets: int) -> ScoreResult:
    """Returns the scores in a response.

    Raises:
        ServerError: The number of scores is not `targets`, or the attention is incomplete.
    """
    if len(response.scores) != targets:
        raise ServerError(f"the server scored {len(response.scores)} of {targets} targets", code="INTERNAL")
    return ScoreResult(
        scores=tuple(
            TargetScore(
                log_probability=message.log_probability,
                tokens=_tokens(message.tokens),
                alignment=tuple(message.alignment),
                attention=_attention(message.attention) if message.HasField("attention") else None,
            )
            for message in response.scores
        ),
        source=_tokens(response.source),
        model=response.model,
        model_version=response.model_version,
        unseen_source_tokens=tuple(response.unseen_source_tokens),
    )


def _tokens(messages: Iterable[pb.Token]) -> tuple[Token, ...]:
    return tuple(
        Token(
            message.id,
            message.text,
            message.log_probability if message.HasField("log_probability") else None,
            _tokens(message.alternatives),
        )
        for message in messages
    )


def _hypothesis(message: pb.Hypothesis) -> Hypothesis:
    return Hypothesis(
        text=message.text,
        finish_reason=_finish_reason(message.finish_reason),
        target_tokens=message.target_tokens,
        tokens=_tokens(message.tokens),
        log_probability=message.log_probability if message.HasField("log_probability") else None,
        score=message.score if message.HasField("score") else None,
        alignment=tuple(message.alignment),
        attention=_attention(message.attention) if message.HasField("attention") else None,
    )


def _attention(message: pb.Attention) -> Attention:
    try:
        return Attention(
            layers=message.layers,
            heads=message.heads,
            target_tokens=message.target_tokens,
            source_tokens=message.source_tokens,
            weights=array("f", message.weights),
        )
    except ValueError as error:
        raise ServerError(f"the server's answer is incomplete: {error}", code="INTERNAL") from None


def _finish_reason(value: int) -> FinishReason:
    try:
        return FinishReason(pb.FinishReason.Name(value).removeprefix("FINISH_REASON_"))
    except ValueError:
        return FinishReason.UNSPECIFIED


def _model(message: pb.Model) -> ModelInfo:
    limits = message.limits
    return ModelInfo(
        name=message.name,
        version=message.version,
        description=message.description,
        license=message.license,
        precision=message.precision,
        device=message.device,
        max_source_tokens=message.max_source_tokens,
        max_target_tokens=message.max_target_tokens,
        source_vocabulary_size=message.source_vocabulary_size,
        target_vocabulary_size=message.target_vocabulary_size,
        parameters=message.parameters,
        quality=dict(message.quality),
        examples=tuple(message.examples),
        decoder_layers=message.decoder_layers,
        heads=message.heads,
        limits=Limits(
            beam_size=limits.beam_size,
            hypotheses=limits.hypotheses,
            top_tokens=limits.top_tokens,
            stop_sequences=limits.stop_sequences,
            stop_sequence_characters=limits.stop_sequence_characters,
            suppressed_sequences=limits.suppressed_sequences,
            suppressed_tokens=limits.suppressed_tokens,
            batch_items=limits.batch_items,
            score_targets=limits.score_targets,
            attention_weights=limits.attention_weights,
            answer_bytes=limits.answer_bytes,
        ),
        state=_state(message.state) if message.state else ModelState.READY,  # absent from older servers
        problem=message.problem,
        aliases=tuple(message.aliases),
        current=message.current,
        default=message.default,
        languages=tuple(Language(each.code, each.source, each.target) for each in message.languages),
        default_source_language=message.default_source_language,
        default_target_language=message.default_target_language,
        default_options=_options(message.default_options),
        origin=message.origin,
    )


def _options(message: pb.GenerationOptions) -> dict[str, Any]:
    """Returns options as Python values, under the names of GenerateOptions."""
    found = json_format.MessageToDict(message, preserving_proto_field_name=True)
    if "stopping" in found:
        found["stopping"] = found["stopping"].removeprefix("STOPPING_").lower()
    return found


def _versions(response: admin_pb2.LoadModelResponse | admin_pb2.UnloadModelResponse) -> list[VersionStatus]:
    return list(map(_version, response.versions))


def _repository(response: admin_pb2.ReloadRepositoryResponse | admin_pb2.GetStatusResponse) -> RepositoryStatus:
    status = response.status
    return RepositoryStatus(status.path, status.problem, tuple(map(_version, status.versions)))


def _version(message: admin_pb2.VersionStatus) -> VersionStatus:
    return VersionStatus(
        model=message.model,
        version=message.version,
        state=_state(message.state),
        problem=message.problem,
        aliases=tuple(message.aliases),
        current=message.current,
        default=message.default,
        held=message.held,
        calls=message.calls,
        load_seconds=message.load_seconds,
        cache_bytes=message.cache_bytes,
        engines=message.engines,
        threads_per_engine=message.threads_per_engine,
        device=message.device,
    )


def _state(value: int) -> ModelState:
    try:
        return ModelState(pb.ModelState.Name(value).removeprefix("MODEL_STATE_"))
    except ValueError:
        return ModelState.UNSPECIFIED
