"""Servers as the backend of bulk work."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from dragoman.bulk.backend import Answer, cut_at_limit, dead_end, in_order, longest_first
from dragoman.bulk.errors import BulkError
from dragoman.bulk.stopping import Stop
from dragoman.client import Client
from dragoman.errors import DragomanError, InvalidArgumentError, ItemError, ResourceExhaustedError
from dragoman.requests import GenerateOptions
from dragoman.results import FinishReason, Result

IN_FLIGHT = 512
SERVER_FAULTS = {"INTERNAL", "UNKNOWN", "DATA_LOSS"}
BROKE_THE_SERVER = "made the server fail twice"


class Servers:
    """Servers that answer with one version of a model.

    Args:
        client: Client of the servers. `close` closes it.
        options: GenerateOptions. The name of the model is completed with its current version, so that an update of the
            servers does not mix two models in one output.
        stop: Whether the work should stop.

    Raises:
        DragomanError: No server answers, or it has no such model. The client is closed.
        StoppedError: The work should stop. The client is closed.
    """

    def __init__(self, client: Client, options: GenerateOptions, stop: Stop | None = None) -> None:
        self._client, self._stop = client, stop or Stop()
        try:
            with self._stop.interrupting():
                info = client.model(options.get("model") or "")
        except BaseException:
            client.close()
            raise
        name = f"{info.name}@{info.version}" if info.version else info.name
        self._options: GenerateOptions = {**options, "model": name, "priority": "batch"}
        self._length_chosen = options.get("max_new_tokens") is not None
        self._name = f"{info.name} version {info.version} of servers"
        self._answered = self._tokens = 0

    @property
    def model(self) -> str:
        return self._name

    def measure(self) -> tuple[int, int]:
        return self._answered, self._tokens

    def answers(self, windows: Iterable[Sequence[str]]) -> Iterator[list[Answer]]:
        """Yields the answers to the sources of each window; see Backend.

        Those of similar lengths are sent together. Calls of the next windows are in flight as soon as there is room.
        """
        waiting: deque[tuple[Sequence[str], list[int]]] = deque()

        def sources() -> Iterator[str]:
            for window in windows:
                order = longest_first([len(source) for source in window])
                waiting.append((window, order))
                yield from (window[index] for index in order)

        outcomes = self._client.generate_many(sources(), max_in_flight=IN_FLIGHT, **self._options)
        found: list[Answer] = []
        while (outcome := self._next(outcomes)) is not None:
            yield from self._without_sources(waiting)
            window, order = waiting[0]
            found.append(self._answer(window[order[len(found)]], outcome))
            if len(found) == len(window):
                waiting.popleft()
                self._refuse_broken_servers(found)
                yield in_order(found, order)
                found = []
        yield from self._without_sources(waiting)

    def close(self) -> None:
        self._client.close()

    def _next(self, outcomes: Iterator[Result | ItemError]) -> Result | ItemError | None:
        with self._stop.interrupting():
            return next(outcomes, None)

    def _without_sources(self, waiting: deque[tuple[Sequence[str], list[int]]]) -> Iterator[list[Answer]]:
        while waiting and not waiting[0][0]:
            waiting.popleft()
            yield []

    def _answer(self, source: str, outcome: Result | ItemError) -> Answer:
        if isinstance(outcome, ItemError) and outcome.code in SERVER_FAULTS:
            try:
                with self._stop.interrupting():
                    outcome = self._client.generate(source, **self._options)
            except DragomanError as again:
                outcome = ItemError(0, again)
        self._answered += 1
        if isinstance(outcome, Result):
            self._tokens += outcome.target_tokens + 1
            return Answer(outcome.text, self._cut(outcome))
        error = outcome.error
        if isinstance(error, InvalidArgumentError):
            return Answer(None, str(error).removeprefix("input.text ").removeprefix("input "))
        if isinstance(error, ResourceExhaustedError) and error.retry_after is None:
            return Answer(None, f"is too large for the server: {error}")
        if error.code in SERVER_FAULTS:
            return Answer(None, f"{BROKE_THE_SERVER}: {error}")
        raise BulkError(f"{error}; run the same command to continue from what is saved") from None

    def _cut(self, result: Result) -> str:
        """Returns what is wrong with an answer that is not whole."""
        if result.finish_reason is FinishReason.LENGTH and not self._length_chosen:
            return cut_at_limit(result.target_tokens)
        if result.finish_reason is FinishReason.DEAD_END:
            return dead_end(result.target_tokens)
        return ""

    def _refuse_broken_servers(self, answers: Sequence[Answer]) -> None:
        """Raises BulkError if all sources of a window have failed in the servers: no source is to blame then."""
        if len(answers) > 1 and all(answer.problem.startswith(BROKE_THE_SERVER) for answer in answers):
            raise BulkError(f"every source of a window {answers[0].problem}")
