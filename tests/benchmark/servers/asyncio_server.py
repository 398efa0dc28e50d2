"""A plain asyncio gRPC server over CTranslate2, as one would write it in an afternoon: no more than it takes to serve.

Started as `python -m tests.benchmark.servers.asyncio_server`, see --help. It answers Generate with the best text, and
knows no option but max_new_tokens.
"""

import argparse
import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import grpc
import uvloop

from dragoman.local import LOOPBACK
from dragoman.v1 import generation_pb2 as pb
from dragoman.v1 import generation_pb2_grpc
from tests.benchmark.servers.translation import TextTranslator


@dataclass(frozen=True)
class _Waiting:
    text: str
    limit: int
    answer: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Translator(Protocol):
    """What translates whole batches; see TextTranslator."""

    def translate(self, texts: Sequence[str], limits: Sequence[int]) -> list[str]: ...


class MicroBatcher:
    """Gathers what waits into batches; one that is being translated takes nobody in.

    Args:
        translator: of whole batches.
        workers: batches translated at the same time.
        most: texts in a batch at most; 1 for no batching.
        delay: seconds that the first text of a batch waits for others, where there are not enough.
    """

    def __init__(self, translator: Translator, workers: int, most: int, delay: float) -> None:
        self._translator, self._most, self._delay = translator, most, delay
        self._queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self._pool = ThreadPoolExecutor(workers)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(workers)]

    async def answer(self, text: str, limit: int) -> str:
        waiting = _Waiting(text, limit)
        self._queue.put_nowait(waiting)
        return await waiting.answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._gather()
            texts, limits = [one.text for one in batch], [one.limit for one in batch]
            try:
                answers = await loop.run_in_executor(self._pool, self._translator.translate, texts, limits)
            except Exception as error:
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
                continue
            for one, answer in zip(batch, answers, strict=True):
                if not one.answer.done():  # its caller may have gone
                    one.answer.set_result(answer)

    async def _gather(self) -> list[_Waiting]:
        batch = [await self._queue.get()]
        end = asyncio.get_running_loop().time() + self._delay
        while len(batch) < self._most:
            if not self._queue.empty():
                batch.append(self._queue.get_nowait())
                continue
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                break
            try:
                batch.append(await asyncio.wait_for(self._queue.get(), left))
            except TimeoutError:
                break
        return batch


class Service(generation_pb2_grpc.GenerationServiceServicer):
    """Generate alone."""

    def __init__(self, batcher: MicroBatcher) -> None:
        self._batcher = batcher

    async def Generate(self, request: pb.GenerateRequest, context: object) -> pb.GenerateResponse:
        text = await self._batcher.answer(request.input.text, request.options.max_new_tokens)
        return pb.GenerateResponse(hypotheses=[pb.Hypothesis(text=text)])


async def serve(arguments: argparse.Namespace) -> None:
    """Until the process is ended."""
    translator = TextTranslator(arguments.model, arguments.compute_type, arguments.workers, arguments.threads)
    batcher = MicroBatcher(translator, arguments.workers, arguments.batch, arguments.delay)
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Service(batcher), server)
    server.add_insecure_port(f"{LOOPBACK}:{arguments.port}")
    await server.start()
    await server.wait_for_termination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="of the loopback interface")
    parser.add_argument("--model", required=True, help="directory of the converted model, with its tokenizers")
    parser.add_argument("--compute-type", default="float32")
    parser.add_argument("--workers", type=int, default=1, help="batches at the same time")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--batch", type=int, default=1, help="texts in a batch at most")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that a batch waits for more")
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
