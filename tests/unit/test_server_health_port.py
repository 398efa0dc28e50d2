"""Health checks on a port of their own, which threads answer, whatever the event loop does."""

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman_server.api.generation_service import SERVICE
from dragoman_server.api.health_service import Health
from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError
from dragoman_server.process.health_port import MAX_WATCHES, HealthPort
from dragoman_server.process.readiness import Probes
from tests.support.waiting import PATIENCE, until

Request = health_pb2.HealthCheckRequest
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
HANG_SECONDS = 5.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health() -> Health:
    """NOTE: no event loop runs in these tests: that of a server could not hang any more than this."""
    return Health([SERVICE])


@pytest.fixture
def port(health: Health, clock: Clock) -> Iterator[int]:
    opened = HealthPort(ServerConfig(health_port=0), health, Probes(HANG_SECONDS, clock))
    assert opened.number
    yield opened.number
    opened.close()


@pytest.fixture
def stub(port: int) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield health_pb2_grpc.HealthStub(channel)


def check(stub: Any, service: str = "") -> int:
    status: int = stub.Check(Request(service=service), timeout=PATIENCE).status
    return status


@pytest.mark.parametrize("service", ["", SERVICE, "model:a"])
def test_it_says_what_the_other_port_says(stub: Any, health: Health, service: str) -> None:
    health.set_models({"a": True, "b": False})
    for serving in (False, True, False):
        health.set_serving(serving)
        assert check(stub, service) == (SERVING if serving else NOT_SERVING)


def test_an_unknown_service_is_not_found(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        check(stub, "dragoman.v0")
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert next(stub.Watch(Request(service="dragoman.v0"))).status == UNKNOWN


def test_nothing_is_served_while_the_event_loop_hangs(stub: Any, health: Health, clock: Clock) -> None:
    health.set_serving(True)
    watch = stub.Watch(Request(), timeout=PATIENCE)
    clock.now = HANG_SECONDS
    assert (check(stub), next(watch).status) == (SERVING, SERVING), "it is only busy"
    clock.now += 1
    assert check(stub) == check(stub, SERVICE) == NOT_SERVING
    assert next(watch).status == NOT_SERVING, "though nobody could announce it"
    clock.now = 0.0
    assert check(stub) == next(watch).status == SERVING


def test_watches_are_told_of_changes_and_end_with_the_server(stub: Any, health: Health) -> None:
    watches = [stub.Watch(Request(service=SERVICE), timeout=PATIENCE) for _ in range(3)]
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * 3
    watches.pop().cancel()
    health.set_serving(True)
    assert [next(watch).status for watch in watches] == [SERVING] * 2
    health.end()
    assert [list(watch) for watch in watches] == [[]] * 2


def test_watches_take_no_more_than_their_share(stub: Any, health: Health) -> None:
    """One more is refused, checks are answered, and whoever leaves makes room."""
    watches = [stub.Watch(Request(), timeout=PATIENCE) for _ in range(MAX_WATCHES)]
    assert [next(watch).status for watch in watches] == [NOT_SERVING] * MAX_WATCHES
    with pytest.raises(grpc.RpcError) as refused:
        next(stub.Watch(Request(), timeout=PATIENCE))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert check(stub) == NOT_SERVING
    watches.pop().cancel()

    def admitted() -> bool:
        try:
            return bool(next(stub.Watch(Request(), timeout=PATIENCE)).status == NOT_SERVING)
        except grpc.RpcError:
            return False

    until(admitted)


def test_calls_that_say_nothing_keep_nobody_waiting(stub: Any, port: int) -> None:
    """Not even the kubelet, which would end the process; each has a thread until it has said what it wants."""
    over = threading.Event()

    def silent() -> Iterator[Any]:
        over.wait(PATIENCE)
        yield Request()

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_unary("/grpc.health.v1.Health/Check", Request.SerializeToString)
        calls = [call.future(silent(), timeout=PATIENCE) for _ in range(MAX_WATCHES + 24)]
        assert check(stub) == NOT_SERVING
        assert not any(each.done() for each in calls)
        over.set()
        assert {each.code() for each in calls} == {grpc.StatusCode.OK}


def test_closing_leaves_no_thread_behind(health: Health) -> None:
    """A watch that goes on would keep the process from ending."""
    before = set(threading.enumerate())
    opened = HealthPort(ServerConfig(health_port=0), health, Probes())
    with grpc.insecure_channel(f"127.0.0.1:{opened.number}") as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(Request(), timeout=PATIENCE)
        next(watch)
        opened.close()
        with pytest.raises(grpc.RpcError):
            next(watch)
    until(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("health")])


def test_without_the_option_there_is_no_port_and_a_taken_one_is_named(health: Health, port: int) -> None:
    nowhere = HealthPort(ServerConfig(), health, Probes())
    assert nowhere.number is None
    nowhere.close()
    with pytest.raises(StartError, match=f"port {port} of 127.0.0.1 is in use; choose another with --health-port"):
        HealthPort(ServerConfig(health_port=port), health, Probes())
