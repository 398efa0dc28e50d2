"""Constant load of concurrent calls, and their outcomes."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from dragoman import DragomanError

Call = Callable[[], Awaitable[object]]
PAUSE_SECONDS = 0.02  # between two calls of one task; other tests need the cores, too


def steady_ports(count: int) -> list[int]:
    """Returns free ports outside the range from which the system assigns ports.

    A restarted server finds its port free, and no client connects to itself meanwhile. Ports are drawn at random,
    since other tests search at the same time.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports: list[int] = []
    candidates = range(1025, first)
    for port in random.sample(candidates, len(candidates)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AssertionError("no ports are free")


@asynccontextmanager
async def constant_load(
    calls: Mapping[str, Call], concurrency: int = 4, pause: float = PAUSE_SECONDS
) -> AsyncIterator[Counter[tuple[str, str]]]:
    """Makes calls until the block ends.

    Args:
        calls: Functions that make one call, by name.
        concurrency: Number of concurrent calls of each.
        pause: Seconds between the end of a call and the start of the next one.

    Yields:
        Number of calls by name and outcome ("OK", or the code with its details); complete after the block.
    """
    ended: Counter[tuple[str, str]] = Counter()
    over = asyncio.Event()

    async def repeat(name: str, call: Call) -> None:
        while not over.is_set():
            try:
                await call()
                outcome = "OK"
            except grpc.aio.AioRpcError as error:
                outcome = f"{error.code().name}: {error.details()}"
            except DragomanError as error:
                outcome = f"{error.code}: {error}"
            ended[name, outcome] += 1
            await asyncio.sleep(pause)

    async with asyncio.TaskGroup() as tasks:
        for name, call in calls.items():
            for _ in range(concurrency):
                tasks.create_task(repeat(name, call))
        try:
            yield ended
        finally:
            over.set()
