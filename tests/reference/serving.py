"""Requests served together by the real engines, from a program that is not asynchronous itself."""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from dragoman_server.bundle.load import load_bundle
from dragoman_server.core.requests import GenerationRequest, GenerationResult, HypothesisResult, Progress
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.pool import EnginePool
from dragoman_server.metrics import ServerMetrics

Result = TypeVar("Result")


class Served:
    """A bundle's engines on an event loop of their own."""

    def __init__(self, bundle: Path, rows: int) -> None:
        self._bundle = bundle
        self._options = EngineOptions(device="cpu", engines=1, threads_per_engine=1, max_rows=rows)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> "Served":
        self._thread.start()
        self._pool = EnginePool(load_bundle(self._bundle), self._options, ServerMetrics().model("test"))
        self._do(self._pool.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._do(self._pool.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def answers(self, requests: Sequence[GenerationRequest], delays: Sequence[float]) -> list[list[HypothesisResult]]:
        """All answers, where each request arrives after its delay in seconds."""

        async def all_of_them() -> list[list[HypothesisResult]]:
            return await asyncio.gather(*(self._answer(r, d) for r, d in zip(requests, delays, strict=True)))

        return self._do(all_of_them())

    async def _answer(self, request: GenerationRequest, delay: float) -> list[HypothesisResult]:
        await asyncio.sleep(delay)
        generation = self._pool.submit(request)
        if not request.streaming:
            return (await generation.result()).hypotheses
        told: dict[int, list[int]] = {}
        async for event in generation.events():
            if isinstance(event, Progress):
                told.setdefault(event.hypothesis, []).extend(event.ids)
            elif isinstance(event, GenerationResult):
                # What a stream told token by token is what it ends with.
                final = {index: h.ids for index, h in enumerate(event.hypotheses)}
                assert told == {index: final.get(index) for index in told}, (request, told, event)
                return event.hypotheses
        raise AssertionError("the stream ended without an answer")

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)
