"""What every call has in common: a name, a record and a time, and its errors become gRPC statuses."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from dragoman_server.api.auth import CALLER, Authenticator
from dragoman_server.api.inflate import inflate
from dragoman_server.core.call_record import RECORD, REQUEST_ID, record_call
from dragoman_server.core.errors import EngineError
from dragoman_server.messages.api_error import ApiError, abort, from_engine, malformed
from dragoman_server.messages.protobuf_encoding import EncodedMessage
from dragoman_server.metrics import ServerMetrics
from dragoman_server.telemetry.observer import Observer

log = structlog.get_logger()

TRANSIT_SECONDS = 0.05  # that a call may have been on its way

# When the present task's call arrived, as time.monotonic(), before its request was read.
RECEIVED: ContextVar[float] = ContextVar("received", default=0.0)

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in the type stubs alone


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handler of every method, once.

    Calls of unknown methods are counted under the method "unknown". Messages above gRPC's size limit never come this
    far: gRPC itself answers them with RESOURCE_EXHAUSTED.

    Args:
        authenticator: who may call; by default everyone.
        log_text: log what clients send.
        observer: hears of every call that ended.
        most_bytes: of a request that comes compressed, once it is not.
    """

    def __init__(
        self,
        metrics: ServerMetrics,
        authenticator: Authenticator | None = None,
        log_text: bool = False,
        observer: Observer | None = None,
        most_bytes: int = 4 * 2**20,
    ) -> None:
        self._most_bytes = most_bytes
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
        """The handler with its behaviour and its parser wrapped. There are no methods whose requests alone stream."""
        if not handler.response_streaming:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(method, handler.unary_unary), self._parser(handler), _writer(handler)
            )
        if handler.request_streaming:
            return grpc.stream_stream_rpc_method_handler(
                self._stream(method, handler.stream_stream), self._reader(handler), handler.response_serializer
            )
        return grpc.unary_stream_rpc_method_handler(
            self._stream(method, handler.unary_stream), self._parser(handler), handler.response_serializer
        )

    def _reader(self, handler: Handler) -> Callable[[bytes], Any]:
        """Reads a request, and raises ApiError where it can't be."""
        parse = handler.request_deserializer
        assert parse is not None, "every method of a generated servicer has one"

        def read(data: bytes) -> Any:
            try:
                return parse(inflate(data, self._most_bytes))
            except DecodeError:
                raise malformed() from None

        return read

    def _parser(self, handler: Handler) -> Callable[[bytes], Any]:
        """Reads the only request of a call, or gives the ApiError in its place; gRPC would answer one that is raised
        with UNKNOWN, and log a traceback.
        """
        read = self._reader(handler)

        def parse(data: bytes) -> Any:
            try:
                return read(data)
            except ApiError as error:
                return error.with_traceback(None)  # which would hold on to the request

        return parse

    def _unary(self, method: str, behaviour: Any) -> Any:
        async def call(request: Any, context: Context) -> Any:
            with _Call(self._metrics, method, context, self._observer) as call:
                admitted = None
                try:
                    if isinstance(request, ApiError):
                        raise request
                    if self._log_text:
                        log.info("received", method=method, request_id=call.record.id, request=str(request))
                    with self._authenticator.call(method, request, context) as admitted:
                        return await behaviour(admitted, context)
                except Exception as error:
                    told = call.failed(error)
                    # gRPC keeps what ends a call, and so these frames, in a cycle: a refused request would stay, and
                    # may be large, until garbage is collected.
                    request = admitted = error.__traceback__ = error.__context__ = None
                    await abort(context, told, call.record.id)

        return call

    def _stream(self, method: str, behaviour: Any) -> Any:
        """NOTE: a coroutine that writes, and no generator: gRPC would leave that to the garbage collector, and log a
        traceback, where a message can't be sent to a client that has just left.
        """

        async def call(request: Any, context: Context) -> None:
            with _Call(self._metrics, method, context, self._observer) as call:
                admitted = None
                try:
                    if isinstance(request, ApiError):
                        raise request
                    if self._log_text:
                        log.info("received", method=method, request_id=call.record.id, request=str(request))
                    # Closed when the client leaves, so that its rows are given back at once.
                    with self._authenticator.call(method, request, context) as admitted:
                        async with aclosing(behaviour(admitted, context)) as messages:
                            async for message in messages:
                                await send(context, message)
                except Exception as error:
                    told = call.failed(error)
                    # gRPC keeps what ends a call, and so these frames, in a cycle: a refused request would stay, and
                    # may be large, until garbage is collected.
                    request = admitted = error.__traceback__ = error.__context__ = None
                    await abort(context, told, call.record.id)

        return call


async def send(context: Context, message: Any) -> None:
    """Hands a message of a stream to gRPC; is cancelled where the client left at this very moment."""
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


class _Call:
    """One call's name, count and time.

    Attributes:
        record: of it.
    """

    __slots__ = ("_context", "_method", "_metrics", "_observer", "record")

    def __init__(self, metrics: ServerMetrics, method: str, context: Context, observer: Observer | None) -> None:
        self._metrics, self._method, self._context, self._observer = metrics, method, context, observer

    def __enter__(self) -> "_Call":
        self.record = record_call(self._method, self._context.invocation_metadata(), RECEIVED.get())
        RECORD.set(self.record)
        if self._observer is not None:
            self.record.report = self._observer.ended
        self._context.set_trailing_metadata(((REQUEST_ID, self.record.id),))
        self._metrics.calls.begin(self._method)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        record = self.record
        if kind is not None and issubclass(kind, asyncio.CancelledError | GeneratorExit):
            # The client left, or its deadline passed, or the server stops. The client's clock runs out a little before
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
        """What the client gets for an exception."""
        if isinstance(error, EngineError):
            error = from_engine(error)
        elif not isinstance(error, ApiError):
            log.error("call failed", method=self._method, request_id=self.record.id, exc_info=error)
            error = ApiError(grpc.StatusCode.INTERNAL, "the server failed at this; its log says why")
        if error.rejection:
            self._metrics.rejected(error.rejection)
        self.record.code = error.code.name
        return error


def _writer(handler: Handler) -> Callable[[Any], bytes]:
    write = handler.response_serializer
    assert write is not None, "every method of a generated servicer has one"
    return lambda message: message.content if isinstance(message, EncodedMessage) else write(message)
