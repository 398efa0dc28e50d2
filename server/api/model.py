"""A model as the service sees it: text or ids to a request for its engines, and their answer to a message."""

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from dragoman.v1 import generation_pb2 as pb
from server.api.errors import invalid
from server.api.text import SourceEncoder
from server.bundle.load import Bundle
from server.engine.requests import Finished, FinishReason, GenerationRequest, HypothesisResult, Progress
from server.text.stream import TargetDecoder

FINISH_REASONS = {reason: getattr(pb, f"FINISH_REASON_{reason.name}") for reason in FinishReason}


class PendingAnswer(Protocol):
    """What the service needs of server.engine.pool.Generation."""

    async def result(self) -> Finished: ...

    def events(self) -> AsyncIterator[Progress | Finished]: ...

    def cancel(self) -> None: ...


class Engines(Protocol):
    """What the service needs of server.engine.pool.EnginePool."""

    def submit(self, request: GenerationRequest) -> PendingAnswer:
        """Raises QueueFullError or EngineUnavailableError."""


class ServedModel:
    """A bundle and the engines that run it.

    Args:
        bundle: the bundle.
        engines: started.
        device: where they run, "cpu" or "cuda:0".
        batch_window: items of one batch that may wait or run at the same time.
    """

    def __init__(self, bundle: Bundle, engines: Engines, device: str, batch_window: int) -> None:
        manifest = bundle.manifest
        self.name = manifest.name
        self.max_target_tokens = manifest.limits.max_target_tokens
        self.batch_window = batch_window
        self.encoder = SourceEncoder(bundle.source_tokenizer, manifest.tokens, manifest.limits.max_source_tokens)
        self.decoder = TargetDecoder(bundle.target_tokenizer)
        self.tokenizers = {pb.SIDE_SOURCE: bundle.source_tokenizer, pb.SIDE_TARGET: bundle.target_tokenizer}
        self.info = _info(bundle, device)
        self._target_text = bundle.target_tokenizer.id_to_token
        self.submit = engines.submit

    async def source_ids(self, source: pb.Input, field: str) -> list[int]:
        """The checked ids of an input.

        Args:
            field: the input's field, for the error.

        Raises:
            ApiError: the input is not one the model can read.
        """
        if ids := self.given_ids(source, field):
            return ids
        return await self.encoder.encode(source.text, f"{field}.text")

    def given_ids(self, source: pb.Input, field: str) -> list[int] | None:
        """The checked ids of an input that comes as ids, None for one that comes as text.

        Raises:
            ApiError: the ids are wrong, or the input is both or neither.
        """
        has_text, has_ids = source.HasField("text"), source.HasField("token_ids")
        if has_text and has_ids:
            raise invalid(field, "has both text and token_ids, but must have exactly one")
        if has_ids:
            return self.encoder.check_ids(source.token_ids.ids, f"{field}.token_ids.ids")
        if not has_text:
            raise invalid(field, "has neither text nor token_ids, but must have exactly one")
        return None

    def response(self, finished: Finished, source_tokens: int, details: pb.Details) -> pb.GenerateResponse:
        """The whole answer."""
        hypotheses = [self._hypothesis(hypothesis, details) for hypothesis in finished.hypotheses]
        return pb.GenerateResponse(hypotheses=hypotheses, source_tokens=source_tokens, model=self.name)

    def tokens(self, ids: list[int], log_probabilities: Iterable[float], details: pb.Details) -> list[pb.Token] | None:
        """Tokens as the details ask for them, None where they don't.

        Args:
            log_probabilities: of the ids; more are ignored.
        """
        if details.log_probabilities:
            pairs = zip(ids, log_probabilities, strict=False)
            return [pb.Token(id=i, text=self._target_text(i), log_probability=p) for i, p in pairs]
        if details.tokens:
            return [pb.Token(id=i, text=self._target_text(i)) for i in ids]
        return None

    def _hypothesis(self, result: HypothesisResult, details: pb.Details) -> pb.Hypothesis:
        ids = result.ids
        return pb.Hypothesis(
            text=self.decoder.decode(ids),
            finish_reason=FINISH_REASONS[result.reason],
            target_tokens=len(ids),
            tokens=self.tokens(ids, result.log_probabilities, details),
            log_probability=sum(result.log_probabilities) if details.log_probabilities else None,
        )


def _info(bundle: Bundle, device: str) -> pb.Model:
    manifest = bundle.manifest
    return pb.Model(
        name=manifest.name,
        version=manifest.version,
        description=manifest.description,
        license=manifest.license,
        precision=manifest.precision,
        device=device,
        max_source_tokens=manifest.limits.max_source_tokens,
        max_target_tokens=manifest.limits.max_target_tokens,
        source_vocabulary_size=manifest.shape.source_vocabulary,
        target_vocabulary_size=manifest.shape.target_vocabulary,
        parameters=manifest.shape.parameters,
        quality=manifest.quality,
        examples=manifest.examples,
    )
