"""grpc.health.v1 for asyncio.

The servicer that comes with grpcio-health-checking forgets all watchers of a service when one of them leaves, and can't
change a status while one of them does not read. Health must work then of all times.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from server.api.errors import ApiError

Response = health_pb2.HealthCheckResponse
Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the stubs carry no types
    """All of the server's services are healthy together, or none is.

    Args:
        services: names that may be asked for, beside "" for the whole server.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self._services = {"", *services}
        self._status = Response.NOT_SERVING
        self._ended = False
        self._changed = asyncio.Event()  # one for each status; set when the next one comes

    def set_serving(self, serving: bool) -> None:
        """Tells everyone who watches."""
        self._status = Response.SERVING if serving else Response.NOT_SERVING
        self._announce()

    def end(self) -> None:
        """Ends all watches, since the server stops."""
        self._ended = True
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def Check(self, request: Any, context: Context) -> Any:
        if request.service not in self._services:
            raise ApiError(grpc.StatusCode.NOT_FOUND, "this server has no such service")
        return Response(status=self._status)

    async def Watch(self, request: Any, context: Context) -> AsyncIterator[Any]:
        known = request.service in self._services
        sent = None
        while not self._ended:
            status, changed = self._status if known else Response.SERVICE_UNKNOWN, self._changed
            if status != sent:
                yield Response(status=status)
                sent = status
            else:
                await changed.wait()
