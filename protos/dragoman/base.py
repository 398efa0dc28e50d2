"""What the blocking and the asynchronous client have in common: configuration, channels, stubs and sending."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import calls
from dragoman.channel import DEFAULT_ADDRESS, Connector, Tls, call_metadata, has_several_servers
from dragoman.errors import DragomanError
from dragoman.many import CALL_ITEMS, CALL_ITEMS_OF_SEVERAL_SERVERS, ManyCall, ManyCalls
from dragoman.models import HealthStatus
from dragoman.pipeline import Job, Pipeline
from dragoman.requests import text
from dragoman.retry import NO_RETRY, Attempts, Metadata, RetryPolicy
from dragoman.v1 import generation_pb2 as pb
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


@dataclass(frozen=True, slots=True)
class Many:
    """One generate_many: its state, and how to send it.

    Attributes:
        pipeline: The sources in order.
        streams: The GenerateMany calls.
    """

    pipeline: Pipeline
    streams: ManyCalls
    _fields: dict[str, Any]
    _make_sender: Callable[[calls.Call[Any], Attempts], Sender]
    _connector: Connector

    def source_sender(self, job: Job) -> Sender:
        """Returns the sender of a source in a call of its own."""
        return self._make_sender(calls.generate_one(job.source, self._fields), job.attempts)

    def call_sender(self, call: ManyCall, requests: Any) -> Sender:
        """Returns the sender of a GenerateMany call with an iterator over its requests."""
        return self._make_sender(calls.Call("GenerateMany", requests, calls.result), call.attempts)

    def delay(self) -> float | None:
        """Returns the seconds until there is something to do without an event; None for never."""
        delays = [delay for delay in (self.pipeline.delay(), self.streams.delay()) if delay is not None]
        return min(delays, default=None)

    def sent_alone(self, job: Job, response: pb.GenerateResponse) -> None:
        """Takes the response to a source in a call of its own. Raises as Pipeline.failed."""
        try:
            self.pipeline.answered(job, calls.result(response))
        except DragomanError as error:
            self.pipeline.failed(job, error)

    def failed_alone(self, job: Job, error: grpc.RpcError) -> None:
        """Takes the failure of a source in a call of its own. Raises as Pipeline.failed."""
        self.pipeline.failed(job, self._failure(error, job.attempts))

    def answered(self, call: ManyCall, response: pb.GenerateManyResponse) -> None:
        """Takes a message of a GenerateMany call. Raises as Pipeline.failed."""
        for job, outcome in call.answers(response):
            if isinstance(outcome, DragomanError):
                self.pipeline.failed(job, outcome)
            else:
                self.pipeline.answered(job, outcome)

    def ended(self, call: ManyCall, error: grpc.RpcError | None) -> None:
        """Takes the end of a GenerateMany call. Raises as Pipeline.failed."""
        failure = None if error is None else self._failure(error, call.attempts)
        jobs, failure = self.streams.ended(call, failure)
        for job in jobs:
            if failure is None:
                self.pipeline.again(job)
            else:
                self.pipeline.failed(job, failure)

    def expire(self) -> None:
        """Fails the sources of GenerateMany calls whose timeout has passed. Raises as Pipeline.failed."""
        for job, error in self.streams.expired():
            self.pipeline.failed(job, error)

    def diagnose(self, failure: DragomanError) -> DragomanError:
        """Returns the failure, or a more specific one, with its cause. Blocks; see Connector.diagnose."""
        found = self._connector.diagnose(failure)
        found.__cause__ = failure.__cause__
        return found

    def _failure(self, error: grpc.RpcError, attempts: Attempts) -> DragomanError:
        failure = self._connector.failure(error, attempts.request_id)
        failure.__cause__ = error
        return failure


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
        request = health_pb2.HealthCheckRequest(service=text(service, "service"))
        attempts = Attempts(NO_RETRY, self._seconds(timeout))
        return Sender((check, check), request, attempts, self._metadata, self._connector)

    def _many(self, timeout: float | None, max_in_flight: int, options: dict[str, Any]) -> Many:
        self._attempts(timeout)  # refuses an invalid timeout now
        fields = calls.many_fields(**options)
        pipeline = Pipeline(lambda: self._attempts(timeout, patient=True), max_in_flight, languages=options)
        several = has_several_servers(self._connector.target)
        streams = ManyCalls(fields, CALL_ITEMS_OF_SEVERAL_SERVERS if several else CALL_ITEMS)
        return Many(pipeline, streams, fields, self._sender, self._connector)


def health_status(response: health_pb2.HealthCheckResponse) -> HealthStatus:
    return HealthStatus(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))
