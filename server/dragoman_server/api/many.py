"""GenerateMany: any number of items in one call, each answered as soon as it is finished."""

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import grpc

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.many_versions import Lane, VersionUse
from dragoman_server.api.time_slice import TimeSlice
from dragoman_server.core.call_record import RECORD
from dragoman_server.core.errors import DeadlineExpiredError, EngineError
from dragoman_server.core.requests import CarriedText, GenerationRequest, GenerationResult, Priority, Stages
from dragoman_server.engine.generation import Generation
from dragoman_server.messages.api_error import ApiError, from_exception, invalid, unavailable
from dragoman_server.messages.generation_options import ResponseDetails, read_priority, read_time_limit
from dragoman_server.messages.protobuf_encoding import EncodedMessage, length_delimited
from dragoman_server.metrics import ServerMetrics
from dragoman_server.models.manager import STOPPING
from dragoman_server.models.registry import ModelRegistry, ServedVersion

ID_CHARACTERS = 128
MESSAGE_ITEMS = 10_000  # at most; very many tiny ones take much more memory than the message
CHUNK_ITEMS = 256  # tokenized together
# Answers to fewer than this share of the running items wait this long for others: with a message for each item, a call
# took 10 % to 20 % more CPU time.
GATHER_SHARE, GATHER_SECONDS = 0.25, 0.002
MESSAGE_BYTES = 64 * 1024  # of answers, after which another message begins
UNKNOWN_WINDOW = 64  # items of unknown models whose answers may wait to be read
ANSWERS = pb.GenerateManyResponse.DESCRIPTOR.fields_by_name["answers"].number


@dataclass(slots=True, eq=False)
class Item:
    """An item in the engines.

    Attributes:
        size: Bytes that the response may take, if that is more than about its source.
        writing: Task that writes the response, if that takes time.
    """

    id: str
    lane: Lane
    request: GenerationRequest
    details: ResponseDetails
    size: int
    generation: Generation | None = None
    writing: asyncio.Task[None] | None = None


class ManyCall:
    """One GenerateMany call.

    The reader takes items from the stream while there is room, the engines' results become answers in the callback that
    delivers them, and the writer sends what has accumulated. An item has its place in the window from the moment it is
    taken until its answer is passed to gRPC, which waits for a client that reads slowly.

    Args:
        models: The models that are served.
        deadline: When the call ends, as time.monotonic(); None for no deadline.
        metrics: Metrics of the server.
    """

    def __init__(self, models: ModelRegistry, deadline: float | None, metrics: ServerMetrics) -> None:
        self._models, self._deadline, self._metrics = models, deadline, metrics
        self._record, self._context = RECORD.get(), contextvars.copy_context()
        self._defaults = pb.GenerateRequest()
        self._versions: dict[ServedVersion, VersionUse] = {}
        self._items: dict[str, Item] = {}  # unanswered, by id
        self._answers: deque[tuple[bytes, int]] = deque()  # encoded, with the size of their items
        self._taken = self._bytes = 0  # number and size of the items in the window
        self._room, self._wake = asyncio.Event(), asyncio.Event()
        self._failure: EngineError | None = None
        self._reading: asyncio.Task[None] | None = None
        self._time_slice = TimeSlice()

    async def run(self, requests: AsyncIterator[pb.GenerateManyRequest]) -> AsyncGenerator[EncodedMessage, None]:
        """Yields serialized GenerateManyResponses until every item is answered or, while draining, every one taken.

        Raises:
            ApiError: A message is invalid as a whole, or the server is shutting down.
            DeadlineExpiredError: The call's deadline passed.
            Exception: Any error that `requests` raises.
        """
        reading = self._reading = asyncio.create_task(self._read(requests))
        reading.add_done_callback(lambda _: self._wake.set())
        try:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._answers:
                    if len(self._answers) < GATHER_SHARE * len(self._items):
                        await asyncio.sleep(GATHER_SECONDS)
                    message, count, size = self._take_answers()
                    yield EncodedMessage(message)
                    self._taken -= count
                    self._bytes -= size
                    self._room.set()
                elif reading.done() and not self._items:
                    break
                else:
                    self._wake.clear()
                    await self._wake.wait()
            if reading.cancelled():
                raise unavailable(STOPPING)
            reading.result()
        finally:
            await self._close(reading)

    def drain(self) -> None:
        """Stops taking items."""
        if self._reading is not None:
            self._reading.cancel()

    async def _close(self, reading: asyncio.Task[None]) -> None:
        """Cancels what is still running."""
        tasks = [reading, *(item.writing for item in self._items.values() if item.writing is not None)]
        for item in list(self._items.values()):
            self._remove(item)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._record is not None and (stages := self._record.stages) is not None:
            self._record.tokenizing = self._record.tokenized = stages.submitted  # the phases are those of one item

    async def _read(self, requests: AsyncIterator[pb.GenerateManyRequest]) -> None:
        async for message in requests:
            for field, count in (("items", len(message.items)), ("cancel", len(message.cancel))):
                if count > MESSAGE_ITEMS:
                    raise invalid(field, f"has {count} elements, but a message may have at most {MESSAGE_ITEMS}")
            if message.HasField("defaults"):
                if message.defaults.HasField("input"):
                    raise invalid("defaults.input", "must not be set: each item has its own")
                self._defaults = message.defaults
                for version in self._versions.values():
                    version.forget_defaults()
            for id_ in message.cancel:
                if (item := self._items.get(id_)) is not None:
                    self._fail(item, ApiError(grpc.StatusCode.CANCELLED, "the client cancelled this item"))
            for start in range(0, len(message.items), CHUNK_ITEMS):
                await self._take(message.items[start : start + CHUNK_ITEMS])

    async def _take(self, chunk: Sequence[pb.ManyItem]) -> None:
        """Submits items of one message, each when there is room for it."""
        for name, same in groupby(chunk, lambda item: item.request.model or self._defaults.model):
            items = list(same)
            try:
                served = self._models.find(name)
            except ApiError as error:
                for item in items:
                    await self._find_room(UNKNOWN_WINDOW)
                    self._answer_error(item.id, error)
                continue
            version = self._use(served)
            with served.used() as model:
                if self._record is not None:
                    self._record.model, self._record.version = model.name, model.version
                inputs = [item.request.input for item in items]
                carried = [await model.take_unreadable(source) for source in inputs]
                sources = await model.encoder.encode_batch(inputs, ["input"] * len(items))
                for item, source, pieces in zip(items, sources, carried, strict=True):
                    await self._time_slice.yield_if_over()
                    await self._find_room(model.batch_window)
                    try:
                        await self._submit(item, version, source, pieces)
                    except (ApiError, EngineError) as error:
                        self._answer_error(item.id, error)

    async def _find_room(self, window: int) -> None:
        """Waits until there is room for an item, and takes it."""
        while self._taken >= window:
            self._room.clear()
            await self._room.wait()
        self._taken += 1

    async def _submit(
        self, item: pb.ManyItem, version: VersionUse, source: list[int] | ApiError, carried: CarriedText | None
    ) -> None:
        """Raises ApiError or EngineError if the item is refused."""
        model, id_ = version.served.model, item.id
        if not 0 < len(id_) <= ID_CHARACTERS:
            raise invalid("id", f"has {len(id_)} characters, but must have from 1 to {ID_CHARACTERS}")
        if id_ in self._items:
            raise invalid("id", f"is {id_!r}, as that of an item that is not answered yet")
        search, details = await version.options(item.request, self._defaults)
        if isinstance(source, ApiError):
            raise source
        search = model.with_language(search, item.request.input, "input")
        model.check_attention(details, search, len(source))
        size = model.sizes.check(details, search, len(source))
        while size and self._bytes and self._bytes + size > model.limits.answer_bytes:
            self._room.clear()
            await self._room.wait()
        options = item.request.options if item.request.HasField("options") else self._defaults.options
        stop = read_time_limit(options, time.monotonic())
        priority = read_priority(item.request.priority or self._defaults.priority, Priority.BATCH)
        stages = None if self._record is None else Stages(time.monotonic())
        request = GenerationRequest(
            source, search, self._deadline, stop, priority=priority, stages=stages, carried=carried
        )
        lane = version.lane(priority)
        queue = lane.enter()
        taken = Item(id_, lane, request, details, size)
        try:
            taken.generation = model.submit(request, queue)
        except EngineError:
            lane.leave()
            raise
        self._items[id_] = taken
        self._bytes += size
        if self._record is not None:
            self._record.inputs += 1
            self._record.source_tokens += len(source)
        taken.generation.notify(partial(self._finished, taken))

    def _use(self, served: ServedVersion) -> VersionUse:
        version = self._versions.get(served)
        if version is None:
            # Versions that are not served any more would be kept in memory.
            self._versions = {other: use for other, use in self._versions.items() if use.items}
            version = self._versions[served] = VersionUse(served)
        return version

    def _finished(self, item: Item, event: GenerationResult | EngineError) -> None:
        """Takes the result of an item. Called for each of a step's results, so it must not raise."""
        try:
            if isinstance(event, EngineError):
                self._end(item, event)
            elif (response := item.lane.model.write_small(item.request, event, item.details)) is not None:
                if self._record is not None:
                    self._record.add_answer(item.request, event)
                self._respond(item, response)
            else:
                item.writing = asyncio.create_task(self._write(item, event), context=self._context)
        except Exception as error:
            self._fail(item, error)

    async def _write(self, item: Item, finished: GenerationResult) -> None:
        """Writes a response that is large, or for which the scorer has to compute attention."""
        try:
            model = item.lane.model
            response = await model.write_response(item.request, finished, item.details, may_wait=True)
        except Exception as error:
            item.writing = None
            self._end(item, error)
        else:
            item.writing = None
            self._respond(item, response)

    def _respond(self, item: Item, response: pb.GenerateResponse) -> None:
        self._remove(item)
        tokens = sum(hypothesis.target_tokens for hypothesis in response.hypotheses)
        self._answer(pb.ManyAnswer(id=item.id, response=response), item.size, "OK", item.request, tokens)

    def _end(self, item: Item, error: Exception) -> None:
        """Ends an item, or the call, with the error of an engine or the scorer."""
        if isinstance(error, DeadlineExpiredError):  # the deadline is that of the call
            self._failure = error
            self._wake.set()
        else:
            self._fail(item, error)

    def _fail(self, item: Item, error: Exception) -> None:
        """Answers an item in the engines with an error."""
        self._remove(item)
        self._answer_error(item.id, error, item.size, item.request)

    def _answer_error(
        self, id_: str, error: Exception, size: int = 0, request: GenerationRequest | None = None
    ) -> None:
        """Answers an item with an error.

        Args:
            request: The item's request, if it has got into the engines.
        """
        record = self._record
        api_error = from_exception(error, "item failed", request_id="" if record is None else record.id)
        if record is not None:
            record.failed += 1
            record.inputs += request is None
        if api_error.rejection:
            self._metrics.rejected(api_error.rejection)
        answer = pb.ManyAnswer(id=id_[:ID_CHARACTERS], error=api_error.status())
        self._answer(answer, size, api_error.code.name, request)

    def _answer(
        self, answer: pb.ManyAnswer, size: int, code: str, request: GenerationRequest | None, target_tokens: int = 0
    ) -> None:
        """Counts an answer, and passes it to the writer."""
        if (record := self._record) is not None:
            self._metrics.calls.item(record.method, code)
            if record.report_item is not None:
                record.items_reported = True
                stages = None if request is None else request.stages
                seconds = 0.0 if stages is None else time.monotonic() - stages.submitted
                source_tokens = 0 if request is None else len(request.source_ids)
                record.report_item(source_tokens, target_tokens, seconds, code != "OK")
        self._answers.append((length_delimited(ANSWERS, answer.SerializeToString()), size))
        self._wake.set()

    def _remove(self, item: Item) -> None:
        """Removes an item from the engines."""
        del self._items[item.id]
        if item.generation is not None:
            item.generation.cancel()
        if item.writing is not None:
            item.writing.cancel()
        item.lane.leave()

    def _take_answers(self) -> tuple[bytes, int, int]:
        """Returns the next message, its number of answers, and the size of their items."""
        chosen = list(self._next_answers())
        return b"".join(answer for answer, _ in chosen), len(chosen), sum(size for _, size in chosen)

    def _next_answers(self) -> Iterator[tuple[bytes, int]]:
        size = 0
        # A large answer is sent alone, so a client that accepts the largest answer accepts every message.
        while self._answers and (not size or size + len(self._answers[0][0]) <= MESSAGE_BYTES):
            size += len(self._answers[0][0])
            yield self._answers.popleft()
