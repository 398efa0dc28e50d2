"""grpc.health.v1 for asyncio.

The servicer that comes with grpcio-health-checking forgets all watchers of a service when one of them leaves, and can't
change a status while one of them does not read. Health must work then of all times.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman_server.messages.api_error import ApiError

MODEL = "model:"  # what a model's name stands behind where its health is asked for
Response = health_pb2.HealthCheckResponse
Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the stubs carry no types
    """All of the server's services are healthy together, or none is; each model is asked for as "model:NAME".

    The event loop's thread changes it; any thread may read it, and wait for changes.

    Args:
        services: names that may be asked for, beside "" for the whole server.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self.services = frozenset({"", *services})
        self._serving = False
        self._models: Mapping[str, bool] | None = None
        self._ended = False
        self._changed = asyncio.Event()  # one for each status; set when the next one comes
        self._changes = threading.Condition()

    @property
    def serving(self) -> bool:
        return bool(self.status("") == Response.SERVING)

    @property
    def ended(self) -> bool:
        """Whether the server stops, and all watches with it."""
        return self._ended

    def set_serving(self, serving: bool) -> None:
        """Tells everyone who watches."""
        self._serving = serving
        self._announce()

    def set_models(self, models: Mapping[str, bool]) -> None:
        """Tells everyone who watches which models there are, and whether they take requests.

        A server none of whose models does is not serving.
        """
        if models != self._models:
            self._models = dict(models)
            self._announce()

    def end(self) -> None:
        """Ends all watches, since the server stops."""
        self._ended = True
        self._announce()

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> None:
        """Blocks the calling thread until something holds, or that long.

        Args:
            holds: looked at whenever a status changes, and at every `wake`.
        """
        with self._changes:
            self._changes.wait_for(holds, seconds)

    def wake(self) -> None:
        """Has every thread that waits look again."""
        with self._changes:
            self._changes.notify_all()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.wake()

    def status(self, service: str) -> Any:
        """The status of a service or a model; SERVICE_UNKNOWN where there is none of that name."""
        models = self._models or {}
        if service in self.services:
            serving = self._models is None or any(models.values())
        elif service.startswith(MODEL) and service.removeprefix(MODEL) in models:
            serving = models[service.removeprefix(MODEL)]
        else:
            return Response.SERVICE_UNKNOWN
        return Response.SERVING if serving and self._serving else Response.NOT_SERVING

    async def Check(self, request: Any, context: Context) -> Any:
        status = self.status(request.service)
        if status == Response.SERVICE_UNKNOWN:
            raise ApiError(grpc.StatusCode.NOT_FOUND, "this server has no such service")
        return Response(status=status)

    async def List(self, request: Any, context: Context) -> Any:
        """The services alone: health needs no API key, and the names of models are not for everyone.

        grpcio-health-checking has it from 1.85 on; with older ones it can't be called.
        """
        statuses = {service: Response(status=self.status(service)) for service in sorted(self.services)}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: Context) -> AsyncIterator[Any]:
        sent = None
        while not self._ended:
            status, changed = self.status(request.service), self._changed
            if status != sent:
                yield Response(status=status)
                sent = status
            else:
                await changed.wait()
