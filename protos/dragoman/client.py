"""The client for ordinary, blocking programs."""

import queue
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman import messages
from dragoman.batch import Batch
from dragoman.channel import DEFAULT_ADDRESS, balances, target
from dragoman.credentials import Tls, call_metadata, channel_credentials, channel_options
from dragoman.diagnosis import Diagnosis
from dragoman.errors import (
    DragomanError,
    ItemError,
    NotFoundError,
    ServerError,
    UnavailableError,
)
from dragoman.fields import Side, Source, Target
from dragoman.messages import Call
from dragoman.names import Metadata, named
from dragoman.options import GenerateOptions
from dragoman.pipeline import DEFAULT_IN_FLIGHT, Job, Pipeline
from dragoman.results import HealthStatus, ModelInfo, Piece, RepositoryStatus, Result, ScoreResult, Token, VersionStatus
from dragoman.retry import NO_RETRY, Attempts, Methods, RetryPolicy
from dragoman.v1.admin_pb2_grpc import AdminServiceStub
from dragoman.v1.generation_pb2_grpc import GenerationServiceStub

Answer = TypeVar("Answer")


class Client:
    """Talks to one or several Dragoman servers. Threads may share it; close it, or use it in a `with`.

    Every method raises DragomanError (its subclasses tell the kinds apart) when the call fails; ValueError or TypeError
    when an argument cannot be sent. Calls that find no server, or a full one, are sent again as `retry` says, within
    their timeout.

    Args:
        address: HOST:PORT; several (a list, or one text with commas); or a gRPC name such as "unix:/run/dragoman".
            Calls go round all addresses.
        timeout: seconds that a call may take, retries included; None for no limit. Each method can be given its own.
        retry: when failed calls are sent again.
        follow_health: with several addresses, or a name, which may stand for several, pass over the servers that say
            that they are not ready (grpc.health.v1), as long as one says that it is. False where one proxy that shares
            out calls stands for all of them: then the health that is heard is that of any of them.
        tls: True to talk TLS with servers that have a public certificate; a Tls to say whom else to trust, and who the
            client is.
        api_key: for servers that want one. Without TLS whoever can listen on the network can read it.
    """

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
        self._address = address if isinstance(address, str) else ",".join(address)
        self._timeout = timeout
        self._retry = retry or RetryPolicy()
        self._metadata = call_metadata(api_key)
        self._diagnosis = Diagnosis(self._address, target(address), channel_credentials(tls), channel_options(tls))
        self._followed = follow_health and balances(self._diagnosis.target)
        self._any = self._diagnosis.channel(follow_health=False)
        self._ready = self._diagnosis.channel(follow_health=True) if self._followed else self._any
        self._stubs: Methods = (GenerationServiceStub(self._ready), GenerationServiceStub(self._any))
        self._admin: Any = AdminServiceStub(self._any)

    def generate(self, source: Source, *, timeout: float | None = None, **options: Unpack[GenerateOptions]) -> Result:
        """The answer to a text, or to the token ids of one."""
        return self._run(messages.generate(source, **options), timeout)

    def generate_stream(
        self, source: Source, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> "GenerationStream":
        """The answer piece by piece. The call is sent here and may be retried until its first piece has come.

        The pieces, joined, are the text of the result. A beam search gives its text at the end, and before it pieces
        that tell its progress. Several hypotheses come mixed; `Piece.hypothesis` tells them apart.
        """
        call = messages.generate_stream(source, **options)
        return GenerationStream(self._methods(call), call, self._attempts(timeout), self._diagnosis, self._metadata)

    def generate_batch(
        self, sources: Iterable[Source], *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> list[Result | ItemError]:
        """The answers to many sources in one call, in order, an ItemError for each that has none.

        Sources that end with UNAVAILABLE, as where a worker of the server dies, are sent again as `retry` says.
        For more than a few hundred, or sources that come one after another, `generate_many` is better.
        """
        batch = Batch(sources, **options)
        attempts = self._attempts(timeout)
        while (request := batch.request) is not None:
            try:
                response = self._send(self._both("GenerateBatch"), request, attempts)
                delay = batch.answered(response, attempts)
            except DragomanError as error:
                batch.failed(error)
            else:
                time.sleep(delay)
        return batch.outcomes()

    def generate_many(
        self,
        sources: Iterable[Source],
        *,
        timeout: float | None = None,
        max_in_flight: int = DEFAULT_IN_FLIGHT,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Result | ItemError]:
        """The answers to any number of sources, in order, as they come; an ItemError for each source that has none.

        As many calls are in flight as the servers take, `max_in_flight` at most; `sources` is read as far ahead.
        Sources that a full server refused are sent again. Closing the iterator cancels what is in flight.

        Args:
            timeout: seconds for each source, from when it is first sent.

        Raises:
            DragomanError: from the iterator, at a failure that concerns every source: no such model, a wrong option,
                or no server, where none has answered before. A server that goes later costs those sources their
                answers whose timeout it outlasts.
        """
        make_call = messages.generate_many(**options)
        pipeline = Pipeline(make_call, self._retry, self._seconds(timeout), max_in_flight, followed=self._followed)
        return self._many(sources, pipeline)

    def score(
        self,
        source: Source,
        targets: Iterable[Target],
        *,
        model: str = "",
        alignment: bool = False,
        attention: bool = False,
        timeout: float | None = None,
    ) -> ScoreResult:
        """How likely the model thinks each of the targets (texts, or target token ids), token by token.

        Args:
            alignment: say for each target token at which source token it looks most.
            attention: return all attention, of every layer and head.
        """
        return self._run(
            messages.score(source, targets, model=model, alignment=alignment, attention=attention), timeout
        )

    def tokenize(
        self, text: str, *, model: str = "", side: Side = "source", timeout: float | None = None
    ) -> list[Token]:
        """The tokens that the model reads for a text, or with side="target" writes; the end token included."""
        return self._run(messages.tokenize(text, model=model, side=side), timeout)

    def detokenize(
        self, ids: Sequence[int], *, model: str = "", side: Side = "target", timeout: float | None = None
    ) -> str:
        """The text of token ids."""
        return self._run(messages.detokenize(ids, model=model, side=side), timeout)

    def models(self, *, timeout: float | None = None) -> list[ModelInfo]:
        """The versions of models that the server has, those that are not ready too."""
        return self._run(messages.models(), timeout)

    def model(self, name: str = "", *, timeout: float | None = None) -> ModelInfo:
        """What NAME, NAME@VERSION or NAME@ALIAS means to the server now; "" for its default model."""
        return self._run(messages.model(name), timeout)

    def load_model(self, name: str, *, again: bool = False, timeout: float | None = None) -> list[VersionStatus]:
        """Loads a model that was unloaded, or a version that the configuration leaves out; waits until it answers.

        Returns the status of the model's versions. A DragomanError of the code FAILED_PRECONDITION says why it can't be
        loaded; what was served before goes on.

        Args:
            name: NAME, or NAME@VERSION.
            again: also where it is loaded already and its files have not changed.
        """
        return self._run(messages.load_model(name, again=again), timeout)

    def unload_model(self, name: str, *, timeout: float | None = None) -> list[VersionStatus]:
        """Takes a model, NAME, or a version of it, NAME@VERSION, out of service, until it is loaded again.

        Calls that run are finished. Returns the status of the model's versions.
        """
        return self._run(messages.unload_model(name), timeout)

    def reload_repository(self, *, timeout: float | None = None) -> RepositoryStatus:
        """Has the server look for new versions now, and try again what failed; waits until that is done."""
        return self._run(messages.reload_repository(), timeout)

    def repository_status(self, *, timeout: float | None = None) -> RepositoryStatus:
        """What the server has loaded, and why it has not loaded the rest."""
        return self._run(messages.repository_status(), timeout)

    def health(self, service: str = "", *, timeout: float | None = None) -> HealthStatus:
        """What the server says of its health now: no retries. UnavailableError where there is no server.

        Args:
            service: "" for the server as a whole, "model:NAME" for a model, or a service's name such as
                "dragoman.v1.GenerationService".
        """
        check: Any = health_pb2_grpc.HealthStub(self._any).Check
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            response = self._send((check, check), request, Attempts(NO_RETRY, self._seconds(timeout)))
        except NotFoundError:
            return HealthStatus.SERVICE_UNKNOWN
        return HealthStatus(health_pb2.HealthCheckResponse.ServingStatus.Name(response.status))

    def close(self) -> None:
        """Closes the connections; calls under way are cancelled."""
        self._ready.close()
        self._any.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _seconds(self, timeout: float | None) -> float | None:
        return self._timeout if timeout is None else timeout

    def _attempts(self, timeout: float | None) -> Attempts:
        return Attempts(self._retry, self._seconds(timeout), followed=self._followed)

    def _both(self, name: str) -> Methods:
        ready, any_ = self._stubs
        return getattr(ready, name), getattr(any_, name)

    def _methods(self, call: Call[Any]) -> Methods:
        if call.service == "generation":
            return self._both(call.method)
        method = getattr(self._admin, call.method)
        return method, method

    def _run(self, call: Call[Answer], timeout: float | None) -> Answer:
        return call.parse(self._send(self._methods(call), call.request, self._attempts(timeout)))

    def _send(self, methods: Methods, request: Any, attempts: Attempts) -> Any:
        metadata = named(self._metadata, attempts.request_id)
        while True:
            try:
                return methods[attempts.regardless](request, timeout=attempts.remaining(), metadata=metadata)
            except grpc.RpcError as error:
                failure = self._diagnosis.failure(error, attempts.request_id)
                delay = attempts.delay_after(failure)
                if delay is None:
                    raise self._diagnosis.of(failure) from error
            time.sleep(delay)

    def _many(self, sources: Iterable[Source], pipeline: Pipeline) -> Iterator[Result | ItemError]:
        outcomes: queue.SimpleQueue[tuple[Job, Any]] = queue.SimpleQueue()
        in_flight: dict[int, Any] = {}
        methods = self._both("Generate")
        rest = iter(sources)
        more = True
        try:
            while True:
                while more and pipeline.room():
                    try:
                        pipeline.add(next(rest))
                    except StopIteration:
                        more = False
                for job in pipeline.due():
                    future = methods[job.attempts.regardless].future(
                        job.call.request,
                        timeout=job.attempts.remaining(),
                        metadata=named(self._metadata, job.attempts.request_id),
                    )
                    in_flight[job.index] = future
                    future.add_done_callback(lambda done, job=job: outcomes.put((job, done)))
                while (outcome := pipeline.pop()) is not None:
                    yield outcome
                if pipeline.empty and not more:
                    return
                if pipeline.empty or (more and pipeline.room()):
                    continue
                try:
                    job, done = outcomes.get(timeout=pipeline.wait())
                except queue.Empty:
                    continue
                del in_flight[job.index]
                try:
                    pipeline.answered(job, job.call.parse(done.result()))
                except grpc.RpcError as error:
                    try:
                        pipeline.failed(job, self._diagnosis.failure(error, job.attempts.request_id))
                    except UnavailableError as failure:
                        raise self._diagnosis.of(failure) from error
                except DragomanError as error:
                    pipeline.failed(job, error)
        finally:
            for future in in_flight.values():
                future.cancel()


class GenerationStream(Iterator[Piece]):
    """A streamed answer: iterate for its pieces; `result()` has the whole. To leave early: `cancel()`, or a `with`."""

    def __init__(
        self,
        methods: Methods,
        call: Call[tuple[Piece, Result | None]],
        attempts: Attempts,
        diagnosis: Diagnosis,
        metadata: Metadata | None,
    ) -> None:
        self._methods = methods
        self._metadata = named(metadata, attempts.request_id)
        self._call = call
        self._attempts = attempts
        self._diagnosis = diagnosis
        self._result: Result | None = None
        self._started = False
        self._messages = self._open()

    def __next__(self) -> Piece:
        while True:
            try:
                message = next(self._messages)
            except StopIteration:
                if self._result is None:
                    raise ServerError("the stream ended without its last message", code="INTERNAL") from None
                raise
            except grpc.RpcError as error:
                failure = self._diagnosis.failure(error, self._attempts.request_id)
                # What has been handed on cannot be taken back, so only an unstarted stream is opened again.
                delay = None if self._started else self._attempts.delay_after(failure)
                if delay is None:
                    raise self._diagnosis.of(failure) from error
                time.sleep(delay)
                self._messages = self._open()
                continue
            self._started = True
            piece, self._result = self._call.parse(message)
            return piece

    def result(self) -> Result:
        """The whole answer, after its remaining pieces have come."""
        for _ in self:
            pass
        assert self._result is not None  # __next__ ends without it by raising only
        return self._result

    def cancel(self) -> None:
        """Gives the answer up; the server stops working at it."""
        self._messages.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def _open(self) -> Any:
        method = self._methods[self._attempts.regardless]
        return method(self._call.request, timeout=self._attempts.remaining(), metadata=self._metadata)
