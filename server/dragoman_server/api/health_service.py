"""grpc.health.v1 for asyncio.

The servicer of grpcio-health-checking forgets all watchers of a service when one of them leaves, and blocks a change of
status while one of them does not read. Health checks must work especially then.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman_server.messages.api_error import ApiError

MODEL = "model:"  # prefix of a model's name in health checks
Response = health_pb2.HealthCheckResponse
Context = grpc.aio.ServicerContext[Any, Any]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # the stubs carry no types
    """The health of the server and of each model.

    All services are healthy, or none is. The health of a model has the service name "model:NAME". Changed only by the
    thread of the event loop; any thread may read it and wait for changes.

    Args:
        services: Known service names, in addition to "" for the whole server.
    """

    def __init__(self, services: Iterable[str]) -> None:
        self.services = frozenset({"", *services})
        self._serving = False
        self._models: Mapping[str, bool] | None = None
        self._ended = False
        self._changed = asyncio.Event()  # replaced at every change; the old event is set
        self._changes = threading.Condition()

    @property
    def serving(self) -> bool:
        """Whether the server takes requests."""
        return bool(self.status("") == Response.SERVING)

    @property
    def ended(self) -> bool:
        """Whether the server is stopping, which ends all watches."""
        return self._ended

    def set_serving(self, serving: bool) -> None:
        """Sets whether the server takes requests, and notifies watchers."""
        self._serving = serving
        self._announce()

    def set_models(self, models: Mapping[str, bool]) -> None:
        """Sets which models exist and whether each takes requests, and notifies watchers.

        A server without a model that takes requests is not serving.
        """
        if models != self._models:
            self._models = dict(models)
            self._announce()

    def end(self) -> None:
        """Ends all watches because the server stops."""
        self._ended = True
        self._announce()

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> None:
        """Blocks the calling thread until a condition holds, for at most `seconds`.

        Args:
            holds: The condition, evaluated whenever a status changes and at every `wake`.
        """
        with self._changes:
            self._changes.wait_for(holds, seconds)

    def wake(self) -> None:
        """Makes all waiting threads evaluate their conditions again."""
        with self._changes:
            self._changes.notify_all()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.wake()

    def status(self, service: str) -> Any:
        """Returns the status of a service or a model, SERVICE_UNKNOWN for an unknown name."""
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
        """Returns the services only: health needs no API key, and the names of models are not public.

        Requires grpcio-health-checking 1.85 or later; with an older version clients can't call it.
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
