"""What all calls have in common: a record, authentication, metrics, and errors that become gRPC statuses."""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import grpc
import structlog

from dragoman_server.api.auth import CALLER, Authenticator
from dragoman_server.api.message_codec import Handler, request_reader, response_writer, single_request_reader
from dragoman_server.core.call_record import RECORD, REQUEST_ID, record_call
from dragoman_server.messages.api_error import ApiError, abort, from_exception
from dragoman_server.metrics import ServerMetrics
from dragoman_server.telemetry.observer import Observer

log = structlog.get_logger()

TRANSIT_SECONDS = 0.05  # allowance for the time between the client's start of a call and its arrival

# When the call of the current task arrived, as time.monotonic(), before its request was read.
RECEIVED: ContextVar[float] = ContextVar("received", default=0.0)

Context = grpc.aio.ServicerContext[Any, Any]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of every method, once.

    Calls of unknown methods are counted under the method "unknown". Messages above gRPC's size limit do not get here:
    gRPC itself ends those calls with RESOURCE_EXHAUSTED.

    Args:
        authenticator: Checks API keys; None to let everyone in.
        log_text: Whether to log requests, with the text that clients send.
        observer: Receives the record of every call that ended.
        max_request_bytes: Maximum size of a compressed request after decompression.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        authenticator: Authenticator | None = None,
        log_text: bool = False,
        observer: Observer | None = None,
        max_request_bytes: int = 4 * 2**20,
    ) -> None:
        self._max_request_bytes = max_request_bytes
        self._log_text = log_text
        self._observer = observer
        self._metrics = metrics
        self._authenticator = authenticator or Authenticator()
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        method = handler_call_details.method
        RECEIVED.set(time.monotonic())
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                self._metrics.calls.begin("unknown")
                self._metrics.calls.end("unknown", "UNIMPLEMENTED", 0.0)
                return None
            wrapped = self._wrapped[method] = self._wrap(method.lstrip("/"), handler)
        return wrapped

    def _wrap(self, method: str, handler: Handler) -> Handler:
        """Wraps the behaviour and the codec of a handler. No method streams only its requests."""
        if not handler.response_streaming:
            reader = single_request_reader(handler, self._max_request_bytes)
            behaviour = self._guarded(method, handler.unary_unary)
            return grpc.unary_unary_rpc_method_handler(behaviour, reader, response_writer(handler))
        if handler.request_streaming:
            behaviour = self._guarded(method, _writing(handler.stream_stream))
            reader = request_reader(handler, self._max_request_bytes)
            return grpc.stream_stream_rpc_method_handler(behaviour, reader, response_writer(handler))
        behaviour = self._guarded(method, _writing(handler.unary_stream))
        reader = single_request_reader(handler, self._max_request_bytes)
        return grpc.unary_stream_rpc_method_handler(behaviour, reader, handler.response_serializer)

    def _guarded(self, method: str, behaviour: Any) -> Any:
        """Returns a coroutine function that records, authenticates and runs a call, and aborts it if it fails."""

        async def call(request: Any, context: Context) -> Any:
            with _RecordedCall(self._metrics, method, context, self._observer) as call:
                admitted = None
                try:
                    if isinstance(request, ApiError):
                        raise request
                    if self._log_text:
                        request = _logged(request, method, call.record.id)
                    with self._authenticator.call(method, request, context) as admitted:
                        return await behaviour(admitted, context)
                except Exception as error:
                    api_error = call.failed(error)
                    # gRPC keeps the exception that ends a call, and so these frames, in a reference cycle: a refused
                    # request, which can be large, would live until the next garbage collection.
                    request = admitted = error.__traceback__ = error.__context__ = None
                    await abort(context, api_error, call.record.id)

        return call


def _logged(request: Any, method: str, request_id: str) -> Any:
    """Logs a request; returns it, or a stream of requests that logs each one as it is read."""
    if isinstance(request, AsyncIterable):
        return _logged_stream(request, method, request_id)
    log.info("received", method=method, request_id=request_id, request=str(request))
    return request


async def _logged_stream(requests: AsyncIterable[Any], method: str, request_id: str) -> AsyncIterator[Any]:
    async for request in requests:
        yield _logged(request, method, request_id)


def _writing(generator: Any) -> Any:
    """Returns a coroutine function that writes the messages of a stream to gRPC.

    NOTE: gRPC would leave an async generator to the garbage collector, and log a traceback, if a message can't be sent
    to a client that has just left.
    """

    async def write(request: Any, context: Context) -> None:
        # Closed as soon as the client leaves, which frees its rows.
        async with aclosing(generator(request, context)) as messages:
            async for message in messages:
                await send(context, message)

    return write


async def send(context: Context, message: Any) -> None:
    """Passes a message of a stream to gRPC.

    Raises:
        CancelledError: the client has just left.
    """
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


class _RecordedCall:
    """Context of one call: creates its record, counts it, and reports it when it ends.

    Attributes:
        record: The record of the call.
    """

    __slots__ = ("_context", "_method", "_metrics", "_observer", "record")

    def __init__(self, metrics: ServerMetrics, method: str, context: Context, observer: Observer | None) -> None:
        self._metrics, self._method, self._context, self._observer = metrics, method, context, observer

    def __enter__(self) -> "_RecordedCall":
        self.record = record_call(self._method, self._context.invocation_metadata(), RECEIVED.get())
        RECORD.set(self.record)
        if self._observer is not None:
            self.record.report, self.record.report_item = self._observer.ended, self._observer.item_ended
        self._context.set_trailing_metadata(((REQUEST_ID, self.record.id),))
        self._metrics.calls.begin(self._method)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        record = self.record
        if kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit):
            # The client left, its deadline passed, or the server stops. The client's clock runs out a little before
            # ours, which started when the call arrived.
            remaining = self._context.time_remaining()
            late = remaining is not None and remaining <= TRANSIT_SECONDS
            record.code = "DEADLINE_EXCEEDED" if late else "CANCELLED"
        record.ended = time.monotonic()
        self._metrics.calls.end(self._method, record.code, record.seconds)
        if self._observer is not None:
            record.key = CALLER.get()
            self._observer.ended(record)

    def failed(self, error: Exception) -> ApiError:
        """Records the failure of the call, and returns the error that the client gets for an exception."""
        api_error = from_exception(error, "call failed", method=self._method, request_id=self.record.id)
        if api_error.rejection:
            self._metrics.rejected(api_error.rejection)
        self.record.code = api_error.code.name
        return api_error
