"""What the engines report of themselves."""

from collections.abc import Callable
from typing import Literal, Protocol

from dragoman_server.core.requests import FinishReason

DropReason = Literal["expired", "cancelled", "failed"]
Phase = Literal["waiting", "running"]
DeviceErrorKind = Literal["out_of_memory", "other"]


class EngineMetrics(Protocol):
    """Called from engine threads, several at once, at every step, so each call must be cheap. Times are seconds."""

    def encoded(self, seconds: float, rows: int, source_tokens: int, padding_tokens: int) -> None:
        """One encoder run."""

    def stepped(self, seconds: float, rows: int, gap_seconds: float | None) -> None:
        """One decode step; `gap_seconds` since the step before ended, the time between two tokens of each row."""

    def branched(self, seconds: float, rows: int) -> None:
        """Rows were copied after a step, so that hypotheses go on where they branch."""

    def admitted(self, queue_seconds: float) -> None:
        """A request got its rows."""

    def first_token(self, seconds: float) -> None:
        """A request's first token, since its arrival."""

    def finished(self, reason: FinishReason, source_tokens: int, target_tokens: int, seconds: float) -> None:
        """A request was answered, since its arrival."""

    def dropped(self, reason: DropReason, phase: Phase) -> None:
        """A request ended without an answer."""

    def device_error(self, kind: DeviceErrorKind) -> None:
        """A graph failed to run, with all the requests that took part."""

    def queue(self, waits: Callable[[], tuple[int, int]]) -> None:
        """How to learn, from any thread, how many requests wait for any engine, and their source tokens."""

    def state(self, engine: int, running: int, max_rows: int) -> None:
        """Rows that run in an engine, of how many."""

    def cache(self, engine: int, bytes_: int) -> None:
        """Size of an engine's cache pool."""
