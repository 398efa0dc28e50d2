"""The client for asyncio programs."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import messages
from dragoman.batch import Batch
from dragoman.channel import DEFAULT_ADDRESS, balances, target
from dragoman.credentials import Tls, call_metadata, channel_credentials, channel_options
from dragoman.diagnosis import Diagnosis
from dragoman.errors import (
    CallCancelledError,
    DragomanError,
    ItemError,
    NotFoundError,
    ServerError,
    UnavailableError,
)
from dragoman.fields import Side, Source, Target
from dragoman.messages import Call
from dragoman.names import Metadata, named
from dragoman.options import GenerateOptions
from dragoman.pipeline import DEFAULT_IN_FLIGHT, Job, Pipeline
from dragoman.results import HealthStatus, ModelInfo, Piece, RepositoryStatus, Result, ScoreResult, Token, VersionStatus
from dragoman.retry import NO_RETRY, Attempts, Methods, RetryPolicy
from dragoman.v1.admin_pb2_grpc import AdminServiceStub
from dragoman.v1.generation_pb2_grpc import GenerationServiceStub

Answer = TypeVar("Answer")


class AsyncClient:
    """dragoman.Client for asyncio: the same arguments, answers and errors, awaited. One event loop may use it.

    It connects at its first call. (Several host names, if given, are looked up when it is made, which blocks.)
    """

    def __init__(
        self,
        address: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        timeout: float | None = 60.0,
        retry: RetryPolicy | None = None,
        follow_health: bool = True,
        tls: Tls | bool = False,
        api_key: str | None = None,
    ) -> None:
        self._address = address if isinstance(address, str) else ",".join(address)
        credentials, options = channel_credentials(tls), channel_options(tls)
        self._diagnosis = Diagnosis(self._address, target(address), credentials, options)
        self._followed = follow_health and balances(self._diagnosis.target)
        self._timeout = timeout
        self._retry = retry or RetryPolicy()
        self._metadata = call_metadata(api_key)

    async def generate(
        self, source: Source, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Result:
        """As Client.generate."""
        return await self._run(messages.generate(source, **options), timeout)

    def generate_stream(
        self, source: Source, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> "AsyncGenerationStream":
        """As Client.generate_stream; iterate with `async for`."""
        call = messages.generate_stream(source, **options)
        return AsyncGenerationStream(
            self._methods(call), call, self._attempts(timeout), self._diagnosis, self._metadata
        )

    async def generate_batch(
        self, sources: Iterable[Source], *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> list[Result | ItemError]:
        """As Client.generate_batch."""
        batch = Batch(sources, **options)
        attempts = self._attempts(timeout)
        while (request := batch.request) is not None:
            try:
                response = await self._send(self._both("GenerateBatch"), request, attempts)
                delay = batch.answered(response, attempts)
            except DragomanError as error:
                batch.failed(error)
            else:
                await asyncio.sleep(delay)
        return batch.outcomes()

    def generate_many(
        self,
        sources: Iterable[Source] | AsyncIterable[Source],
        *,
        timeout: float | None = None,
        max_in_flight: int = DEFAULT_IN_FLIGHT,
        **options: Unpack[GenerateOptions],
    ) -> AsyncIterator[Result | ItemError]:
        """As Client.generate_many; iterate with `async for`. Sources that are waited for come as an AsyncIterable."""
        make_call = messages.generate_many(**options)
        pipeline = Pipeline(make_call, self._retry, self._seconds(timeout), max_in_flight, followed=self._followed)
        return self._many(sources, pipeline)

    async def score(
        self,
        source: Source,
        targets: Iterable[Target],
        *,
        model: str = "",
        alignment: bool = False,
        attention: bool = False,
        timeout: float | None = None,
    ) -> ScoreResult:
        """As Client.score."""
        call = messages.score(source, targets, model=model, alignment=alignment, attention=attention)
        return await self._run(call, timeout)

    async def tokenize(
        self, text: str, *, model: str = "", side: Side = "source", timeout: float | None = None
    ) -> list[Token]:
        """As Client.tokenize."""
        return await self._run(messages.tokenize(text, model=model, side=side), timeout)

    async def detokenize(
        self, ids: Sequence[int], *, model: str = "", side: Side = "target", timeout: float | None = None
    ) -> str:
        """As Client.detokenize."""
        return await self._run(messages.detokenize(ids, model=model, side=side), timeout)

    async def models(self, *, timeout: float | None = None) -> list[ModelInfo]:
        """As Client.models."""
        return await self._run(messages.models(), timeout)

    async def model(self, name: str = "", *, timeout: float | None = None) -> ModelInfo:
        """As Client.model."""
        return await self._run(messages.model(name), timeout)

    async def load_model(self, name: str, *, again: bool = False, timeout: float | None = None) -> list[VersionStatus]:
        """As Client.load_model."""
        return await self._run(messages.load_model(name, again=again), timeout)

    async def unload_model(self, name: str, *, timeout: float | None = None) -> list[VersionStatus]:
        """As Client.unload_model."""
        return await self._run(messages.unload_model(name), timeout)

    async def reload_repository(self, *, timeout: float | None = None) -> RepositoryStatus:
        """As Client.reload_repository."""
        return await self._run(messages.reload_repository(), timeout)

    async def repository_status(self, *, timeout: float | None = None) -> RepositoryStatus:
        """As Client.repository_status."""
        return await self._run(messages.repository_status(), timeout)

    async def health(self, service: str = "", *, timeout: float | None = None) -> HealthStatus:
        """As Client.health."""
        check: Any = health_pb2_grpc.HealthStub(self._any).Check
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            response = await self._send((check, check), request, Attempts(NO_RETRY, self._seconds(timeout)))
        except NotFoundError:
            return HealthStatus.SERVICE_UNKNOWN
        return HealthStatus(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))

    async def close(self) -> None:
        """Closes the connections; calls under way are cancelled."""
        await self._ready.close()
        await self._any.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # A channel binds itself to the loop that runs when it is made, so it is made by the first call.
    @cached_property
    def _any(self) -> Any:
        return self._open(follow_health=False)

    @cached_property
    def _ready(self) -> Any:
        return self._open(follow_health=True) if self._followed else self._any

    def _open(self, *, follow_health: bool) -> Any:
        way = self._diagnosis
        options = way.channel_options(follow_health=follow_health)
        if way.credentials is None:
            return grpc.aio.insecure_channel(way.target, options)
        return grpc.aio.secure_channel(way.target, way.credentials, options)

    @cached_property
    def _stubs(self) -> Methods:
        return GenerationServiceStub(self._ready), GenerationServiceStub(self._any)

    @cached_property
    def _admin(self) -> Any:
        return AdminServiceStub(self._any)

    def _both(self, name: str) -> Methods:
        ready, any_ = self._stubs
        return getattr(ready, name), getattr(any_, name)

    def _methods(self, call: Call[Any]) -> Methods:
        if call.service == "generation":
            return self._both(call.method)
        method = getattr(self._admin, call.method)
        return method, method

    def _seconds(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self._retry, self._seconds(timeout), followed=self._followed)

    async def _run(self, call: Call[Answer], timeout: float | None) -> Answer:
        return call.parse(await self._send(self._methods(call), call.request, self._attempts(timeout)))

    async def _send(self, methods: Methods, request: Any, attempts: Attempts) -> Any:
        metadata = named(self._metadata, attempts.request_id)
        while True:
            try:
                return await methods[attempts.regardless](request, timeout=attempts.remaining(), metadata=metadata)
            except grpc.RpcError as error:
                failure = self._diagnosis.failure(error, attempts.request_id)
                delay = attempts.delay_after(failure)
                if delay is None:
                    try:
                        raise await asyncio.to_thread(self._diagnosis.of, failure) from error
                    finally:
                        del failure  # its traceback has this frame: the two would hold the connection open
            await asyncio.sleep(delay)

    async def _many(
        self, sources: Iterable[Source] | AsyncIterable[Source], pipeline: Pipeline
    ) -> AsyncIterator[Result | ItemError]:
        events: asyncio.Queue[tuple[Job | None, Any]] = asyncio.Queue()  # a job and its call, or None and a read input
        in_flight: dict[int, Any] = {}
        rest = aiter(sources if isinstance(sources, AsyncIterable) else _asynchronous(sources))
        reading: asyncio.Future[Source] | None = None
        methods = self._both("Generate")
        more = True
        try:
            while True:
                if more and reading is None and pipeline.room():
                    reading = asyncio.ensure_future(anext(rest))
                    reading.add_done_callback(lambda done: events.put_nowait((None, done)))
                for job in pipeline.due():
                    call = methods[job.attempts.regardless](
                        job.call.request,
                        timeout=job.attempts.remaining(),
                        metadata=named(self._metadata, job.attempts.request_id),
                    )
                    in_flight[job.index] = call
                    call.add_done_callback(lambda done, job=job: events.put_nowait((job, done)))
                while (outcome := pipeline.pop()) is not None:
                    yield outcome
                if pipeline.empty and not more:
                    return
                if more and reading is None and pipeline.room():
                    continue
                try:
                    event, done = await asyncio.wait_for(events.get(), pipeline.wait())
                except TimeoutError:
                    continue
                if event is None:
                    reading = None
                    try:
                        pipeline.add(done.result())
                    except StopAsyncIteration:
                        more = False
                    continue
                del in_flight[event.index]
                try:
                    pipeline.answered(event, event.call.parse(await done))
                except grpc.RpcError as error:
                    try:
                        pipeline.failed(event, self._diagnosis.failure(error, event.attempts.request_id))
                    except UnavailableError as failure:
                        raise await asyncio.to_thread(self._diagnosis.of, failure) from error
                except DragomanError as error:
                    pipeline.failed(event, error)
        finally:
            if reading is not None:
                reading.cancel()
            for call in in_flight.values():
                call.cancel()


async def _asynchronous(sources: Iterable[Source]) -> AsyncIterator[Source]:
    for source in sources:
        yield source


class AsyncGenerationStream(AsyncIterator[Piece]):
    """As GenerationStream: iterate with `async for`; `await result()` gives the whole. To leave early: `cancel()`.

    One that nobody holds any more is cancelled: an `async for` over `client.generate_stream(...)` may be left.
    """

    def __init__(
        self,
        methods: Methods,
        call: Call[tuple[Piece, Result | None]],
        attempts: Attempts,
        diagnosis: Diagnosis,
        metadata: Metadata | None,
    ) -> None:
        self._methods = methods
        self._metadata = named(metadata, attempts.request_id)
        self._call = call
        self._attempts = attempts
        self._diagnosis = diagnosis
        self._result: Result | None = None
        self._started = False
        self._given_up = False
        self._loop = asyncio.get_running_loop()
        self._stream = self._open()

    async def __anext__(self) -> Piece:
        while True:
            try:
                message = await self._stream.read()
            except grpc.RpcError as error:
                failure = self._diagnosis.failure(error, self._attempts.request_id)
                # What has been handed on cannot be taken back, so only an unstarted stream is opened again.
                delay = None if self._started else self._attempts.delay_after(failure)
                if delay is None:
                    try:
                        raise await asyncio.to_thread(self._diagnosis.of, failure) from error
                    finally:
                        del failure  # its traceback has this frame: the two would hold the connection open
                await asyncio.sleep(delay)
                self._stream = self._open()
                continue
            except asyncio.CancelledError:
                # A cancelled call looks like a cancelled task; only the latter is.
                if self._given_up:
                    raise CallCancelledError("the call was cancelled") from None
                raise
            if message is grpc.aio.EOF:
                if self._result is None:
                    raise ServerError("the stream ended without its last message", code="INTERNAL")
                raise StopAsyncIteration
            self._started = True
            piece, self._result = self._call.parse(message)
            return piece

    async def result(self) -> Result:
        """The whole answer, after its remaining pieces have come."""
        async for _ in self:
            pass
        assert self._result is not None  # __anext__ ends without it by raising only
        return self._result

    def cancel(self) -> None:
        """Gives the answer up; the server stops working at it."""
        self._given_up = True
        self._stream.cancel()

    async def aclose(self) -> None:
        """As cancel(), for contextlib.aclosing."""
        self.cancel()

    def __del__(self) -> None:
        # gRPC does not always do it by itself. Garbage may be collected in any thread, and after the loop has ended.
        if (stream := getattr(self, "_stream", None)) is not None and not stream.done():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(stream.cancel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def _open(self) -> Any:
        method = self._methods[self._attempts.regardless]
        return method(self._call.request, timeout=self._attempts.remaining(), metadata=self._metadata)
