"""Requests that come compressed: inflated here, and no further than a request may be large.

gRPC's own inflating is switched off (server.connections). It would unpack a whole message, a gigabyte from one of a
megabyte, before it looks at the size.
"""

import zlib

import grpc

from server.api.errors import ApiError, Rejection, malformed

# How gzip begins. No message does: protobuf has no wire type 7. Messages of gRPC's other algorithm, deflate, can't be
# told from plain ones, so gRPC refuses those.
GZIP = b"\x1f\x8b"


def inflate(data: bytes, most: int) -> bytes:
    """A request's message as it was before it was compressed, or as it is where it was not.

    Args:
        most: bytes that it may have.

    Raises:
        ApiError: it has more, or is no whole gzip.
    """
    if not data.startswith(GZIP):
        return data
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        message = inflater.decompress(data, most + 1)
    except zlib.error:
        raise malformed() from None
    if len(message) > most:
        raise ApiError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            f"the compressed request unpacks to more than {most} bytes, the server's --max-message-bytes; "
            "send less at once",
            rejection=Rejection.INVALID,
        )
    if not inflater.eof or inflater.unused_data:
        raise malformed()
    return message
