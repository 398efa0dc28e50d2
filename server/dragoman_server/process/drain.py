"""Stops the server without dropping a call; docs/drain.md shows the steps."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import grpc
import structlog

from dragoman_server.api.generation_service import SERVICE as GENERATION
from dragoman_server.api.health_service import Health
from dragoman_server.api.inference.inference_service import SERVICE as INFERENCE
from dragoman_server.api.open_streams import OpenStreams
from dragoman_server.metrics import ServerMetrics
from dragoman_server.models.manager import STOPPING, ModelManager
from dragoman_server.models.registry import ModelRegistry

log = structlog.get_logger()

SERVICES = (GENERATION, INFERENCE)
POLL_SECONDS = 0.02
QUIET_POLLS = 5  # without a new call, in a row; a count, since seconds may pass while the event loop is stuck
LAST_SECONDS = 1.0  # for the last responses to reach their clients


@dataclass(frozen=True, slots=True)
class Drain:
    """The end of a server that is already unready: `delay`, then `finish`."""

    server: grpc.aio.Server
    metrics: ServerMetrics
    registry: ModelRegistry
    streams: OpenStreams
    manager: ModelManager
    health: Health

    async def delay(self, seconds: float) -> None:
        """Keeps serving while clients and balancers notice that the server is unready, unless an engine fails."""
        if seconds:
            log.info("drain delay", serves_for_seconds=seconds)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.manager.failed.wait(), seconds)

    async def finish(self, seconds: float) -> bool:
        """Refuses new calls and finishes the running ones, or ends them when their time is over.

        As soon as no more calls arrive, the gRPC server stops: clients get GOAWAY, and nobody can connect. Clients that
        balance connections instead of calls would otherwise send calls here until the last one has ended. It must not
        stop earlier: a stopping gRPC server ends calls that it has received but not yet dispatched, or that cross the
        GOAWAY, with CANCELLED, which gives a client no reason. Until then they are refused with UNAVAILABLE.

        Args:
            seconds: Time for the running calls.

        Returns:
            Whether the gRPC server has stopped. If not, calls still arrive, and the process should exit as it is: then
            the calls that it has end with UNAVAILABLE as well.
        """
        deadline = time.monotonic() + seconds
        self.registry.refuse(STOPPING)
        self.streams.drain()
        log.info("draining", calls=self._running, at_most_seconds=seconds)
        quiet = asyncio.Event()
        stopping = asyncio.create_task(self._stop_when_quiet(quiet, seconds))
        # Polling happens once in a server's life; signalling would cost every call.
        while self._running and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        if unfinished := self._running:
            log.warning("calls did not finish in time and end with UNAVAILABLE", calls=unfinished)
        await self.manager.close()
        self.health.end()
        with suppress(TimeoutError):
            await asyncio.wait_for(quiet.wait(), LAST_SECONDS)
        if quiet.is_set():
            await self.server.stop(LAST_SECONDS)
            await stopping
        log.info("stopped")
        return quiet.is_set()

    async def _stop_when_quiet(self, quiet: asyncio.Event, seconds: float) -> None:
        """Stops the gRPC server once no more calls arrive; running calls go on."""
        before, polls = -1, 0
        while polls < QUIET_POLLS:
            await asyncio.sleep(POLL_SECONDS)
            polls = polls + 1 if self.metrics.calls.begun == before else 0
            before = self.metrics.calls.begun
        quiet.set()
        await self.server.stop(seconds + LAST_SECONDS)

    @property
    def _running(self) -> int:
        return self.metrics.calls.running(*SERVICES)
