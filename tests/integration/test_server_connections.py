"""The limits of connections and requests that an operator sets."""

import time
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import Client, InvalidArgumentError, ItemError, ResourceExhaustedError, RetryPolicy
from dragoman.local import LocalServer, serve_command
from dragoman_server.process.connections import MIN_CONNECTIONS, OTHER_FILES
from tests.conftest import StartServer
from tests.support.waiting import until

WORD, SOUND = "transformer", "T R AE N S F AO R M ER"
ONCE = RetryPolicy(attempts=1)
ALONE = [("grpc.use_local_subchannel_pool", 1)]  # else channels to one server share a connection
QUICK = [(f"grpc.{kind}_reconnect_backoff_ms", 100) for kind in ("initial", "min", "max")]


def healthy(channel: grpc.Channel, wait: bool = False) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        stub.Check(health_pb2.HealthCheckRequest(), timeout=10, wait_for_ready=wait)
    except grpc.RpcError as error:
        return error.code() is not grpc.StatusCode.UNAVAILABLE
    return True


def client_ports(server: LocalServer) -> set[int]:
    """Returns the client ports of the connections to the gRPC port."""
    connections = psutil.Process(server.process.pid).net_connections("tcp")
    return {each.raddr.port for each in connections if each.raddr and each.laddr.port == server.port}


def test_a_connection_beyond_the_limit_is_closed_until_another_ends(start_server: StartServer) -> None:
    server = start_server("--max-connections", "3")
    channels = [grpc.insecure_channel(server.address, [*ALONE, *QUICK]) for _ in range(4)]
    assert [healthy(channel) for channel in channels] == [True, True, True, False]
    assert [healthy(channel) for channel in channels[:3]] == [True, True, True]
    channels[0].close()
    assert healthy(channels[3], wait=True)
    for channel in channels:
        channel.close()


def test_the_limit_of_open_files_bounds_the_connections(
    start_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = tmp_path / "serve"
    limited.write_text(f'#!/bin/sh\nulimit -n {OTHER_FILES + MIN_CONNECTIONS}\nexec {serve_command()} "$@"\n')
    limited.chmod(0o755)
    monkeypatch.setattr("dragoman.local.serve_command", lambda: str(limited))
    server = start_server()
    channels = [grpc.insecure_channel(server.address, [*ALONE, *QUICK]) for _ in range(MIN_CONNECTIONS + 1)]
    assert [healthy(channel) for channel in channels] == [True] * MIN_CONNECTIONS + [False]
    for channel in channels:
        channel.close()


def test_replacing_an_aged_connection_loses_no_call(start_server: StartServer) -> None:
    server = start_server("--max-connection-age-seconds", "0.5")
    seen: set[int] = set()

    def asked() -> bool:
        assert client.generate(WORD).text == SOUND
        seen.update(client_ports(server))
        return len(seen) >= 3

    with Client(server.address, retry=ONCE) as client:
        until(asked)


def test_calls_on_an_aged_connection_end_after_the_grace_period(start_server: StartServer) -> None:
    server = start_server("--max-connection-age-seconds", "0.5", "--connection-age-grace-seconds", "2")
    with grpc.insecure_channel(server.address) as channel:
        started = time.monotonic()
        watch: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as ended:
            next(watch)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert time.monotonic() - started > 2


def test_an_idle_client_may_ping(start_server: StartServer) -> None:
    options = [
        ("grpc.keepalive_time_ms", 1200),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    server = start_server()
    with grpc.insecure_channel(server.address, options) as channel:
        states: list[grpc.ChannelConnectivity] = []
        channel.subscribe(states.append)
        assert healthy(channel)
        time.sleep(6)  # five pings; gRPC's own default would end the connection at the third
        assert states[-1] is grpc.ChannelConnectivity.READY
        assert grpc.ChannelConnectivity.TRANSIENT_FAILURE not in states
        assert len(client_ports(server)) == 1


def test_a_stream_beyond_the_limit_waits_in_the_client(start_server: StartServer) -> None:
    server = start_server("--max-concurrent-streams", "2")
    with grpc.insecure_channel(server.address) as channel:
        assert healthy(channel)  # so that the client has been told the limit
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(2)]
        for watch in watches:
            next(watch)
        with pytest.raises(grpc.RpcError) as waited:
            stub.Check(health_pb2.HealthCheckRequest(), timeout=0.5)
        assert waited.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        watches[0].cancel()
        assert healthy(channel)
        watches[1].cancel()


@pytest.mark.parametrize("limit", [2**20, 2**23])
def test_the_size_of_messages_is_limited(start_server: StartServer, limit: int) -> None:
    server = start_server("--max-message-bytes", str(limit))
    with Client(server.address) as client:
        # Their size is what matters here: the items are refused, one by one, as too long.
        fits, too_large = ["a" * (limit - 1000)], ["a" * (limit + 1)]
        [item] = client.generate_batch(fits)
        assert isinstance(item, ItemError)
        assert isinstance(item.error, InvalidArgumentError)
        with pytest.raises(ResourceExhaustedError, match="larger than max"):
            client.generate_batch(too_large)


def test_metadata_has_a_single_limit(start_server: StartServer) -> None:
    with grpc.insecure_channel(start_server().address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def code(size: int) -> str:
            try:
                stub.Check(health_pb2.HealthCheckRequest(), metadata=[("a-token", "a" * size)], timeout=30)
            except grpc.RpcError as error:
                return str(error.code().name)
            return "OK"

        assert {code(size) for size in range(9_000, 15_000, 100)} == {"OK"}
        assert {code(size) for size in range(17_000, 20_000, 100)} == {"RESOURCE_EXHAUSTED"}


def test_requests_are_limited_as_configured(start_server: StartServer) -> None:
    server = start_server(
        *("--max-source-tokens", "6", "--max-target-tokens", "4", "--max-stop-sequences", "1"),
        *("--max-batch-items", "2", "--max-beam-size", "3", "--max-hypotheses", "3"),
    )
    with Client(server.address) as client:
        model = client.model()
        assert (model.max_source_tokens, model.max_target_tokens) == (6, 4)
        assert (model.limits.beam_size, model.limits.stop_sequences, model.limits.batch_items) == (3, 1, 2)
        assert client.generate("court").text == "K AO R T"
        cut = client.generate("banan")
        assert cut.target_tokens <= 4
        for source, options, words in (
            ("courts", {}, "reads at most 6"),
            ("court", {"max_new_tokens": 5}, "from 1 to 4"),
            ("court", {"beam_size": 4}, "from 1 to 3"),
            ("court", {"beam_size": 3, "num_hypotheses": 4}, "num_hypotheses"),
            ("court", {"stop_sequences": ["K", "T"]}, "at most 1 are allowed"),
        ):
            with pytest.raises(InvalidArgumentError, match=words):
                client.generate(source, **options)
        with pytest.raises(InvalidArgumentError, match="at most 2"):
            client.generate_batch(["a"] * 3)
