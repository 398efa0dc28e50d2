"""Parsing of requests and serialization of responses, including gzip decompression with a size limit.

gRPC's own decompression is switched off (process/connections.py): it would decompress a whole message, a gigabyte from
a megabyte, before it checks the size.
"""

import zlib
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from dragoman_server.core.errors import Rejection
from dragoman_server.messages.api_error import ApiError, malformed
from dragoman_server.messages.protobuf_encoding import EncodedMessage

# The first bytes of gzip data. No protobuf message starts with them: there is no wire type 7. Messages of gRPC's other
# algorithm, deflate, can't be distinguished from uncompressed ones, so gRPC refuses those.
GZIP_MAGIC = b"\x1f\x8b"
# A higher ratio than this, beyond a size that costs nothing, is an attack: gzip reaches 1000, ordinary text stays far
# below 64.
MAX_RATIO, FREE_BYTES = 64, 64 * 1024
CHUNK_BYTES = 64 * 1024  # decompressed at a time, so that nothing large is allocated before it is known to be allowed

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic only in the type stubs


def request_reader(handler: Handler, max_bytes: int) -> Callable[[bytes], Any]:
    """Returns a function that decompresses and parses a request. It raises ApiError if that fails.

    Args:
        max_bytes: Maximum size of a request after decompression.
    """
    parse = handler.request_deserializer
    assert parse is not None, "every method of a generated servicer has a deserializer"

    def read(data: bytes) -> Any:
        try:
            return parse(decompress(data, max_bytes))
        except DecodeError:
            raise malformed() from None

    return read


def single_request_reader(handler: Handler, max_bytes: int) -> Callable[[bytes], Any]:
    """Returns a reader for the only request of a call. It returns the ApiError in place of the request.

    gRPC would end a call whose deserializer raises with UNKNOWN, and log a traceback.
    """
    read = request_reader(handler, max_bytes)

    def read_or_error(data: bytes) -> Any:
        try:
            return read(data)
        except ApiError as error:
            return error.with_traceback(None)  # the traceback would keep the request alive

    return read_or_error


def response_writer(handler: Handler) -> Callable[[Any], bytes]:
    """Returns a function that serializes a response, unless it is encoded already."""
    write = handler.response_serializer
    assert write is not None, "every method of a generated servicer has a serializer"
    return lambda message: message.content if isinstance(message, EncodedMessage) else write(message)


def decompress(data: bytes, max_bytes: int) -> bytes:
    """Returns a message without its compression, or as it is if it is not compressed.

    Raises:
        ApiError: the message is larger than `max_bytes`, compressed by more than MAX_RATIO, or not a complete gzip
            stream.
    """
    if not data.startswith(GZIP_MAGIC):
        return data
    allowed = min(max_bytes, MAX_RATIO * len(data) + FREE_BYTES)
    decompressor = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    chunks: list[bytes] = []
    size = 0
    try:
        while not decompressor.eof:
            chunk = decompressor.decompress(decompressor.unconsumed_tail if chunks else data, CHUNK_BYTES)
            if not chunk:
                break  # the data is truncated
            chunks.append(chunk)
            size += len(chunk)
            if size > allowed:
                chunks.clear()
                raise _too_large(max_bytes) if allowed == max_bytes else _too_dense()
    except zlib.error:
        raise malformed() from None
    if not decompressor.eof or decompressor.unused_data:
        raise malformed()
    return b"".join(chunks)


def _too_large(max_bytes: int) -> ApiError:
    message = (
        f"the compressed request unpacks to more than {max_bytes} bytes, the server's --max-message-bytes; "
        "send less at once"
    )
    return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, rejection=Rejection.INVALID)


def _too_dense() -> ApiError:
    message = f"the compressed request unpacks to more than {MAX_RATIO} times its size; send it uncompressed"
    return ApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, message, rejection=Rejection.INVALID)
