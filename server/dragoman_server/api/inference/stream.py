"""A stream of requests that are answered concurrently."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from dragoman.inference import open_inference_pb2 as oip
from dragoman_server.messages.api_error import unavailable
from dragoman_server.models.manager import STOPPING

# Requests of one stream that run at the same time. Further ones are read when one is done.
MAX_REQUESTS = 256
# Responses buffered for a client that reads slowly. Beyond that its own requests wait.
MAX_RESPONSES = 64

Answer = Callable[[oip.ModelInferRequest], AsyncGenerator[oip.ModelStreamInferResponse, None]]


class RequestStream:
    """One ModelStreamInfer call.

    Args:
        answer: Generates the responses to one request. Reports errors as a response instead of raising them.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._responses: asyncio.Queue[oip.ModelStreamInferResponse | None] = asyncio.Queue(MAX_RESPONSES)
        self._room = asyncio.Semaphore(MAX_REQUESTS)
        self._answering: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None

    async def run(
        self, requests: AsyncIterator[oip.ModelInferRequest]
    ) -> AsyncGenerator[oip.ModelStreamInferResponse, None]:
        """Yields the responses until all requests are answered or, while draining, all that have been read.

        Raises:
            ApiError: the server is stopping.
            Exception: any error that `requests` raises.
        """
        reading = self._reading = asyncio.create_task(self._read(requests))
        ending = asyncio.create_task(self._end(reading))
        try:
            while (response := await self._responses.get()) is not None:
                yield response
            if reading.cancelled():
                raise unavailable(STOPPING)
            reading.result()
        finally:
            tasks = [ending, reading, *self._answering]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def drain(self) -> None:
        """Stops reading requests."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, requests: AsyncIterator[oip.ModelInferRequest]) -> None:
        async for request in requests:
            await self._room.acquire()
            task = asyncio.create_task(self._respond(request))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _end(self, reading: asyncio.Task[None]) -> None:
        await asyncio.wait([reading])
        while self._answering:
            await asyncio.wait(self._answering)
        await self._responses.put(None)

    async def _respond(self, request: oip.ModelInferRequest) -> None:
        try:
            async with aclosing(self._answer(request)) as responses:
                async for response in responses:
                    await self._responses.put(response)
        finally:
            self._room.release()
