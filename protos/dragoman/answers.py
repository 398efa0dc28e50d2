"""Python values from responses."""

from array import array
from collections.abc import Iterable

from dragoman.errors import ItemError, ServerError, from_status
from dragoman.results import (
    Attention,
    BeamProgress,
    FinishReason,
    Hypothesis,
    Limits,
    ModelInfo,
    ModelState,
    Piece,
    RepositoryStatus,
    Result,
    ScoreResult,
    TargetScore,
    Token,
    VersionStatus,
)
from dragoman.v1 import admin_pb2
from dragoman.v1 import generation_pb2 as pb


def result(response: pb.GenerateResponse) -> Result:
    """An answer.

    Raises:
        ServerError: it has no hypothesis, or an attention that is not whole.
    """
    if not response.hypotheses:
        raise ServerError("the server's answer has no hypothesis", code="INTERNAL")
    return Result(
        hypotheses=tuple(map(_hypothesis, response.hypotheses)),
        source_tokens=response.source_tokens,
        model=response.model,
        model_version=response.model_version,
        seed=response.seed if response.HasField("seed") else None,
        source=tokens(response.source),
        unseen_source_tokens=tuple(response.unseen_source_tokens),
    )


def piece(message: pb.GenerateStreamResponse) -> tuple[Piece, Result | None]:
    """A part of a stream; with the last one comes the result."""
    progress = None
    if message.HasField("progress"):
        progress = BeamProgress(message.progress.tokens, message.progress.running, message.progress.finished)
    part = Piece(message.text, tokens(message.tokens), message.hypothesis, progress)
    return part, result(message.final) if message.HasField("final") else None


def item(index: int, answer: pb.BatchItem) -> Result | ItemError:
    """What became of one source of a batch."""
    if answer.WhichOneof("result") == "error":
        return ItemError(index, from_status(answer.error))
    return result(answer.response)


def scores(response: pb.ScoreResponse, targets: int) -> ScoreResult:
    """The scores of so many targets.

    Raises:
        ServerError: there are more or fewer, or an attention is not whole.
    """
    if len(response.scores) != targets:
        raise ServerError(f"the server scored {len(response.scores)} of {targets} targets", code="INTERNAL")
    return ScoreResult(
        scores=tuple(
            TargetScore(
                log_probability=each.log_probability,
                tokens=tokens(each.tokens),
                alignment=tuple(each.alignment),
                attention=_attention(each.attention) if each.HasField("attention") else None,
            )
            for each in response.scores
        ),
        source=tokens(response.source),
        model=response.model,
        model_version=response.model_version,
        unseen_source_tokens=tuple(response.unseen_source_tokens),
    )


def tokens(messages: Iterable[pb.Token]) -> tuple[Token, ...]:
    return tuple(
        Token(
            each.id,
            each.text,
            each.log_probability if each.HasField("log_probability") else None,
            tokens(each.alternatives),
        )
        for each in messages
    )


def model(message: pb.Model) -> ModelInfo:
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
        state=_state(message.state) if message.state else ModelState.READY,  # unsaid by servers of before
        problem=message.problem,
        aliases=tuple(message.aliases),
        current=message.current,
        default=message.default,
    )


def version(message: admin_pb2.VersionStatus) -> VersionStatus:
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


def repository(message: admin_pb2.RepositoryStatus) -> RepositoryStatus:
    return RepositoryStatus(message.path, message.problem, tuple(map(version, message.versions)))


def _state(value: int) -> ModelState:
    try:
        return ModelState(pb.ModelState.Name(value).removeprefix("MODEL_STATE_"))
    except ValueError:
        return ModelState.UNSPECIFIED


def _hypothesis(message: pb.Hypothesis) -> Hypothesis:
    return Hypothesis(
        text=message.text,
        finish_reason=_finish_reason(message.finish_reason),
        target_tokens=message.target_tokens,
        tokens=tokens(message.tokens),
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
        raise ServerError(f"the server's answer is not whole: {error}", code="INTERNAL") from None


def _finish_reason(value: int) -> FinishReason:
    try:
        return FinishReason(pb.FinishReason.Name(value).removeprefix("FINISH_REASON_"))
    except ValueError:
        return FinishReason.UNSPECIFIED
