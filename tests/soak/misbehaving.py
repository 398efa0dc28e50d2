"""A process of misbehaving clients: half-open connections, malformed frames and messages, readers that stop.

Each client connects, sends one kind of malformed data, stays for a while and leaves, by a close or a reset. The
server's answers don't matter, only that it survives. The process writes counts as tests.soak.client does, and ends on
SIGTERM.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import struct
import sys
from collections.abc import Callable

from dragoman.v1 import generation_pb2 as pb
from tests.soak.client import NICE, REPORT_SECONDS
from tests.soak.processes import Counts
from tests.support.http2 import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RESET,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    header_block,
)

CONTINUATION = 9
STAY_SECONDS = 3.0
LONG_SHARE, LONG_SECONDS = 0.05, 45.0  # these stay longer than the server tolerates silence
METHODS = (
    "/dragoman.v1.GenerationService/Generate",
    "/dragoman.v1.GenerationService/GenerateStream",
    "/dragoman.v1.GenerationService/GenerateBatch",
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStreamInfer",
    "/dragoman.v1.AdminService/GetStatus",
    "/grpc.health.v1.Health/Watch",
    "/no.such.Service/Method",
)
GENERATE_STREAM = METHODS[1]
HELLO = PREFACE + frame(SETTINGS, 0, 0)
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)  # TLS


def headers(path: str, stream: int, more: bytes = b"", flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, header_block(path, "127.0.0.1") + more)


def literal(name: bytes, value: bytes) -> bytes:
    """Encodes a never-indexed HPACK header field; name and value of less than 127 bytes."""
    return b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value


def message(payload: bytes, length: int | None = None, flag: int = 0) -> bytes:
    """Frames a gRPC message for DATA frames: compression flag and length (by default the true one) come first."""
    return struct.pack(">BI", flag, len(payload) if length is None else length) + payload


def long_request(draw: random.Random) -> bytes:
    """Returns a request whose streamed answer takes some hundred kilobytes."""
    options = pb.GenerationOptions(
        sample=True, seed=draw.getrandbits(60), num_hypotheses=8, min_new_tokens=60, temperature=2.0
    )
    details = pb.Details(top_tokens=20)
    return pb.GenerateRequest(input=pb.Input(text="dragoman"), options=options, details=details).SerializeToString()


def silent(draw: random.Random) -> bytes:
    return b""


def half_a_preface(draw: random.Random) -> bytes:
    return PREFACE[: draw.randrange(1, len(PREFACE))]


def hello_and_nothing(draw: random.Random) -> bytes:
    return HELLO


def another_protocol(draw: random.Random) -> bytes:
    return draw.choice([b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", CLIENT_HELLO, draw.randbytes(2000), b"\0" * 5000])


def random_frames(draw: random.Random) -> bytes:
    frames = (
        frame(draw.randrange(12), draw.randrange(256), draw.randrange(8), draw.randbytes(draw.choice([0, 4, 8, 300])))
        for _ in range(draw.randint(1, 20))
    )
    return HELLO + b"".join(frames)


def wrong_settings(draw: random.Random) -> bytes:
    number, value = draw.choice([(2, 7), (4, 2**32 - 1), (5, 1), (4, 0), (3, 0), (6, 0), (99, 99)])
    return HELLO + frame(SETTINGS, 0, 0, struct.pack(">HI", number, value)) + frame(SETTINGS, 1, 0, b"abc")


def wrong_windows(draw: random.Random) -> bytes:
    step = struct.pack(">I", draw.choice([0, 2**31 - 1]))
    return HELLO + headers(GENERATE_STREAM, 1) + frame(WINDOW_UPDATE, 0, draw.choice([0, 1]), step) * 3


def headers_without_end(draw: random.Random) -> bytes:
    return HELLO + headers(GENERATE_STREAM, 1, flags=0) + frame(CONTINUATION, 0, 1, literal(b"x-more", b"a" * 100)) * 50


def pings(draw: random.Random) -> bytes:
    return HELLO + frame(PING, 0, 0, bytes(8)) * 200


def rapid_resets(draw: random.Random) -> bytes:
    """Calls cancelled as soon as they are made."""
    body = message(long_request(draw))
    calls = (
        headers(GENERATE_STREAM, stream)
        + frame(DATA, END_STREAM, stream, body)
        + frame(RESET, 0, stream, b"\0\0\0\x08")
        for stream in range(1, 2 * draw.randint(2, 60), 2)
    )
    return HELLO + b"".join(calls)


def call_without_message(draw: random.Random) -> bytes:
    return HELLO + headers(draw.choice(METHODS), 1, flags=END_HEADERS | draw.choice([0, END_STREAM]))


def cut_message(draw: random.Random) -> bytes:
    body = message(b"\x0a\x03abc", length=draw.choice([6, 100, 2**32 - 1]))
    return HELLO + headers(draw.choice(METHODS), 1) + frame(DATA, draw.choice([0, END_STREAM]), 1, body)


def garbled_messages(draw: random.Random) -> bytes:
    calls = (
        headers(draw.choice(METHODS), stream)
        + frame(DATA, END_STREAM, stream, message(draw.randbytes(draw.randrange(60)), flag=draw.choice([0, 0, 0, 1])))
        for stream in range(1, 40, 2)
    )
    return HELLO + b"".join(calls)


def odd_metadata(draw: random.Random) -> bytes:
    odd = draw.choice(
        [
            literal(b"x-request-id", b"\xff\xfe"),
            literal(b"authorization", b"Bearer \xc3\x28"),
            literal(b"traceparent", b"00-zz"),
            literal(b"x-bin", b"!!!"),
            literal(b"grpc-timeout", draw.choice([b"soon", b"-1S", b"1n", b"99999999H"])),
            literal(b"grpc-encoding", b"gzip"),
            literal(b"X-Upper", b"a"),
        ]
    )
    body = message(pb.GenerateRequest(input=pb.Input(text="court")).SerializeToString())
    return HELLO + headers(METHODS[0], 1, odd) + frame(DATA, END_STREAM, 1, body)


def stopped_reader(draw: random.Random) -> bytes:
    """Long answers, of which flow control lets only the first 64 KiB through."""
    body = message(long_request(draw))
    return HELLO + b"".join(
        headers(GENERATE_STREAM, stream) + frame(DATA, END_STREAM, stream, body)
        for stream in range(1, 2 * draw.randint(2, 6), 2)
    )


MISBEHAVIOURS: list[Callable[[random.Random], bytes]] = [
    silent,
    half_a_preface,
    hello_and_nothing,
    another_protocol,
    random_frames,
    wrong_settings,
    wrong_windows,
    headers_without_end,
    pings,
    rapid_resets,
    call_without_message,
    cut_message,
    garbled_messages,
    odd_metadata,
    stopped_reader,
]
SILENT = (silent, half_a_preface)


class MisbehavingClients:
    """Concurrent misbehaving clients; silent connections that are open after LONG_SECONDS count as outstayed."""

    def __init__(self, host: str, port: int, seed: int) -> None:
        self.counts = Counts()
        self._address = host, port
        self._draw = random.Random(seed)

    async def run(self, clients: int) -> None:
        """Runs that many clients until cancelled."""
        await asyncio.gather(*(self._client() for _ in range(clients)))

    async def _client(self) -> None:
        while True:
            misbehaviour = self._draw.choice(MISBEHAVIOURS)
            with contextlib.suppress(OSError):
                await self._misbehave(misbehaviour)
            self.counts.misbehaviours[misbehaviour.__name__] += 1

    async def _misbehave(self, misbehaviour: Callable[[random.Random], bytes]) -> None:
        loop = asyncio.get_running_loop()
        stay = LONG_SECONDS if self._draw.random() < LONG_SHARE else self._draw.uniform(0, STAY_SECONDS)
        with socket.socket() as connection:
            connection.setblocking(False)
            await loop.sock_connect(connection, self._address)
            if self._draw.random() < 0.5:  # leaves by a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await loop.sock_sendall(connection, misbehaviour(self._draw))
            if misbehaviour is stopped_reader:
                await asyncio.sleep(stay)
            try:
                async with asyncio.timeout(stay):
                    while await loop.sock_recv(connection, 65536):
                        pass
            except TimeoutError:
                self.counts.outstayed += stay == LONG_SECONDS and misbehaviour in SILENT


async def main(host: str, port: str, seed: str, clients: str) -> None:
    process = MisbehavingClients(host, int(port), int(seed))
    running = asyncio.create_task(process.run(int(clients)))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    while not running.done():
        process.counts.report()
        await asyncio.wait([running], timeout=REPORT_SECONDS)
    with contextlib.suppress(asyncio.CancelledError):
        await running
    process.counts.report()


if __name__ == "__main__":
    os.nice(NICE)
    asyncio.run(main(*sys.argv[1:]))
