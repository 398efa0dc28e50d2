"""Silent and misbehaving clients: the server survives them, and logs nothing.

`make soak` does the same at random and under load, long enough for the server to close silent connections.
"""

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from dragoman import Client
from dragoman.local import LOOPBACK, LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.conftest import StartServer
from tests.soak.findings import error_lines
from tests.soak.misbehaving import CLIENT_HELLO, HELLO, METHODS, MISBEHAVIOURS, headers, literal, message
from tests.support.certificates import Authority
from tests.support.http2 import DATA, END_STREAM, PREFACE, frame
from tests.support.servers import G2PServer
from tests.support.waiting import PATIENCE, until

CONNECTIONS = 12  # concurrent ones per misbehaviour
WORD, SOUND = "dragoman", "D R AE G OW M AH N"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with G2PServer(log=tmp_path_factory.mktemp("misbehaving") / "server.log") as started:
        yield started
        assert started.stop() == 0, started.log_tail()
        assert error_lines(started.log.read_text()) == []


def connect(port: int, data: bytes, reset: bool = False) -> socket.socket:
    connection = socket.create_connection((LOOPBACK, port), timeout=PATIENCE)
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(ConnectionError):  # the server closes some before all is sent
        connection.sendall(data)
    return connection


def at_rest(server: LocalServer) -> None:
    """Waits until nobody is connected and nothing runs."""
    names = ("dragoman_rows_running", "dragoman_requests_waiting", "dragoman_requests_in_flight")

    def left() -> dict[str, float]:
        peers = psutil.Process(server.process.pid).net_connections("tcp")
        connected = sum(bool(peer.raddr) and peer.laddr.port == server.port for peer in peers)
        counts = {"connections": connected, **server.metrics()}
        return {name: value for name, value in counts.items() if name.startswith(("connections", *names)) and value}

    until(lambda: not left(), otherwise=left)


@pytest.mark.parametrize("misbehaviour", MISBEHAVIOURS, ids=lambda misbehaviour: misbehaviour.__name__)
def test_server_survives(server: LocalServer, misbehaviour: Callable[[random.Random], bytes]) -> None:
    connections = [
        connect(server.port, misbehaviour(random.Random(seed)), reset=seed % 2 == 0) for seed in range(CONNECTIONS)
    ]
    with Client(server.address) as client:
        assert client.generate(WORD).text == SOUND, "while they are connected"
    for connection in connections:
        connection.close()
    at_rest(server)


def test_metadata_that_is_not_text_is_tolerated(server: LocalServer) -> None:
    odd = literal(b"x-request-id", b"\xff\xfe") + literal(b"authorization", b"Bearer \xc3\x28")
    body = message(pb.GenerateRequest(input=pb.Input(text=WORD)).SerializeToString())
    with connect(server.port, HELLO + headers(METHODS[0], 1, odd) + frame(DATA, END_STREAM, 1, body)) as connection:
        answer = b""
        while SOUND.encode() not in answer:
            received = connection.recv(65536)
            assert received, answer
            answer += received


def test_incomplete_handshakes_block_nobody(start_server: StartServer, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    pair = authority.sign("server")
    server = start_server("--tls-cert", str(pair.cert), "--tls-key", str(pair.key))
    beginnings = [b"", CLIENT_HELLO[:3], CLIENT_HELLO[:40], CLIENT_HELLO, PREFACE, random.Random(1).randbytes(300)]
    connections = [connect(server.port, beginning) for beginning in beginnings for _ in range(20)]
    credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    with grpc.secure_channel(f"localhost:{server.port}", credentials) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        answer = stub.Generate(pb.GenerateRequest(input=pb.Input(text=WORD)), timeout=PATIENCE)
        assert answer.hypotheses[0].text == SOUND
    for connection in connections:
        connection.close()
    at_rest(server)
    assert error_lines(server.log.read_text()) == []


def test_cancelling_a_batch_cancels_its_items(server: LocalServer) -> None:
    options = pb.GenerationOptions(min_new_tokens=60, beam_size=4)
    request = pb.GenerateBatchRequest(inputs=[pb.Input(text=WORD)] * 10_000, options=options)
    with grpc.insecure_channel(server.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        batches = [stub.GenerateBatch.future(request) for _ in range(3)]
        with Client(server.address) as client:
            assert client.generate(WORD).text == SOUND
        for batch in batches:
            batch.cancel()
    at_rest(server)
