"""The client for asyncio."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from dragoman import calls
from dragoman.base import BaseClient, Sender, health_status
from dragoman.calls import Call
from dragoman.errors import (
    CallCancelledError,
    DragomanError,
    ItemError,
    NotFoundError,
    ServerError,
)
from dragoman.many_async import outcomes
from dragoman.models import HealthStatus, ModelInfo, RepositoryStatus, VersionStatus
from dragoman.pipeline import DEFAULT_IN_FLIGHT, Batch
from dragoman.requests import GenerateOptions, Side, Source, Target, check_sources
from dragoman.results import Piece, Result, ScoreResult, Token

Answer = TypeVar("Answer")


class AsyncClient(BaseClient):
    """The Client for asyncio: the same arguments, results and errors, with coroutines. Use it in one event loop.

    It connects at the first call. (Several host names are resolved when it is created, which blocks.)
    """

    _connects_when_created = False  # a channel binds to the event loop that is running when it is created

    async def generate(
        self, source: Source, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> Result:
        """Generates the answer to one source; see Client.generate."""
        return await self._run(calls.generate(source, **options), timeout)

    def generate_stream(
        self, source: Source, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> "AsyncGenerationStream":
        """Generates the answer to one source piece by piece, for `async for`; see Client.generate_stream."""
        call = calls.generate_stream(source, **options)
        return AsyncGenerationStream(self._sender(call, self._attempts(timeout)), call)

    async def generate_batch(
        self, sources: Iterable[Source], *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> list[Result | ItemError]:
        """Generates the answers to many sources in one call; see Client.generate_batch."""
        batch = Batch(sources, **options)
        attempts = self._attempts(timeout)
        while (request := batch.request) is not None:
            try:
                response = await self._send(self._sender(Call("GenerateBatch", request, calls.result), attempts))
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
        """Generates the answers to any number of sources, for `async for`; see Client.generate_many.

        Pass an AsyncIterable if reading the next source may have to wait.
        """
        check_sources(sources)
        return outcomes(sources, self._many(timeout, max_in_flight, {**options}))

    async def score(
        self,
        source: Source,
        targets: Iterable[Target],
        *,
        model: str = "",
        alignment: bool = False,
        attention: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        timeout: float | None = None,
    ) -> ScoreResult:
        """Computes the log-probabilities of given targets, token by token; see Client.score."""
        call = calls.score(
            source,
            targets,
            model=model,
            alignment=alignment,
            attention=attention,
            source_language=source_language,
            target_language=target_language,
        )
        return await self._run(call, timeout)

    async def tokenize(
        self,
        text: str,
        *,
        model: str = "",
        side: Side = "source",
        source_language: str | None = None,
        target_language: str | None = None,
        timeout: float | None = None,
    ) -> list[Token]:
        """Splits a text into tokens; see Client.tokenize."""
        return await self._run(
            calls.tokenize(
                text, model=model, side=side, source_language=source_language, target_language=target_language
            ),
            timeout,
        )

    async def detokenize(
        self, ids: Sequence[int], *, model: str = "", side: Side = "target", timeout: float | None = None
    ) -> str:
        """Returns the text of token ids; see Client.detokenize."""
        return await self._run(calls.detokenize(ids, model=model, side=side), timeout)

    async def models(self, *, timeout: float | None = None) -> list[ModelInfo]:
        """Lists the versions of all models on the server; see Client.models."""
        return await self._run(calls.models(), timeout)

    async def model(self, name: str = "", *, timeout: float | None = None) -> ModelInfo:
        """Describes one model; see Client.model."""
        return await self._run(calls.model(name), timeout)

    async def load_model(self, name: str, *, again: bool = False, timeout: float | None = None) -> list[VersionStatus]:
        """Loads a model and waits until it answers; see Client.load_model."""
        return await self._run(calls.load_model(name, again=again), timeout)

    async def unload_model(self, name: str, *, timeout: float | None = None) -> list[VersionStatus]:
        """Unloads a model, or one version of it; see Client.unload_model."""
        return await self._run(calls.unload_model(name), timeout)

    async def reload_repository(self, *, timeout: float | None = None) -> RepositoryStatus:
        """Scans the repository for new versions now; see Client.reload_repository."""
        return await self._run(calls.reload_repository(), timeout)

    async def repository_status(self, *, timeout: float | None = None) -> RepositoryStatus:
        """Returns the status of every version in the repository; see Client.repository_status."""
        return await self._run(calls.repository_status(), timeout)

    async def health(self, service: str = "", *, timeout: float | None = None) -> HealthStatus:
        """Returns the health that the server reports now; see Client.health."""
        try:
            return health_status(await self._send(self._health_sender(service, timeout)))
        except NotFoundError:
            return HealthStatus.SERVICE_UNKNOWN

    async def close(self) -> None:
        """Closes the connections. Calls in flight are cancelled."""
        await self._ready_channel.close()
        await self._any_channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _open_channel(self, *, follow_health: bool) -> Any:
        return self._connector.async_channel(follow_health=follow_health)

    async def _run(self, call: Call[Answer], timeout: float | None) -> Answer:
        return call.parse(await self._send(self._sender(call, self._attempts(timeout))))

    async def _send(self, sender: Sender) -> Any:
        while True:
            try:
                return await sender.start()
            except grpc.RpcError as error:
                delay = await _delay_or_raise(sender, error)
            await asyncio.sleep(delay)


class AsyncGenerationStream(AsyncIterator[Piece]):
    """A streamed answer, for `async for`; `await result()` returns the whole answer.

    To abandon it early, call `cancel()` or use it in an `async with` statement. A stream that is garbage-collected is
    cancelled: it is fine to break out of `async for piece in client.generate_stream(...)`.
    """

    def __init__(self, sender: Sender, call: Call[tuple[Piece, Result | None]]) -> None:
        self._sender = sender
        self._parse = call.parse
        self._result: Result | None = None
        self._started = False
        self._cancelled = False
        self._loop = asyncio.get_running_loop()
        self._stream = sender.start()

    async def __anext__(self) -> Piece:
        while True:
            try:
                message = await self._stream.read()
            except grpc.RpcError as error:
                await asyncio.sleep(await _delay_or_raise(self._sender, error, final=self._started))
                self._stream = self._sender.start()
                continue
            except asyncio.CancelledError:
                # A cancelled call raises this, too, although no task was cancelled.
                if self._cancelled:
                    raise CallCancelledError("the call was cancelled") from None
                raise
            if message is grpc.aio.EOF:
                if self._result is None:
                    raise ServerError("the stream ended without its last message", code="INTERNAL")
                raise StopAsyncIteration
            self._started = True
            piece, self._result = self._parse(message)
            return piece

    async def result(self) -> Result:
        """Waits for the remaining pieces and returns the whole answer."""
        async for _ in self:
            pass
        assert self._result is not None  # otherwise __anext__ has raised
        return self._result

    def cancel(self) -> None:
        """Cancels the call; the server stops generating."""
        self._cancelled = True
        self._stream.cancel()

    async def aclose(self) -> None:
        """Cancels the call, as contextlib.aclosing expects."""
        self.cancel()

    def __del__(self) -> None:
        # gRPC does not always cancel by itself. Collection may run in any thread, and after the loop has ended.
        if (stream := getattr(self, "_stream", None)) is not None and not stream.done():
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(stream.cancel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()


async def _delay_or_raise(sender: Sender, error: grpc.RpcError, *, final: bool = False) -> float:
    """Returns the seconds to wait before the next attempt.

    Args:
        final: Never retry, as for a stream whose first pieces have been passed on.

    Raises:
        DragomanError: There is no further attempt.
    """
    failure = sender.failure(error)
    delay = None if final else sender.attempts.delay_after(failure)
    if delay is not None:
        return delay
    try:
        raise await asyncio.to_thread(sender.diagnose, failure) from error
    finally:
        del failure  # its traceback refers to this frame: the cycle would keep the connection open
