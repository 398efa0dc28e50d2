"""How the server leaves without dropping a call; docs/leaving.md draws it."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

import grpc
import structlog

from dragoman_server.api.generation_service import SERVICE as GENERATION
from dragoman_server.api.health_service import Health
from dragoman_server.api.inference.inference_service import SERVICE as INFERENCE
from dragoman_server.api.inference.inference_service import InferenceService
from dragoman_server.metrics import ServerMetrics
from dragoman_server.models.manager import STOPPING, ModelManager
from dragoman_server.models.registry import ModelRegistry

log = structlog.get_logger()

SERVICES = (GENERATION, INFERENCE)
POLL_SECONDS = 0.02
QUIET_POLLS = 5  # in a row that see no new call; a number, as seconds may pass in an event loop that does not get on
LAST_SECONDS = 1.0  # for what is sent already to get to its clients


@dataclass(frozen=True, slots=True)
class Leaving:
    """From the moment in which the server is unready: it serves for a while, refuses, finishes, and stops."""

    server: grpc.aio.Server
    metrics: ServerMetrics
    registry: ModelRegistry
    inference: InferenceService
    manager: ModelManager
    health: Health

    async def delay(self, seconds: float) -> None:
        """Serves on, while whoever sends calls here gets to know that it should not; less long if an engine fails."""
        if seconds:
            log.info("leaving", serves_for_seconds=seconds)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.manager.failed.wait(), seconds)

    async def drain(self, seconds: float) -> bool:
        """Refuses new calls, and finishes what runs or ends it when its time is over.

        As soon as no more calls come, clients are told to connect elsewhere (GOAWAY), and nobody can connect here any
        more; those that balance connections instead of calls would else send theirs here until the last call has ended.
        Not earlier: a gRPC server that stops ends calls that it has received and not yet handed over, or receives
        before its client has heard of that, with CANCELLED, which tells a client nothing. As long as it runs they are
        refused with UNAVAILABLE.

        Args:
            seconds: time for what runs.

        Returns:
            whether the server has stopped. Else calls still come, and the process shall end as it is: those that it has
            then end with UNAVAILABLE, too.
        """
        deadline = time.monotonic() + seconds
        self.registry.refuse(STOPPING)
        self.inference.drain()
        log.info("draining", calls=self._running, at_most_seconds=seconds)
        quiet = asyncio.Event()
        stopping = asyncio.create_task(self._stop_when_quiet(quiet, seconds))
        # Polled once in a server's life, instead of signalled by every call.
        while self._running and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        if unfinished := self._running:
            log.warning("calls were not finished in time and end with UNAVAILABLE", calls=unfinished)
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
        """Waits until no more calls come; then there is no server for new ones, and those that run go on."""
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
