"""grpc.health.v1 on a port of its own, answered by threads of its own.

On the port that clients use, the event loop answers, after all that it has to do before: with a thousand calls in
flight that takes a good part of a second. Whoever kills or leaves out a server that is slow to say how it is shall ask
here.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import BoundedSemaphore
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman_server.api.health_service import Health, Response
from dragoman_server.config import ServerConfig
from dragoman_server.process.connections import server_options
from dragoman_server.process.probes import Probes

MOST_CONNECTIONS = 64
# Each has a thread as long as it lasts: a watch for long, and a check until the client has said what it asks for.
MOST_WATCHES = 16
MOST_CALLS = MOST_WATCHES + 64
MOST_BYTES = 4096  # of a request, which is a name
LOOK_SECONDS = 1.0  # an event loop that hangs announces nothing


class BlockingHealth(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the stubs carry no types
    """What `Health` says, for a gRPC server of threads; and that nothing is served while the event loop hangs."""

    def __init__(self, health: Health, probes: Probes) -> None:
        self._health = health
        self._probes = probes
        self._watches = BoundedSemaphore(MOST_WATCHES)

    def _status(self, service: str) -> Any:
        status = self._health.status(service)
        return Response.NOT_SERVING if status == Response.SERVING and self._probes.livez() else status

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:
        status = self._status(request.service)
        if status == Response.SERVICE_UNKNOWN:
            context.abort(grpc.StatusCode.NOT_FOUND, "this server has no such service")
        return Response(status=status)

    def List(self, request: Any, context: grpc.ServicerContext) -> Any:
        """The services alone, as on the other port."""
        services = sorted(self._health.services)
        return health_pb2.HealthListResponse(statuses={name: Response(status=self._status(name)) for name in services})

    def Watch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        if not self._watches.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"at most {MOST_WATCHES} may watch at once on this port")
        sent = None

        def news() -> bool:
            return self._health.ended or not context.is_active() or self._status(request.service) != sent

        try:
            context.add_callback(self._health.wake)  # when the client leaves
            while not self._health.ended and context.is_active():
                if (status := self._status(request.service)) != sent:
                    sent = status
                    yield Response(status=status)
                self._health.wait_for(news, LOOK_SECONDS)
        finally:
            self._watches.release()


def health_threads() -> ThreadPoolExecutor:
    """Those that answer; made as they are needed."""
    return ThreadPoolExecutor(MOST_CALLS, thread_name_prefix="health")


def health_server(config: ServerConfig, health: Health, probes: Probes, threads: ThreadPoolExecutor) -> grpc.Server:
    """A server that has no port yet."""
    limits = config.model_copy(update={"max_message_bytes": MOST_BYTES, "max_concurrent_streams": MOST_CALLS})
    server = grpc.server(
        threads,
        options=server_options(limits, MOST_CONNECTIONS),
        maximum_concurrent_rpcs=MOST_CALLS,
    )
    health_pb2_grpc.add_HealthServicer_to_server(BlockingHealth(health, probes), server)
    return server
