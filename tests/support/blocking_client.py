"""An AsyncClient with blocking methods, so that one test covers both clients."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from dragoman import AsyncClient, RetryPolicy

QUICK = RetryPolicy(attempts=4, initial_delay=0.01, max_delay=0.02)


class BlockingStream:
    """An AsyncGenerationStream with blocking methods."""

    def __init__(self, stream: Any, wait: Callable[[Any], Any]) -> None:
        self._stream = stream
        self._wait = wait

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return self._wait(anext(self._stream))
        except StopAsyncIteration:
            raise StopIteration from None

    def result(self) -> Any:
        return self._wait(self._stream.result())

    def cancel(self) -> None:
        self._stream.cancel()


class BlockingAsyncClient:
    """An AsyncClient with an event loop of its own."""

    def __init__(self, address: str, **arguments: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(address, **arguments)

    def _wait(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(awaitable)

    def generate_stream(self, *arguments: Any, **options: Any) -> BlockingStream:
        async def start() -> Any:
            return self._client.generate_stream(*arguments, **options)

        return BlockingStream(self._wait(start()), self._wait)

    def generate_many(self, *arguments: Any, **options: Any) -> list[Any]:
        async def collect() -> list[Any]:
            return [result async for result in self._client.generate_many(*arguments, **options)]

        return list(self._wait(collect()))

    def close(self) -> None:
        self._wait(self._client.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *arguments, **options: self._wait(method(*arguments, **options))
