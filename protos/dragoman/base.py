"""What the blocking and the asynchronous client have in common: configuration, channels, stubs and sending."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import calls
from dragoman.channel import DEFAULT_ADDRESS, Connector, Tls, call_metadata, has_several_servers
from dragoman.errors import DragomanError
from dragoman.pipeline import Pipeline
from dragoman.results import HealthStatus
from dragoman.retry import NO_RETRY, Attempts, Metadata, RetryPolicy
from dragoman.v1.admin_pb2_grpc import AdminServiceStub
from dragoman.v1.generation_pb2_grpc import GenerationServiceStub

Methods = tuple[Any, Any]
"""One method over the channel that follows health, and over the one that ignores it: see Attempts.ignore_health."""


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends the attempts of one call.

    Attributes:
        methods: The method to call.
        request: The request message.
        attempts: The retries of the call.
    """

    methods: Methods
    request: Any
    attempts: Attempts
    _metadata: Metadata | None
    _connector: Connector

    def start(self, *, future: bool = False) -> Any:
        """Starts the next attempt.

        Returns:
            What the gRPC method returns: the response, a future of it (with `future`), an awaitable, or a stream.
        """
        method = self.methods[self.attempts.ignore_health]
        return (method.future if future else method)(
            self.request, timeout=self.attempts.remaining(), metadata=self.attempts.metadata(self._metadata)
        )

    def failure(self, error: grpc.RpcError) -> DragomanError:
        return self._connector.failure(error, self.attempts.request_id)

    def diagnose(self, failure: DragomanError) -> DragomanError:
        """Blocks; see Connector.diagnose."""
        return self._connector.diagnose(failure)


class BaseClient(ABC):
    """See Client for the arguments."""

    _connects_when_created: ClassVar[bool]

    def __init__(
        self,
        address: str | Sequence[str] = DEFAULT_ADDRESS,
        *,
        timeout: float | None = 60.0,
        retry: RetryPolicy | None = None,
        follow_health: bool = True,
        tls: Tls | bool = False,
        api_key: str | None = None,
    ) -> None:
        self._connector = Connector(address, tls)
        self._follow_health = follow_health and has_several_servers(self._connector.target)
        self._timeout = timeout
        self._retry = retry or RetryPolicy()
        self._metadata = call_metadata(api_key)
        if self._connects_when_created:
            _ = self._stubs, self._admin_stub

    @abstractmethod
    def _open_channel(self, *, follow_health: bool) -> Any: ...

    @cached_property
    def _any_channel(self) -> Any:
        """The channel that ignores the servers' health."""
        return self._open_channel(follow_health=False)

    @cached_property
    def _ready_channel(self) -> Any:
        """The channel that sends calls to ready servers only, if the client follows health."""
        return self._open_channel(follow_health=True) if self._follow_health else self._any_channel

    @cached_property
    def _stubs(self) -> tuple[Any, Any]:
        return GenerationServiceStub(self._ready_channel), GenerationServiceStub(self._any_channel)

    @cached_property
    def _admin_stub(self) -> Any:
        return AdminServiceStub(self._any_channel)

    def _seconds(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _attempts(self, timeout: float | None, *, patient: bool = False) -> Attempts:
        return Attempts(self._retry, self._seconds(timeout), patient=patient, follow_health=self._follow_health)

    def _sender(self, call: calls.Call[Any], attempts: Attempts) -> Sender:
        if call.service == "generation":
            ready, any_ = self._stubs
            methods = getattr(ready, call.method), getattr(any_, call.method)
        else:
            methods = (getattr(self._admin_stub, call.method),) * 2
        return Sender(methods, call.request, attempts, self._metadata, self._connector)

    def _health_sender(self, service: str, timeout: float | None) -> Sender:
        check: Any = health_pb2_grpc.HealthStub(self._any_channel).Check
        request = health_pb2.HealthCheckRequest(service=service)
        attempts = Attempts(NO_RETRY, self._seconds(timeout))
        return Sender((check, check), request, attempts, self._metadata, self._connector)

    def _pipeline(self, timeout: float | None, max_in_flight: int, options: dict[str, Any]) -> Pipeline:
        self._attempts(timeout)  # refuses an invalid timeout now
        make_call = calls.generate_many(**options)
        return Pipeline(make_call, lambda: self._attempts(timeout, patient=True), max_in_flight, languages=options)


def health_status(response: health_pb2.HealthCheckResponse) -> HealthStatus:
    return HealthStatus(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
