"""A thousand connections at once: served, not expensive, and one more refused in a way that its client understands."""

import resource
import selectors
import time
from collections.abc import Iterable, Iterator

import grpc
import psutil
import pytest

from dragoman import Client
from dragoman.local import LOOPBACK, LocalServer
from dragoman.retry import NO_RETRY
from dragoman.v1 import generation_pb2 as pb
from tests.conftest import StartServer
from tests.support.http2 import Http2Connection
from tests.support.waiting import PATIENCE, until

CONNECTIONS, CALLERS, CALLS = 1000, 700, 3  # the other connections are made, and then say nothing
GENERATE = "/dragoman.v1.GenerationService/Generate"
FILES = CONNECTIONS + 300
MOST_BYTES = 100_000  # of resident memory for a connection
WORD, SOUND = "dragoman", "D R AE G OW M AH N"


@pytest.fixture
def _room_for_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < FILES:
        pytest.skip(f"needs {FILES} open files, and this system allows a process no more than {hard}")
    if resource.RLIM_INFINITY != soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connections_of(server: LocalServer) -> int:
    each = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(bool(one.raddr) and one.laddr.port == server.port for one in each)


def until_connected(server: LocalServer, connections: int) -> None:
    until(lambda: connections_of(server) == connections, otherwise=lambda: f"{connections_of(server)} connections")


def call(connections: Iterable[Http2Connection], times: int) -> list[bytes | None]:
    """Makes `times` calls on each connection one after the other, on all connections concurrently."""
    request = pb.GenerateRequest(input=pb.Input(text=WORD)).SerializeToString()
    left = dict.fromkeys(connections, times)
    answers: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE
    with selectors.DefaultSelector() as selector:
        for connection in left:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.send(request)
            connection.flush()
        while any(left.values()):
            assert time.monotonic() < deadline
            for key, _ in selector.select(1):
                connection = key.data
                for _, answer in connection.receive():
                    answers.append(answer)
                    left[connection] -= 1
                    if left[connection]:
                        connection.send(request)
                connection.flush()
    return answers


@pytest.mark.usefixtures("_room_for_files")
def test_a_thousand_connections(start_server: StartServer) -> None:
    server = start_server("--max-connections", str(CONNECTIONS))
    process = psutil.Process(server.process.pid)
    with Client(server.address) as client:
        assert client.generate(WORD).text == SOUND
    until_connected(server, 0)
    files, before = process.num_fds(), process.memory_info().rss
    connections = [Http2Connection(LOOPBACK, server.port, GENERATE) for _ in range(CONNECTIONS)]
    for connection in connections:
        connection.flush()
    until_connected(server, CONNECTIONS)
    answers = call(connections[:CALLERS], CALLS)
    assert len(answers) == CALLERS * CALLS
    assert {pb.GenerateResponse.FromString(answer or b"").hypotheses[0].text for answer in answers} == {SOUND}
    bytes_each = (process.memory_info().rss - before) / CONNECTIONS
    assert bytes_each < MOST_BYTES, f"{bytes_each:,.0f} bytes for each"

    with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        too_many = channel.unary_unary(GENERATE, pb.GenerateRequest.SerializeToString, pb.GenerateResponse.FromString)
        with pytest.raises(grpc.RpcError) as refused:
            too_many(pb.GenerateRequest(input=pb.Input(text=WORD)), timeout=PATIENCE)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert len(call(connections[CALLERS:], 1)) == CONNECTIONS - CALLERS, "the idle ones were still good"

    connections.pop().close()
    until_connected(server, CONNECTIONS - 1)
    with Client(server.address, retry=NO_RETRY) as client:
        assert client.generate(WORD).text == SOUND
    for connection in connections:
        connection.close()
    until_connected(server, 0)
    assert process.num_fds() <= files + 4
