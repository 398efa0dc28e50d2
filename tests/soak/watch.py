"""What the server is like while it is under load: its metrics, its process, and how soon it says that it is well."""

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Any

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.local import LocalServer

HEALTH_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the server.

    Attributes:
        seconds: since the first.
        waiting, rows, in_flight: requests in the queue, cache rows in use, calls that run.
        threads, files, connections: of the process; connections are those to its gRPC port, the watcher's left out.
        resident_bytes: of its memory.
        health_seconds: until it said that it is serving; None where it did not.
        late_seconds: by which the watcher itself woke up too late: where these are many, the machine is too busy with
            other things for a soak to tell anything.
    """

    seconds: float
    waiting: int
    rows: int
    in_flight: int
    threads: int
    files: int
    connections: int
    resident_bytes: int
    health_seconds: float | None
    late_seconds: float = 0.0


class Watcher:
    """Looks at a server, with one connection of its own. For use on one event loop, within `async with`."""

    def __init__(self, server: LocalServer) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._process = psutil.Process(server.process.pid)
        self._started = time.monotonic()

    async def __aenter__(self) -> "Watcher":
        self._channel = grpc.aio.insecure_channel(self._server.address, [("grpc.use_local_subchannel_pool", 1)])
        self._health = health_pb2_grpc.HealthStub(self._channel)
        await self._channel.channel_ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def watch(self, seconds: float) -> None:
        """Looks every so many seconds, for ever; keeps what it sees."""
        late = 0.0
        while True:
            self.samples.append(replace(await self.look(), late_seconds=late))
            asked = time.monotonic()
            await asyncio.sleep(seconds)
            late = max(0.0, time.monotonic() - asked - seconds)

    async def look(self) -> Sample:
        health = await self._ask_health()
        metrics = await asyncio.to_thread(self._server.metrics)
        process = self._process

        def total(name: str) -> int:
            return int(sum(value for key, value in metrics.items() if key.partition("{")[0] == name))

        return Sample(
            seconds=time.monotonic() - self._started,
            waiting=total("dragoman_requests_waiting"),
            rows=total("dragoman_rows_running"),
            in_flight=total("dragoman_requests_in_flight"),
            threads=process.num_threads(),
            files=process.num_fds(),
            connections=sum(bool(each.raddr) for each in self._connections()) - 1,
            resident_bytes=process.memory_info().rss,
            health_seconds=health,
        )

    def peers(self) -> set[int]:
        """The ports at the other end of the server's connections."""
        return {each.raddr.port for each in self._connections() if each.raddr}

    def _connections(self) -> list[Any]:
        return [each for each in self._process.net_connections("tcp") if each.laddr.port == self._server.port]

    async def _ask_health(self) -> float | None:
        started = time.monotonic()
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_SECONDS)
        except grpc.aio.AioRpcError:
            return None
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            return None
        return time.monotonic() - started
