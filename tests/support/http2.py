"""A minimal gRPC client that writes and reads HTTP/2 frames itself.

The load generator shares the machine's cores with the server, so its own cost distorts measurements. A call of gRPC's
Python client costs about as much as the server's side of it; here it costs some ten microseconds: the header block is
encoded once, a request is two small frames, and only the message of an answer is kept. Response headers are not
decoded: a call that ended without a message has failed.
"""

import socket
import struct
from dataclasses import dataclass, field

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW = 4  # SETTINGS_INITIAL_WINDOW_SIZE
LARGEST_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
FRAME_SIZE = 16_384  # the largest that every peer accepts
GRPC_PREFIX = 5  # compressed flag and length of the message


class ConnectionLostError(Exception):
    """The server closed the connection or broke the protocol."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Returns a frame with its nine-byte header (RFC 9113, section 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def header_block(path: str, authority: str) -> bytes:
    """Encodes the request headers of a gRPC call in HPACK (RFC 7541), without dynamic entries: always the same."""

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
    """A non-blocking connection. `send` queues a call; `flush` and `receive` move bytes.

    `open` begins a call that streams: `write` queues its messages, and `messages` returns those that have arrived.

    Args:
        host, port: Address of the server.
        path: Path of the gRPC method, "/package.Service/Method".

    Raises:
        OSError: The connection was refused.
    """

    host: str
    port: int
    path: str
    _buffer: bytearray = field(default_factory=bytearray)
    _outgoing: bytearray = field(default_factory=bytearray)
    _bodies: dict[int, bytearray] = field(default_factory=dict)
    _windows: dict[int, int] = field(default_factory=dict)  # of streaming calls
    _initial_window: int = DEFAULT_WINDOW
    _next_stream: int = 1
    _window: int = DEFAULT_WINDOW
    _unacknowledged: int = 0

    def __post_init__(self) -> None:
        self.socket = socket.create_connection((self.host, self.port), timeout=10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._headers = header_block(self.path, f"{self.host}:{self.port}")
        window = struct.pack(">HI", INITIAL_WINDOW, LARGEST_WINDOW)  # answers never wait
        self._outgoing += PREFACE + frame(SETTINGS, 0, 0, window)
        self._outgoing += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", LARGEST_WINDOW - DEFAULT_WINDOW))

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def room_for(self, message: bytes) -> bool:
        """Whether the message fits the server's current flow-control window."""
        return self._window >= len(message) + GRPC_PREFIX

    def send(self, message: bytes) -> int:
        """Queues a call and returns its stream id. There must be `room_for` the message; at most 64 KB."""
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

    def open(self) -> int:
        """Queues the start of a call that streams, and returns its stream id."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._outgoing += frame(HEADERS, END_HEADERS, stream, self._headers)
        self._bodies[stream] = bytearray()
        self._windows[stream] = self._initial_window
        return stream

    def may_write(self, stream: int, size: int) -> bool:
        """Whether the server's flow control allows a message of this size."""
        return min(self._window, self._windows[stream]) >= size + GRPC_PREFIX

    def write(self, stream: int, message: bytes) -> None:
        """Queues a message of a streaming call, which `may_write` allows; at most 16 KB."""
        body = struct.pack(">BI", 0, len(message)) + message
        assert len(body) <= FRAME_SIZE, "message is larger than a frame"
        self._window -= len(body)
        self._windows[stream] -= len(body)
        self._outgoing += frame(DATA, 0, stream, body)

    def end(self, stream: int) -> None:
        """Queues the end of a streaming call's requests."""
        self._outgoing += frame(DATA, END_STREAM, stream)

    def messages(self, stream: int) -> list[bytes]:
        """Returns the messages of a streaming call that have arrived since the last time."""
        body, at, found = self._bodies[stream], 0, []
        while len(body) - at >= GRPC_PREFIX:
            end = at + GRPC_PREFIX + int.from_bytes(body[at + 1 : at + GRPC_PREFIX])
            if len(body) < end:
                break
            found.append(bytes(body[at + GRPC_PREFIX : end]))
            at = end
        del body[:at]
        return found

    def flush(self) -> None:
        """Writes as much as the socket accepts."""
        if self._outgoing:
            try:
                written = self.socket.send(self._outgoing)
            except BlockingIOError:
                return
            del self._outgoing[:written]

    def receive(self) -> list[tuple[int, bytes | None]]:
        """Reads what has arrived; returns the streams that ended, with the answer's message or None for a failure.

        Raises:
            ConnectionLostError: The server closed the connection.
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
                    self._windows.pop(stream, None)
                    body = self._bodies.pop(stream)
                    ended.append((stream, bytes(body[GRPC_PREFIX:]) if body else None))
            else:
                self._control(kind, flags, stream, payload)
        del self._buffer[:at]
        return ended

    def close(self) -> None:
        self.socket.close()

    def _acknowledge(self, size: int) -> None:
        """Reopens the connection's receive window once a quarter of it is used."""
        self._unacknowledged += size
        if self._unacknowledged > LARGEST_WINDOW // 4:
            self._outgoing += frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged))
            self._unacknowledged = 0

    def _control(self, kind: int, flags: int, stream: int, payload: bytearray) -> None:
        if kind == SETTINGS and not flags & ACK:
            for setting, value in struct.iter_unpack(">HI", payload):
                if setting == INITIAL_WINDOW:
                    self._windows = {id_: left + value - self._initial_window for id_, left in self._windows.items()}
                    self._initial_window = value
            self._outgoing += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self._outgoing += frame(PING, ACK, 0, bytes(payload))
        elif kind == WINDOW_UPDATE and stream == 0:
            self._window += int.from_bytes(payload)
        elif kind == WINDOW_UPDATE and stream in self._windows:
            self._windows[stream] += int.from_bytes(payload)
        elif kind == GO_AWAY:
            raise ConnectionLostError(f"the server sent GOAWAY: {bytes(payload[8:]).decode(errors='replace')}")
