"""The blocking client."""

import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import grpc

from dragoman import calls
from dragoman.base import BaseClient, Sender, health_status
from dragoman.calls import Call
from dragoman.errors import DragomanError, ItemError, NotFoundError, ServerError
from dragoman.many_blocking import outcomes
from dragoman.models import HealthStatus, ModelInfo, RepositoryStatus, VersionStatus
from dragoman.pipeline import DEFAULT_IN_FLIGHT, Batch
from dragoman.requests import GenerateOptions, Side, Source, Target, check_sources
from dragoman.results import Piece, Result, ScoreResult, Token

Answer = TypeVar("Answer")


class Client(BaseClient):
    """A client of one or several Dragoman servers. Threads may share it. Close it, or use it in a `with` statement.

    Every method raises a subclass of DragomanError if the call fails, and ValueError or TypeError if an argument cannot
    be sent. A `timeout` argument is in seconds, retries included, and defaults to the timeout of the client.

    Args:
        address: HOST:PORT; several of them (a list, or one string with commas), which take turns; or a gRPC name such
            as "unix:/run/dragoman".
        timeout: Seconds per call, retries included; None for no limit.
        retry: When failed calls are sent again.
        follow_health: With several addresses, or a name that may stand for several, skip servers that report that they
            are not ready (grpc.health.v1), as long as another one is ready. Set it to False behind a proxy that
            balances calls: there, the health reported may be that of any server behind it.
        tls: True for TLS with servers whose certificate is signed by a public authority; a Tls for other authorities or
            a client certificate.
        api_key: API key, for servers that require one. Without TLS, anyone on the network can read it.

    Raises:
        ValueError: The address, the API key or a TLS file cannot be used.
    """

    _connects_when_created = True

    def generate(self, source: Source, *, timeout: float | None = None, **options: Unpack[GenerateOptions]) -> Result:
        """Generates the answer to one source.

        Args:
            source: A text, or source token ids.
            timeout: Seconds for the call, retries included.
            options: See GenerateOptions.
        """
        return self._run(calls.generate(source, **options), timeout)

    def generate_stream(
        self, source: Source, *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> "GenerationStream":
        """Generates the answer to one source piece by piece. The call is sent now, and retried until its first piece.

        The pieces, joined, are the text of the result. Beam search sends pieces with its progress and the text at the
        end. Pieces of several hypotheses are interleaved; see `Piece.hypothesis`.

        Args:
            source: A text, or source token ids.
            timeout: Seconds for the call, retries included.
            options: See GenerateOptions.

        Returns:
            An iterator over the pieces, with the `result()`.
        """
        return GenerationStream(
            self._sender(call := calls.generate_stream(source, **options), self._attempts(timeout)), call
        )

    def generate_batch(
        self, sources: Iterable[Source], *, timeout: float | None = None, **options: Unpack[GenerateOptions]
    ) -> list[Result | ItemError]:
        """Generates the answers to many sources in one call.

        Items that fail with UNAVAILABLE, for example because a worker of the server died, are retried. For more than a
        few hundred sources, or sources that arrive over time, use `generate_many`.

        Args:
            sources: Texts, or lists of source token ids.
            timeout: Seconds for all sources together, retries included.
            options: See GenerateOptions.

        Returns:
            One Result, or ItemError if it failed, per source, in order.
        """
        batch = Batch(sources, **options)
        attempts = self._attempts(timeout)
        while (request := batch.request) is not None:
            try:
                response = self._send(self._sender(Call("GenerateBatch", request, calls.result), attempts))
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
        """Generates the answers to any number of sources, with as many in flight as the servers accept.

        They share a few calls, whatever their number (GenerateMany; servers without it get a call for each source).
        Sources that a full server refused, or that a server left without an answer, are sent again. Closing the
        iterator cancels the sources in flight.

        Args:
            sources: Texts, or lists of source token ids; read no further ahead than they can be sent.
            timeout: Seconds for each source, from when it is first sent, retries included.
            max_in_flight: Maximum number of sources in flight.
            options: See GenerateOptions.

        Yields:
            One Result, or ItemError if it failed, per source, in order, as soon as it is known.

        Raises:
            DragomanError: From the iterator: an error that concerns every source, such as an unknown model, an invalid
                option, or no server so far. If a server that has answered goes away for longer than `timeout`, only the
                sources of that time fail.
        """
        check_sources(sources)
        return outcomes(sources, self._many(timeout, max_in_flight, {**options}))

    def score(
        self,
        source: Source,
        targets: Iterable[Target],
        *,
        model: str = "",
        alignment: bool = False,
        attention: bool = False,
        source_language: str | None = None,
        target_language: str | None = None,
        timeout: float | None = None,
    ) -> ScoreResult:
        """Computes the log-probabilities of given targets, token by token.

        Args:
            source: A text, or source token ids.
            targets: Texts, or lists of target token ids.
            model: NAME, NAME@VERSION or NAME@ALIAS; "" for the server's default model.
            alignment: Return for each target token the source token with the highest attention.
            attention: Return the attention of every layer and head.
            source_language, target_language: Languages, as in GenerateOptions.
            timeout: Seconds for the call, retries included.
        """
        return self._run(
            calls.score(
                source,
                targets,
                model=model,
                alignment=alignment,
                attention=attention,
                source_language=source_language,
                target_language=target_language,
            ),
            timeout,
        )

    def tokenize(
        self,
        text: str,
        *,
        model: str = "",
        side: Side = "source",
        source_language: str | None = None,
        target_language: str | None = None,
        timeout: float | None = None,
    ) -> list[Token]:
        """Splits a text into tokens, the end token included.

        Args:
            text: The text.
            model: NAME, NAME@VERSION or NAME@ALIAS; "" for the server's default model.
            side: Vocabulary to use: "source" for input, "target" for output.
            source_language, target_language: Languages of a source, as in GenerateOptions.
            timeout: Seconds for the call, retries included.
        """
        return self._run(
            calls.tokenize(
                text, model=model, side=side, source_language=source_language, target_language=target_language
            ),
            timeout,
        )

    def detokenize(
        self, ids: Sequence[int], *, model: str = "", side: Side = "target", timeout: float | None = None
    ) -> str:
        """Returns the text of token ids. Arguments are those of `tokenize`."""
        return self._run(calls.detokenize(ids, model=model, side=side), timeout)

    def models(self, *, timeout: float | None = None) -> list[ModelInfo]:
        """Lists the versions of all models on the server, including those that are not ready."""
        return self._run(calls.models(), timeout)

    def model(self, name: str = "", *, timeout: float | None = None) -> ModelInfo:
        """Describes one model.

        Args:
            name: NAME, NAME@VERSION or NAME@ALIAS; "" for the server's default model.
            timeout: Seconds for the call, retries included.

        Raises:
            NotFoundError: The server has no such model.
        """
        return self._run(calls.model(name), timeout)

    def load_model(self, name: str, *, again: bool = False, timeout: float | None = None) -> list[VersionStatus]:
        """Loads a model that was unloaded, or a version that the configuration leaves out, and waits until it answers.

        Args:
            name: NAME, or NAME@VERSION.
            again: Load it again even if it is loaded and its files have not changed.
            timeout: Seconds for the call, retries included.

        Returns:
            The status of all versions of the model.

        Raises:
            DragomanError: With the code FAILED_PRECONDITION if the model cannot be loaded; what was served before
                stays.
        """
        return self._run(calls.load_model(name, again=again), timeout)

    def unload_model(self, name: str, *, timeout: float | None = None) -> list[VersionStatus]:
        """Unloads a model, or one version of it, until it is loaded again. Running calls finish first.

        Args:
            name: NAME, or NAME@VERSION.
            timeout: Seconds for the call, retries included.

        Returns:
            The status of all versions of the model.
        """
        return self._run(calls.unload_model(name), timeout)

    def reload_repository(self, *, timeout: float | None = None) -> RepositoryStatus:
        """Scans the repository for new versions now, retries versions that failed to load, and waits for the end."""
        return self._run(calls.reload_repository(), timeout)

    def repository_status(self, *, timeout: float | None = None) -> RepositoryStatus:
        """Returns the status of every version in the repository."""
        return self._run(calls.repository_status(), timeout)

    def health(self, service: str = "", *, timeout: float | None = None) -> HealthStatus:
        """Returns the health that the server reports now. Never retries.

        Args:
            service: "" for the server as a whole, "model:NAME" for a model, or the name of a gRPC service, such as
                "dragoman.v1.GenerationService".
            timeout: Seconds for the call.

        Raises:
            UnavailableError: No server answers.
        """
        try:
            return health_status(self._send(self._health_sender(service, timeout)))
        except NotFoundError:
            return HealthStatus.SERVICE_UNKNOWN

    def close(self) -> None:
        """Closes the connections. Calls in flight are cancelled."""
        self._ready_channel.close()
        self._any_channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _open_channel(self, *, follow_health: bool) -> grpc.Channel:
        return self._connector.channel(follow_health=follow_health)

    def _run(self, call: Call[Answer], timeout: float | None) -> Answer:
        return call.parse(self._send(self._sender(call, self._attempts(timeout))))

    def _send(self, sender: Sender) -> Any:
        while True:
            try:
                return sender.start()
            except grpc.RpcError as error:
                time.sleep(_delay_or_raise(sender, error))


class GenerationStream(Iterator[Piece]):
    """A streamed answer. Iterate over its pieces; `result()` returns the whole answer.

    To abandon it early, call `cancel()` or use it in a `with` statement.
    """

    def __init__(self, sender: Sender, call: Call[tuple[Piece, Result | None]]) -> None:
        self._sender = sender
        self._parse = call.parse
        self._result: Result | None = None
        self._started = False
        self._messages = sender.start()

    def __next__(self) -> Piece:
        while True:
            try:
                message = next(self._messages)
            except StopIteration:
                if self._result is None:
                    raise ServerError("the stream ended without its last message", code="INTERNAL") from None
                raise
            except grpc.RpcError as error:
                time.sleep(_delay_or_raise(self._sender, error, final=self._started))
                self._messages = self._sender.start()
                continue
            self._started = True
            piece, self._result = self._parse(message)
            return piece

    def result(self) -> Result:
        """Waits for the remaining pieces and returns the whole answer."""
        for _ in self:
            pass
        assert self._result is not None  # otherwise __next__ has raised
        return self._result

    def cancel(self) -> None:
        """Cancels the call; the server stops generating."""
        self._messages.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()


def _delay_or_raise(sender: Sender, error: grpc.RpcError, *, final: bool = False) -> float:
    """Returns the seconds to wait before the next attempt.

    Args:
        final: Never retry, as for a stream whose first pieces have been passed on.

    Raises:
        DragomanError: There is no further attempt.
    """
    failure = sender.failure(error)
    delay = None if final else sender.attempts.delay_after(failure)
    if delay is None:
        raise sender.diagnose(failure) from error
    return delay
