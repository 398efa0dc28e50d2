"""What API keys let through, and what each request costs them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.auth import CALLER, Authenticator
from dragoman_server.messages.api_error import ApiError
from dragoman_server.new_key import add
from dragoman_server.security.keys import ApiKeys
from tests.support.waiting import until_async

GENERATE = "dragoman.v1.GenerationService/Generate"
LOAD = "inference.GRPCInferenceService/RepositoryModelLoad"
STREAM = "inference.GRPCInferenceService/ModelStreamInfer"


class Call:
    """Stands for a ServicerContext."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Door:
    """A gate with three keys."""

    def __init__(self, path: Path) -> None:
        self.clock = Clock()
        self.keys = {"plain": add(path, "plain"), "ops": add(path, "ops", admin=True)}
        self.keys["slow"] = add(path, "slow", per_second="10")
        self.authenticator = Authenticator(ApiKeys(path, self.clock))

    def call(self, name: str, method: str = GENERATE, request: Any = None) -> Any:
        return self.authenticator.call(method, request or pb.GenerateRequest(), self.context(name))

    def context(self, name: str) -> Any:
        return cast("Any", Call(("user-agent", "x"), ("authorization", f"Bearer {self.keys[name]}")))

    def refused(self, name: str, method: str = GENERATE, request: Any = None) -> grpc.StatusCode:
        with pytest.raises(ApiError) as error, self.call(name, method, request):
            pass
        return error.value.code


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path / "keys.txt")


@pytest.fixture(autouse=True)
def nobody_calls_afterwards() -> Iterator[None]:
    """A server has a context for each call; these tests share one with those that follow."""
    yield
    CALLER.set(None)


def test_a_call_is_known_by_its_key(door: Door) -> None:
    with door.call("plain") as request:
        assert request == pb.GenerateRequest()
        assert CALLER.get() == "plain"
    key = door.keys["plain"]
    for value in (key, f"Basic {key}", "Bearer", "Bearer ", f"Bearer {key} {key}", f"Bearer {key}".encode() + b"\xff"):
        with (
            pytest.raises(ApiError) as error,
            door.authenticator.call(GENERATE, None, cast("Any", Call(("authorization", value)))),
        ):
            pass
        assert error.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert key not in error.value.message
    with door.authenticator.call(GENERATE, None, cast("Any", Call(("authorization", f"bearer  {key}")))):
        pass


def test_only_an_administrator_s_key_loads_and_unloads(door: Door) -> None:
    for method in (LOAD, "dragoman.v1.AdminService/UnloadModel"):
        assert door.refused("plain", method) is grpc.StatusCode.PERMISSION_DENIED
        with door.call("ops", method):
            pass
    with door.call("ops"):
        pass


@pytest.mark.parametrize(
    "request_",
    [
        pb.GenerateBatchRequest(inputs=[pb.Input(text="a")] * 50),
        oip.ModelInferRequest(inputs=[oip.ModelInferRequest.InferInputTensor(name="text", shape=[5, 10])]),
    ],
    ids=["batch", "tensor"],
)
def test_each_input_of_a_batch_costs_as_a_request_does(door: Door, request_: Any) -> None:
    with door.call("slow", request=request_):
        pass
    door.clock.now = 4.0
    assert door.refused("slow") is grpc.StatusCode.RESOURCE_EXHAUSTED
    door.clock.now = 4.2
    with door.call("slow"):
        pass


@pytest.mark.parametrize(
    "shape", [[], [0], [-7], [2**40, 2**40], [2**63 - 1] * 100_000], ids=lambda shape: f"{len(shape)} dimensions"
)
def test_a_tensor_that_lies_about_its_shape_counts_as_something(door: Door, shape: list[int]) -> None:
    request = oip.ModelInferRequest(inputs=[oip.ModelInferRequest.InferInputTensor(name="text", shape=shape)])
    for _ in range(10):
        door.clock.now += 10_000_000
        with door.call("slow", request=request):
            pass


async def test_requests_of_one_stream_come_as_fast_as_the_key_may(door: Door) -> None:
    async def messages() -> AsyncIterator[oip.ModelInferRequest]:
        for number in range(12):
            yield oip.ModelInferRequest(id=str(number))

    taken: list[str] = []

    async def take() -> None:
        with door.call("slow", STREAM, messages()) as admitted:
            async for message in admitted:
                taken.append(message.id)  # noqa: PERF401  # looked at in between

    task = asyncio.create_task(take())
    await until_async(lambda: len(taken) >= 10)
    assert taken == [str(number) for number in range(10)]
    door.clock.now = 0.2
    await asyncio.wait_for(task, 10)
    assert taken == [str(number) for number in range(12)]


def test_without_keys_everyone_may(door: Door) -> None:
    request = pb.GenerateRequest()
    with Authenticator().call(LOAD, request, cast("Any", Call())) as admitted:
        assert admitted is request
    with door.authenticator.call("grpc.health.v1.Health/Check", request, cast("Any", Call())) as admitted:
        assert admitted is request
