"""A model behind the API: converts messages to requests for its engines, and their results to messages."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Text
from dragoman_server.core.call_record import RECORD
from dragoman_server.core.requests import CarriedText, GenerationRequest, GenerationResult
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scorer import Scorer, Target
from dragoman_server.messages.api_error import invalid
from dragoman_server.messages.default_options import OWN_DEFAULTS, Defaults
from dragoman_server.messages.generation_options import ResponseDetails, read_details, read_options
from dragoman_server.messages.imported_ids import text_carrier, text_encoders
from dragoman_server.messages.languages import FIELDS, Languages, refuse_languages
from dragoman_server.messages.put_back import Placement
from dragoman_server.messages.response_size import ResponseSizes
from dragoman_server.messages.response_writer import ResponseWriter
from dragoman_server.messages.token_ids import INLINE_CHARACTERS

# Messages of up to this many tokens are written on the event loop, in a few milliseconds; larger ones in a thread.
INLINE_TOKENS = 1024
PIECE_TOKENS = 64  # as which a carried piece counts: 16 of them take half a millisecond, and 120 take 18

Message = TypeVar("Message", pb.GenerateResponse, pb.ScoreResponse)


class ServedModel:
    """A bundle with the engines and the scorer that run it.

    Args:
        bundle: The bundle.
        engines: Engine pool of the bundle, started.
        scorer: Scorer of the same bundle.
        device: Device that they run on, such as "cpu" or "cuda:0".
        limits: Limits of one request.
        count_unseen: Called for each response to a source with tokens that do not occur in the training data.
        defaults: Defaults of the bundle.
    """

    def __init__(
        self,
        bundle: Bundle,
        engines: EnginePool,
        scorer: Scorer,
        device: str,
        limits: pb.Limits,
        count_unseen: Callable[[], None],
        defaults: Defaults = OWN_DEFAULTS,
    ) -> None:
        manifest = bundle.manifest
        self.name, self.version = manifest.name, manifest.version
        self.limits = limits
        self.languages, self.encoder, self.target = text_encoders(bundle)
        self.decoder = TargetDecoder(bundle.target_tokenizer)
        self.writer = ResponseWriter(bundle, self.decoder, Placement(self.encoder.segment_part, self.decoder))
        self._carrier = text_carrier(bundle, self.encoder)
        self.tokenizers = {pb.SIDE_SOURCE: bundle.source_tokenizer, pb.SIDE_TARGET: bundle.target_tokenizer}
        self._defaults = defaults.within(limits)
        self.info = _info(bundle, self.languages, self._defaults, device, limits)
        self.info.many_window = engines.batch_window
        self.submit, self.open_call, self.batch_window = engines.submit, engines.open_call, engines.batch_window
        self._heads = manifest.shape.decoder_layers * manifest.shape.heads
        self.sizes = ResponseSizes(bundle.source_tokenizer, bundle.target_tokenizer, self._heads, limits)
        self._scorer = scorer
        self._has_shortlist = bundle.shortlist is not None
        self._count_unseen = count_unseen
        # Of requests without options; read at the first one where the bundle has defaults.
        self._plain = None if manifest.generation else (SearchOptions(self.target.max_tokens), ResponseDetails())

    async def tokenize(self, request: pb.TokenizeRequest) -> pb.TokenizeResponse:
        """Tokenizes a text as a source or as a target.

        Raises:
            ApiError: the text is far too long, or a language is unknown, missing or useless.
        """
        tokenizer = self.tokenizers[request.side]
        source = pb.Input(text=request.text)
        for name in FIELDS.values():
            if request.HasField(name):
                setattr(source, name, getattr(request, name))
        if request.text:
            self.encoder.check_size(request.text, "text")
        if request.side == pb.SIDE_SOURCE:
            ids = await self.encoder.tokenize(request.text, source)
        else:
            refuse_languages(source, "")
            ids = await self.target.tokenize(request.text)
        return pb.TokenizeResponse(tokens=[pb.Token(id=id_, text=tokenizer.id_to_token(id_)) for id_ in ids])

    async def take_unreadable(self, source: pb.Input) -> CarriedText | None:
        """Takes out of a source what the model can't read, if the bundle says so; `write_response` puts it back."""
        if self._carrier is None:
            return None
        if len(source.text) > INLINE_CHARACTERS:
            carried = await asyncio.to_thread(self._carrier.take, source.text)
        else:
            carried = self._carrier.take(source.text)
        if carried is not None and carried.left:
            source.text = carried.left
        return carried

    def with_language(self, search: SearchOptions, source: pb.Input, field: str) -> SearchOptions:
        """Returns search options with the first token that the source's target language forces, if it does.

        Args:
            field: Name of the source's field, for the error.

        Raises:
            ApiError: the target language is unknown or missing.
        """
        forced = self.languages.forced_first(source, field)
        if forced is None:
            return search
        return replace(search, conventions=replace(search.conventions, forced_first=forced))

    async def read_options(
        self, options: pb.GenerationOptions, details: pb.Details
    ) -> tuple[SearchOptions, ResponseDetails]:
        """Reads how to search, and what to include in the response.

        Raises:
            ApiError: the options or the details are invalid.
        """
        plain = not options.ByteSize() and not details.ByteSize()  # as in most requests
        if plain and self._plain is not None:
            return self._plain
        response_details = read_details(details, self.limits)
        complete = self._defaults.complete(options)
        search = await read_options(complete, response_details, self.target, self.limits, self._defaults)
        if search.use_shortlist and not self._has_shortlist:
            raise invalid("options.use_shortlist", "is true, but the model has no shortlist")
        if plain and search.sampling is None:  # each sample has a seed of its own
            self._plain = search, response_details
        return search, response_details

    def check_attention(self, details: ResponseDetails, search: SearchOptions, source_tokens: int) -> None:
        """Checks that a response can't have too many attention weights.

        Args:
            source_tokens: Source tokens of all inputs together.

        Raises:
            ApiError: it could have too many.
        """
        if details.attention:
            target_tokens = search.num_hypotheses * (search.fixed_tokens + search.max_new_tokens + 1)
            remedy = "lower max_new_tokens or num_hypotheses, or send fewer inputs at once"
            self._check_weights(target_tokens * source_tokens, "details.attention", remedy)

    async def write_response(
        self, request: GenerationRequest, finished: GenerationResult, details: ResponseDetails, may_wait: bool = False
    ) -> pb.GenerateResponse:
        """Writes the response to a finished request.

        Args:
            may_wait: Whether to wait where the scorer's queue is full.

        Raises:
            QueueFullError, DeadlineExpiredError, EngineUnavailableError: as raised by the scorer, if it is needed.
        """
        attention = None
        places = request.carried is not None and Placement.needs_alignment(request.carried)
        if details.needs_attention or places:
            targets = [
                Target(request.source_ids, result.ids, details.alignment or places, details.attention)
                for result in finished.hypotheses
            ]
            attention = await self._scorer.score(targets, request.deadline, may_wait or not details.needs_attention)
        write = partial(self.writer.response, request, finished, details, attention)
        pieces = len(request.carried.pieces) * len(finished.hypotheses) if request.carried is not None else 0
        response = await _write(_tokens(finished, details) + PIECE_TOKENS * pieces, write)
        if response.unseen_source_tokens:
            self._count_unseen()
        if (record := RECORD.get()) is not None:
            record.add_answer(request, finished)
        return response

    def write_small(
        self, request: GenerationRequest, finished: GenerationResult, details: ResponseDetails
    ) -> pb.GenerateResponse | None:
        """Writes the response to a finished request at once; returns None if only `write_response` can write it.

        The answer is not added to the record of the call.
        """
        if details.needs_attention or request.carried is not None or _tokens(finished, details) > INLINE_TOKENS:
            return None
        response = self.writer.response(request, finished, details)
        if response.unseen_source_tokens:
            self._count_unseen()
        return response

    async def score(self, request: pb.ScoreRequest, deadline: float | None) -> pb.ScoreResponse:
        """Scores the targets of a request.

        Raises:
            ApiError: the request is invalid.
            QueueFullError, DeadlineExpiredError, EngineUnavailableError: as raised by the scorer.
        """
        count, most = len(request.targets), self.limits.score_targets
        if not count:
            raise invalid("targets", "is empty")
        if count > most:
            raise invalid("targets", f"has {count} targets, but at most {most} are allowed")
        if (record := RECORD.get()) is not None:
            record.begin_tokenizing(1)
        source_ids = await self.encoder.encode(request.input, "input")
        names = [f"targets[{index}]" for index in range(count)]
        target_ids = await self.target.encode(request.targets, names, complete=True)
        if (forced := self.languages.forced_first(request.input, "input")) is not None:
            target_ids = [ids if ids[:1] == (forced,) else (forced, *ids) for ids in target_ids]
        if request.attention:
            weights = len(source_ids) * sum(len(ids) + 1 for ids in target_ids)
            self._check_weights(weights, "attention", "send fewer targets at once")
        tokens = sum(len(ids) + 1 for ids in target_ids)
        self.sizes.check_score(count, tokens, request.alignment, request.attention, len(source_ids))
        targets = [Target(source_ids, ids, request.alignment, request.attention) for ids in target_ids]
        if record is not None:
            record.tokenized = time.monotonic()
        scored = await self._scorer.score(targets, deadline)
        if record is not None:
            record.add_scores(len(source_ids), tokens, count)
        return await _write(tokens, lambda: self.writer.score(source_ids, targets, scored))

    def _check_weights(self, weights: int, field: str, remedy: str) -> None:
        """Raises ApiError for too many attention weights.

        Args:
            weights: Number of weights of one head of one layer.
        """
        weights *= self._heads
        if weights > self.limits.attention_weights:
            most = self.limits.attention_weights
            raise invalid(field, f"could have {weights} weights, but a response may have at most {most}; {remedy}")


def _tokens(finished: GenerationResult, details: ResponseDetails) -> int:
    """Returns the number of tokens to write into a response."""
    return sum(len(result.ids) for result in finished.hypotheses) * (1 + details.top_tokens) if details.tokens else 0


async def _write(tokens: int, write: Callable[[], Message]) -> Message:
    """Writes a small message at once, and a large one in a thread."""
    return write() if tokens <= INLINE_TOKENS else await asyncio.to_thread(write)


def _info(bundle: Bundle, languages: Languages, defaults: Defaults, device: str, limits: pb.Limits) -> pb.Model:
    """Describes a model for ListModels."""
    manifest = bundle.manifest
    text = manifest.text or Text()
    name, revision = manifest.origin.get("name", ""), manifest.origin.get("revision", "")
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
        decoder_layers=manifest.shape.decoder_layers,
        heads=manifest.shape.heads,
        limits=limits,
        languages=[
            pb.Language(code=code, source=code in languages.codes["source"], target=code in languages.codes["target"])
            for code in sorted(languages.codes["source"] | languages.codes["target"])
        ],
        default_source_language=text.source_language if languages.codes["source"] else "",
        default_target_language=text.target_language if languages.codes["target"] else "",
        default_options=defaults.shown() if manifest.generation else None,
        origin=f"{name} at {revision[:12]}" if revision else name,
    )
