"""A gRPC client so thin that it costs next to nothing: HTTP/2 frames, written and read by hand.

Load generator and server share the machine's cores, so what the generator burns is missing on the other side. A call
of gRPC's own Python client costs about as much as the server's side of it; here it costs some ten microseconds: the
header block is encoded once, a request is two small frames, and of an answer only its message is kept. Response headers
are not decoded: a call that ended without a message has failed.
"""

import socket
import struct
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
LARGEST_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
FRAME_SIZE = 16_384  # the largest every peer accepts
GRPC_PREFIX = 5  # compressed flag and length of the message


class ConnectionLostError(Exception):
    """The server closed the connection or broke the protocol."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame with its nine-byte header (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(path: str, authority: str) -> bytes:
    """The request headers of a gRPC call in HPACK (RFC 7541), nothing indexed by us, so that it never changes."""

    def literal(text: str) -> bytes:
        raw = text.encode("ascii")
        assert len(raw) < 127, text
        return bytes([len(raw)]) + raw

    return b"".join(
        (
            b"\x83\x86",  # :method POST and :scheme http, of the static table
            b"\x04" + literal(path),
            b"\x01" + literal(authority),
            b"\x00" + literal("te") + literal("trailers"),
            b"\x0f\x10" + literal("application/grpc"),  # content-type is entry 31
        )
    )


@dataclass(eq=False)
class Http2Connection:
    """One connection, never blocking. `send` queues a call; `flush` and `receive` move bytes.

    Args:
        host, port: the server.
        path: the gRPC method, "/package.Service/Method".

    Raises:
        OSError: nobody listens there.
    """

    host: str
    port: int
    path: str
    _buffer: bytearray = field(default_factory=bytearray)
    _outgoing: bytearray = field(default_factory=bytearray)
    _bodies: dict[int, bytearray] = field(default_factory=dict)
    _next_stream: int = 1
    _window: int = DEFAULT_WINDOW
    _unacknowledged: int = 0

    def __post_init__(self) -> None:
        self.socket = socket.create_connection((self.host, self.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._headers = header_block(self.path, f"{self.host}:{self.port}")
        window = struct.pack(">HI", 4, LARGEST_WINDOW)  # SETTINGS_INITIAL_WINDOW_SIZE: answers are never held back
        self._outgoing += PREFACE + frame(SETTINGS, 0, 0, window)
        self._outgoing += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", LARGEST_WINDOW - DEFAULT_WINDOW))

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def room_for(self, message: bytes) -> bool:
        """Whether the server's flow-control window takes this message now."""
        return self._window >= len(message) + GRPC_PREFIX

    def send(self, message: bytes) -> int:
        """Queues a call and returns its stream's number. There must be `room_for` it; at most 64 KB."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        body = struct.pack(">BI", 0, len(message)) + message
        assert len(body) <= DEFAULT_WINDOW, "message is larger than a stream's window"
        self._window -= len(body)
        self._outgoing += frame(HEADERS, END_HEADERS, stream, self._headers)
        for start in range(0, len(body), FRAME_SIZE):
            end = start + FRAME_SIZE
            self._outgoing += frame(DATA, END_STREAM if end >= len(body) else 0, stream, body[start:end])
        self._bodies[stream] = bytearray()
        return stream

    def flush(self) -> None:
        """Writes what the socket takes."""
        if self._outgoing:
            try:
                written = self.socket.send(self._outgoing)
            except BlockingIOError:
                return
            del self._outgoing[:written]

    def receive(self) -> list[tuple[int, bytes | None]]:
        """Reads what is there: the calls that ended, each with its answer's message, or None where it failed.

        Raises:
            ConnectionLostError: the server went away.
        """
        try:
            chunk = self.socket.recv(1 << 18)
        except BlockingIOError:
            return []
        if not chunk:
            raise ConnectionLostError("the server closed the connection")
        self._buffer += chunk
        ended: list[tuple[int, bytes | None]] = []
        at = 0
        while len(self._buffer) - at >= 9:
            size = int.from_bytes(self._buffer[at : at + 3])
            if len(self._buffer) - at < 9 + size:
                break
            kind, flags, stream = struct.unpack_from(">BBI", self._buffer, at + 3)
            payload = self._buffer[at + 9 : at + 9 + size]
            at += 9 + size
            if kind == DATA:
                self._bodies[stream] += payload
                self._acknowledge(size)
            elif kind in (HEADERS, RESET):
                if kind == RESET or flags & END_STREAM:
                    body = self._bodies.pop(stream)
                    ended.append((stream, bytes(body[GRPC_PREFIX:]) if body else None))
            else:
                self._control(kind, flags, stream, payload)
        del self._buffer[:at]
        return ended

    def close(self) -> None:
        self.socket.close()

    def _acknowledge(self, size: int) -> None:
        """Opens the connection's receive window again once a good part of it is used."""
        self._unacknowledged += size
        if self._unacknowledged > LARGEST_WINDOW // 4:
            self._outgoing += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged))
            self._unacknowledged = 0

    def _control(self, kind: int, flags: int, stream: int, payload: bytearray) -> None:
        if kind == SETTINGS and not flags & ACK:
            self._outgoing += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self._outgoing += frame(PING, ACK, 0, bytes(payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload)
        elif kind == GO_AWAY:
            raise ConnectionLostError(f"the server says go away: {bytes(payload[8:]).decode(errors='replace')}")
