"""GenerateBatch: many inputs in one call, each with its own response or error."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Generic, TypeAlias, TypeVar

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.time_slice import TimeSlice
from dragoman_server.core.call_record import RECORD
from dragoman_server.core.errors import (
    DeadlineExpiredError,
    EngineUnavailableError,
    OutOfMemoryError,
    QueueFullError,
)
from dragoman_server.core.requests import CarriedText, GenerationRequest, Stages
from dragoman_server.engine.generation import Generation
from dragoman_server.engine.job import CallQueue
from dragoman_server.messages.api_error import ApiError, from_engine, invalid
from dragoman_server.messages.generation_options import ResponseDetails, reseeded
from dragoman_server.messages.response_size import MESSAGE, TokenFormat
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.metrics import ServerMetrics

CHUNK_INPUTS = 64  # checked in less than a millisecond

Kept = TypeVar("Kept")
Encoded: TypeAlias = tuple[pb.Input, list[int] | ApiError]
"""An input, and its source ids or why it is refused."""


@dataclass(frozen=True)
class BatchRequest:
    """What to generate for each item.

    Attributes:
        shared: Request of all items; its `source_ids` and `carried` are replaced by each item's.
        details: Parts of the response beside the text.
        own_seeds: Whether each item that samples has a seed of its own, so that equal inputs may differ.
    """

    shared: GenerationRequest
    details: ResponseDetails
    own_seeds: bool


@dataclass(frozen=True)
class BatchFormat(Generic[Kept]):
    """How a batch is answered.

    Attributes:
        keep: Converts a finished item to what is kept until all are finished.
        token_format: Format in which the response's tokens will be written.
        all_or_none: Whether the first item that fails ends the call.
    """

    keep: Callable[[pb.BatchItem], Kept]
    token_format: TokenFormat = MESSAGE
    all_or_none: bool = False


class Batch(Generic[Kept]):
    """One GenerateBatch call.

    At most `model.batch_window` of its items wait or run at the same time. They wait in a sub-queue of their own, which
    takes no room from other calls and starts jobs in turn with them. A batch whose first item finds the queue full is
    refused as a whole, at once, as a single call would be.

    Args:
        model: Model that generates.
        request: What to generate for each item.
        format_: How to answer.
        metrics: Metrics of the server.
    """

    def __init__(
        self,
        model: ServedModel,
        request: BatchRequest,
        format_: BatchFormat[Kept],
        metrics: ServerMetrics,
    ) -> None:
        self._model = model
        self._request = request
        self._format = format_
        self._metrics = metrics
        self._failed = 0  # number of items
        self._bytes = 0  # of the finished items
        self._carried: list[CarriedText | None] = []  # of each input
        self._queue: CallQueue | None = None
        self._time_slice = TimeSlice()

    async def run(self, inputs: Sequence[pb.Input]) -> list[Kept]:
        """Generates for every input and returns the items in the same order.

        Raises:
            ApiError: There are no inputs or too many, the response may become or has become too large, or an item
                failed and `all_or_none` is set.
            QueueFullError: The queue is full, or too many batch calls run.
            DeadlineExpiredError: The call's deadline passed.
        """
        if not inputs:
            raise invalid("inputs", "is empty")
        max_items = self._model.limits.batch_items
        if len(inputs) > max_items:
            raise invalid("inputs", f"has {len(inputs)} items, but a batch may have at most {max_items}")
        record = RECORD.get()
        if record is not None:
            record.begin_tokenizing(len(inputs))
        sources = await self._encode(inputs)
        for source in sources:
            if self._format.all_or_none and isinstance(source, ApiError):
                raise source
        source_tokens = sum(len(source) for source in sources if not isinstance(source, ApiError))
        if record is not None:
            record.end_tokenizing(source_tokens)
        search, details = self._request.shared.search, self._request.details
        self._model.check_attention(details, search, source_tokens)
        self._model.sizes.check(details, search, source_tokens, self._format.token_format, len(inputs))
        items: dict[int, Kept] = {}
        work = iter(enumerate(zip(inputs, sources, strict=True)))
        try:
            # A single input is queued as a single call.
            with self._model.open_call() if len(inputs) > 1 else nullcontext() as self._queue:
                async with asyncio.TaskGroup() as workers:
                    for _ in range(min(self._model.batch_window, len(inputs))):
                        workers.create_task(self._work(work, items))
        except* (QueueFullError, DeadlineExpiredError, ApiError) as errors:
            raise errors.exceptions[0] from None
        if record is not None:
            record.failed = self._failed
        return [items[index] for index in range(len(inputs))]

    async def _encode(self, inputs: Sequence[pb.Input]) -> list[list[int] | ApiError]:
        """Returns the source ids, or the error, of each input."""
        sources: list[list[int] | ApiError] = []
        for start in range(0, len(inputs), CHUNK_INPUTS):
            chunk = inputs[start : start + CHUNK_INPUTS]
            fields = [f"inputs[{start + index}]" for index in range(len(chunk))]
            self._carried += [await self._model.take_unreadable(source) for source in chunk]
            sources += await self._model.encoder.encode_batch(chunk, fields)
            await self._time_slice.yield_if_over()
        return sources

    async def _work(self, work: Iterator[tuple[int, Encoded]], items: dict[int, Kept]) -> None:
        """Generates for one source after the other until there are none."""
        for index, (given, source) in work:
            await self._time_slice.yield_if_over()
            response = source if isinstance(source, ApiError) else await self._generate(index, given, source)
            if isinstance(response, ApiError):
                if self._format.all_or_none:
                    raise response
                if response.rejection:
                    self._metrics.rejected(response.rejection)
                self._failed += 1
                code, item = response.code.name, pb.BatchItem(error=response.status())
            else:
                code, item = "OK", pb.BatchItem(response=response)
            if (record := RECORD.get()) is not None:
                self._metrics.calls.item(record.method, code)
            self._bytes += item.ByteSize()
            if self._bytes > self._model.limits.answer_bytes:
                raise self._model.sizes.too_large()
            items[index] = self._format.keep(item)

    async def _generate(self, index: int, given: pb.Input, source: list[int]) -> pb.GenerateResponse | ApiError:
        shared = self._request.shared
        search = reseeded(shared.search) if self._request.own_seeds else shared.search
        try:
            search = self._model.with_language(search, given, f"inputs[{index}]")
        except ApiError as error:
            return error
        stages = None if RECORD.get() is None else Stages(time.monotonic())
        request = replace(shared, source_ids=source, search=search, stages=stages, carried=self._carried[index])
        generation: Generation | None = None
        try:
            generation = self._model.submit(request, self._queue)
            finished = await generation.result()
            return await self._model.write_response(request, finished, self._request.details, may_wait=True)
        except (EngineUnavailableError, OutOfMemoryError) as error:
            return from_engine(error)
        finally:
            if generation is not None:
                generation.cancel()
