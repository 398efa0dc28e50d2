"""dragoman.v1.GenerationService."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import grpc
from tokenizers import Tokenizer

from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from dragoman_server.api.batch import Batch, BatchFormat, BatchRequest, Kept
from dragoman_server.api.many import ManyCall
from dragoman_server.api.open_streams import OpenStreams
from dragoman_server.api.streaming import stream_response
from dragoman_server.core.call_record import RECORD
from dragoman_server.core.requests import GenerationRequest, Priority
from dragoman_server.messages.api_error import invalid
from dragoman_server.messages.generation_options import ResponseDetails, read_priority, read_time_limit
from dragoman_server.messages.protobuf_encoding import EncodedMessage, length_delimited
from dragoman_server.messages.response_size import JSON
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.metrics import ServerMetrics
from dragoman_server.models.registry import ModelRegistry

SERVICE = "dragoman.v1.GenerationService"
MAX_DETOKENIZE_IDS = 65_536
INLINE_DETOKENIZE_IDS = 2048  # more are decoded in a thread
ITEMS = pb.GenerateBatchResponse.DESCRIPTOR.fields_by_name["items"].number

Context = grpc.aio.ServicerContext[Any, Any]


class GenerationService(generation_pb2_grpc.GenerationServiceServicer):
    """The generation service. CallInterceptor turns its errors into statuses.

    Args:
        metrics: Metrics of the server.
        models: The models that are served.

    Attributes:
        streams: The streams of requests that are running, those of the Open Inference Protocol included.
    """

    def __init__(self, metrics: ServerMetrics, models: ModelRegistry) -> None:
        self._metrics = metrics
        self._models = models
        self.streams = OpenStreams()

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> pb.GenerateResponse:
        with self._models.use(request.model) as model:
            generation_request, details = await _prepare(model, request, context)
            generation = model.submit(generation_request)
            try:
                finished = await generation.result()
            finally:
                generation.cancel()
            return await model.write_response(generation_request, finished, details)

    async def GenerateStream(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateStreamResponse, None]:
        with self._models.use(request.model) as model:
            generation_request, details = await _prepare(model, request, context, streaming=True)
            async with aclosing(stream_response(model, generation_request, details)) as messages:
                async for message in messages:
                    yield message

    async def GenerateBatch(self, request: pb.GenerateBatchRequest, context: Context) -> EncodedMessage:
        """Returns a serialized GenerateBatchResponse."""
        return EncodedMessage(b"".join(await self._answer_batch(request, context, BatchFormat(_encoded))))

    async def GenerateMany(
        self, requests: AsyncIterator[pb.GenerateManyRequest], context: Context
    ) -> AsyncGenerator[EncodedMessage, None]:
        """Yields serialized GenerateManyResponses."""
        call = ManyCall(self._models, _deadline(context), self._metrics)
        with self.streams.open(call):
            async with aclosing(call.run(requests)) as messages:
                async for message in messages:
                    yield message

    async def answer_all(self, request: pb.GenerateBatchRequest, context: Context) -> list[pb.GenerateResponse]:
        """Answers a batch like GenerateBatch, but the first input that fails ends the call with its error.

        The size of the answers is estimated as JSON.
        """
        format_ = BatchFormat(lambda item: item.response, JSON, all_or_none=True)
        return await self._answer_batch(request, context, format_)

    async def _answer_batch(
        self, request: pb.GenerateBatchRequest, context: Context, format_: BatchFormat[Kept]
    ) -> list[Kept]:
        arrival = time.monotonic()
        with self._models.use(request.model) as model:
            search, details = await model.read_options(request.options, request.details)
            stop = read_time_limit(request.options, arrival)
            priority = read_priority(request.priority, Priority.BATCH)
            shared = GenerationRequest([], search, _deadline(context), stop, priority=priority)
            batch_request = BatchRequest(shared, details, own_seeds=not request.options.HasField("seed"))
            return await Batch(model, batch_request, format_, self._metrics).run(request.inputs)

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreResponse:
        with self._models.use(request.model) as model:
            return await model.score(request, _deadline(context))

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:
        with self._models.use(request.model) as model:
            request.side = _side(request.side)
            return await model.tokenize(request)

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:
        with self._models.use(request.model) as model:
            side = _side(request.side)
            size = (model.encoder if side == pb.SIDE_SOURCE else model.target).vocabulary_size
            return await _detokenize(model.tokenizers[side], size, request.token_ids.ids)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=self._models.list())

    async def GetModel(self, request: pb.GetModelRequest, context: Context) -> pb.GetModelResponse:
        return pb.GetModelResponse(model=self._models.describe(request.model))


def _encoded(item: pb.BatchItem) -> bytes:
    """Serializes an item as part of a GenerateBatchResponse, which takes a fraction of the memory of the message."""
    return length_delimited(ITEMS, item.SerializeToString())


async def _detokenize(tokenizer: Tokenizer, size: int, ids: Sequence[int]) -> pb.DetokenizeResponse:
    """Raises ApiError for invalid ids, or too many."""
    if len(ids) > MAX_DETOKENIZE_IDS:
        raise invalid("token_ids.ids", f"has {len(ids)} ids, but at most {MAX_DETOKENIZE_IDS} are allowed")
    for index, token in enumerate(ids):
        if not 0 <= token < size:
            raise invalid(f"token_ids.ids[{index}]", f"is {token}, but the vocabulary has ids 0 to {size - 1}")
    if len(ids) <= INLINE_DETOKENIZE_IDS:
        return pb.DetokenizeResponse(text=tokenizer.decode(list(ids)))
    return pb.DetokenizeResponse(text=await asyncio.to_thread(tokenizer.decode, list(ids)))


async def _prepare(
    model: ServedModel, request: pb.GenerateRequest, context: Context, streaming: bool = False
) -> tuple[GenerationRequest, ResponseDetails]:
    """Validates a request and tokenizes its input.

    Returns:
        The request for the engines, and what to include in the response.

    Raises:
        ApiError: the request is invalid.
    """
    arrival = time.monotonic()
    record = RECORD.get()
    if record is not None:
        record.begin_tokenizing(1)
    search, details = await model.read_options(request.options, request.details)
    stop = read_time_limit(request.options, arrival)
    carried = await model.take_unreadable(request.input)
    source_ids = await model.encoder.encode(request.input, "input")
    search = model.with_language(search, request.input, "input")
    model.check_attention(details, search, len(source_ids))
    model.sizes.check(details, search, len(source_ids))
    priority = read_priority(request.priority, Priority.INTERACTIVE)
    stages = None if record is None else record.end_tokenizing(len(source_ids))
    deadline = _deadline(context)
    return GenerationRequest(source_ids, search, deadline, stop, streaming, priority, stages, carried), details


def _deadline(context: Context) -> float | None:
    """Returns the deadline of a call as time.monotonic(), None if the client set none."""
    remaining: float | None = context.time_remaining()
    return None if remaining is None else time.monotonic() + remaining


def _side(side: pb.Side) -> pb.Side:
    """Applies the default. Raises ApiError for an unknown value."""
    if side == pb.SIDE_UNSPECIFIED:
        return pb.SIDE_SOURCE
    if side not in (pb.SIDE_SOURCE, pb.SIDE_TARGET):
        raise invalid("side", f"is {side}, but must be SIDE_SOURCE or SIDE_TARGET")
    return side
