"""Samples a server under load: its metrics, its process and how fast it answers health checks."""

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
    """The state of the server at one moment.

    Attributes:
        seconds: Time since the first sample.
        waiting, rows, in_flight: Requests in the queue, cache rows in use, running calls.
        threads, files: Threads and open files of the process.
        connections: Connections to its gRPC port, except the monitor's own.
        resident_bytes: Resident memory of the process.
        health_seconds: Time until the health check answered SERVING; None if it did not.
        late_seconds: Delay with which the monitor itself woke up. If delays are common, the machine is too busy with
            other things for a meaningful soak.
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

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.rows or self.in_flight or self.connections)


class Monitor:
    """Samples a server over a connection of its own; an async context manager for one event loop."""

    def __init__(self, server: LocalServer) -> None:
        self.samples: list[Sample] = []
        self._server = server
        self._process = psutil.Process(server.process.pid)
        self._started = time.monotonic()

    async def __aenter__(self) -> "Monitor":
        self._channel = grpc.aio.insecure_channel(self._server.address, [("grpc.use_local_subchannel_pool", 1)])
        self._health = health_pb2_grpc.HealthStub(self._channel)
        await self._channel.channel_ready()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def run(self, interval: float) -> None:
        """Appends a sample to `samples` every `interval` seconds, until cancelled."""
        late = 0.0
        while True:
            self.samples.append(replace(await self.sample(), late_seconds=late))
            asleep = time.monotonic()
            await asyncio.sleep(interval)
            late = max(0.0, time.monotonic() - asleep - interval)

    async def sample(self) -> Sample:
        health = await self._check_health()
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
            connections=sum(bool(connection.raddr) for connection in self._connections()) - 1,
            resident_bytes=process.memory_info().rss,
            health_seconds=health,
        )

    def peers(self) -> set[int]:
        """Returns the client ports of the server's connections."""
        return {connection.raddr.port for connection in self._connections() if connection.raddr}

    def _connections(self) -> list[Any]:
        port = self._server.port
        return [connection for connection in self._process.net_connections("tcp") if connection.laddr.port == port]

    async def _check_health(self) -> float | None:
        started = time.monotonic()
        try:
            answer = await self._health.Check(health_pb2.HealthCheckRequest(), timeout=HEALTH_SECONDS)
        except grpc.aio.AioRpcError:
            return None
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            return None
        return time.monotonic() - started
