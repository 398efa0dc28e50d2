"""A plain asyncio gRPC server over CTranslate2, as anyone would write it in an afternoon.

Started as `python -m tests.benchmark.servers.asyncio_server JSON`, with the arguments of `serve`. It answers Generate
with the best text; its only option is max_new_tokens.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import uvloop

from dragoman.local import LOOPBACK
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.benchmark.servers.translation import TextTranslator

Waiting = tuple[str, int, "asyncio.Future[str]"]
"""A text, the most tokens of its answer, and where that goes."""


class MicroBatcher:
    """Gathers waiting texts into batches; a running batch admits no more.

    Args:
        translate: Function from texts and the limits of their answers to answers; runs in a thread.
        workers: Number of batches translated concurrently.
        most: The most texts in a batch; a batch is what arrived while the last one ran.
    """

    def __init__(self, translate: Callable[[Sequence[str], Sequence[int]], list[str]], workers: int, most: int) -> None:
        self._translate, self._most = translate, most
        self._queue: asyncio.Queue[Waiting] = asyncio.Queue()
        self._pool = ThreadPoolExecutor(workers)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]

    async def answer(self, text: str, limit: int) -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((text, limit, answer))
        return await answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            texts, limits, waiting = zip(*await self._gather(), strict=True)
            try:
                answers = await loop.run_in_executor(self._pool, self._translate, texts, limits)
            except Exception as error:
                for one in waiting:
                    if not one.done():
                        one.set_exception(error)
                continue
            for one, answer in zip(waiting, answers, strict=True):
                if not one.done():  # its caller may have gone
                    one.set_result(answer)

    async def _gather(self) -> list[Waiting]:
        batch = [await self._queue.get()]
        while len(batch) < self._most and not self._queue.empty():
            batch.append(self._queue.get_nowait())
        return batch


class Service(generation_pb2_grpc.GenerationServiceServicer):
    """Generate alone."""

    def __init__(self, batcher: MicroBatcher) -> None:
        self._batcher = batcher

    async def Generate(self, request: pb.GenerateRequest, context: object) -> pb.GenerateResponse:
        text = await self._batcher.answer(request.input.text, request.options.max_new_tokens)
        return pb.GenerateResponse(hypotheses=[pb.Hypothesis(text=text)])


async def serve(port: int, model: str, compute_type: str, workers: int, threads: int, batch: int) -> None:
    """Serves until the process is ended.

    Args:
        port: Port on the loopback interface.
        model: Directory of the converted model with its tokenizers.
        workers: Number of concurrent batches, each with its own threads and largest size.
    """
    batcher = MicroBatcher(TextTranslator(model, compute_type, workers, threads).translate, workers, batch)
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Service(batcher), server)
    server.add_insecure_port(f"{LOOPBACK}:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(serve(**json.loads(sys.argv[1])))
