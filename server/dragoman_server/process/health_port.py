"""grpc.health.v1 on a port of its own, answered by threads of its own.

On the main port the event loop answers, behind everything else that it has to do: with a thousand calls in flight that
takes a good part of a second. Anything that kills or bypasses a server when a check is slow should use this port.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman_server.api.health_service import Health, Response
from dragoman_server.config import ServerConfig
from dragoman_server.process.addresses import addresses_of, listen_on
from dragoman_server.process.connections import server_options
from dragoman_server.process.readiness import Probes

MAX_CONNECTIONS = 64
# Every call holds a thread while it lasts: a watch for long, a check until the client has sent its request.
MAX_WATCHES = 16
MAX_CALLS = MAX_WATCHES + 64
MAX_BYTES = 4096  # of a request, which is a name
POLL_SECONDS = 1.0  # a hanging event loop announces no change


class HealthPort:
    """Serves health checks on their own port, if one is configured; in plain text, as the kubelet speaks it.

    Attributes:
        number: The port; None without one.

    Raises:
        StartError: The port can't be opened.
    """

    def __init__(self, config: ServerConfig, health: Health, probes: Probes) -> None:
        self.number: int | None = None
        self._server: grpc.Server | None = None
        if config.health_port is None:
            return
        addresses = addresses_of(config.host, config.health_port, "--health-port")
        limits = config.model_copy(update={"max_message_bytes": MAX_BYTES, "max_concurrent_streams": MAX_CALLS})
        options = server_options(limits, MAX_CONNECTIONS)
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="health")
        self._server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=MAX_CALLS)
        health_pb2_grpc.add_HealthServicer_to_server(_HealthServicer(health, probes), self._server)
        self.number = listen_on(addresses, config.health_port, "--health-port", self._server.add_insecure_port)
        self._server.start()

    def close(self) -> None:
        """Ends all calls, and waits until they have ended."""
        if self._server is not None:
            self._server.stop(None).wait()
            self._threads.shutdown()


class _HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the stubs carry no types
    """Serves `Health` from threads; nothing is SERVING while the event loop hangs."""

    def __init__(self, health: Health, probes: Probes) -> None:
        self._health = health
        self._probes = probes
        self._watches = BoundedSemaphore(MAX_WATCHES)

    def _status(self, service: str) -> Any:
        status = self._health.status(service)
        return Response.NOT_SERVING if status == Response.SERVING and self._probes.livez() else status

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:
        status = self._status(request.service)
        if status == Response.SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, "this server has no such service")
        return Response(status=status)

    def List(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Lists the services without the models, like the main port."""
        services = sorted(self._health.services)
        return health_pb2.HealthListResponse(statuses={name: Response(status=self._status(name)) for name in services})

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if not self._watches.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MAX_WATCHES} may watch at once on this port")
        sent = None

        def changed() -> bool:
            return self._health.ended or not context.is_active() or self._status(request.service) != sent

        try:
            context.add_callback(self._health.wake)  # called when the client leaves
            while not self._health.ended and context.is_active():
                if (status := self._status(request.service)) != sent:
                    sent = status
                    yield Response(status=status)
                self._health.wait_for(changed, POLL_SECONDS)
        finally:
            self._watches.release()
