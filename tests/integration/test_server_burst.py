"""Thousands of calls in one moment: the server's queue decides, not what lies below it."""

import asyncio
from collections import Counter

import grpc

from dragoman.local import LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc

CALLS = 3000


async def test_calls_beyond_the_queue_are_refused_with_a_delay(tiny_server: LocalServer) -> None:
    request = pb.GenerateRequest(input=pb.Input(text="4207"))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{tiny_server.port}") as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)

        async def call() -> str:
            try:
                await stub.Generate(request)
            except grpc.aio.AioRpcError as error:
                explained = "grpc-status-details-bin" in dict(error.trailing_metadata() or ())
                return error.code().name if explained else f"{error.code().name} without a delay"
            return "OK"

        codes = Counter(await asyncio.gather(*(call() for _ in range(CALLS))))
        assert codes.keys() <= {"OK", "RESOURCE_EXHAUSTED"}
        assert codes["OK"] >= 1000, "as many as the queue takes"
        assert (await stub.Generate(request)).hypotheses[0].text == "four thousand two hundred seven"
