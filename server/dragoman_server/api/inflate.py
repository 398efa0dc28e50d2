"""Requests that come compressed: inflated here, and no further than a request may be large.

gRPC's own inflating is switched off (server.connections). It would unpack a whole message, a gigabyte from one of a
megabyte, before it looks at the size.
"""

import zlib

import grpc

from dragoman_server.core.errors import Rejection
from dragoman_server.messages.api_error import ApiError, malformed

# How gzip begins. No message does: protobuf has no wire type 7. Messages of gRPC's other algorithm, deflate, can't be
# told from plain ones, so gRPC refuses those.
GZIP = b"\x1f\x8b"


# What unpacks to more than so many times its size, beyond what costs nothing, was made to cost something: gzip reaches
# a thousand, and ordinary text stays far below.
MOST_TIMES, FREE_BYTES = 64, 64 * 1024
PIECE = 64 * 1024  # that is unpacked at a time, so that nothing large is held before it is known to be allowed


def inflate(data: bytes, most: int) -> bytes:
    """A request's message as it was before it was compressed, or as it is where it was not.

    Args:
        most: bytes that it may have.

    Raises:
        ApiError: it has more, or more than so many times its size, or is no whole gzip.
    """
    if not data.startswith(GZIP):
        return data
    allowed = min(most, MOST_TIMES * len(data) + FREE_BYTES)
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    pieces: list[bytes] = []
    size = 0
    try:
        while not inflater.eof:
            piece = inflater.decompress(inflater.unconsumed_tail if pieces else data, PIECE)
            if not piece:
                break  # what follows is missing
            pieces.append(piece)
            size += len(piece)
            if size > allowed:
                pieces.clear()
                raise _too_large(most) if allowed == most else _too_dense()
    except zlib.error:
        raise malformed() from None
    if not inflater.eof or inflater.unused_data:
        raise malformed()
    return b"".join(pieces)


def _too_large(most: int) -> ApiError:
    return ApiError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"the compressed request unpacks to more than {most} bytes, the server's --max-message-bytes; "
        "send less at once",
        rejection=Rejection.INVALID,
    )


def _too_dense() -> ApiError:
    return ApiError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        f"the compressed request unpacks to more than {MOST_TIMES} times its size; send it uncompressed",
        rejection=Rejection.INVALID,
    )
