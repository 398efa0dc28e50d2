"""The measurements that engines report."""

from collections.abc import Callable
from typing import Literal, Protocol

from dragoman_server.core.requests import FinishReason

DropReason = Literal["expired", "cancelled", "failed"]
Phase = Literal["waiting", "running"]
DeviceErrorKind = Literal["out_of_memory", "other"]


class EngineMetrics(Protocol):
    """Receives measurements, in seconds, from several engine threads at once and at every step: calls must be cheap."""

    def encoded(self, seconds: float, rows: int, source_tokens: int, padding_tokens: int) -> None:
        """Counts an encoder run."""

    def stepped(self, seconds: float, rows: int, gap_seconds: float | None) -> None:
        """Counts a step; `gap_seconds` is the time since the previous step ended, between two tokens of a row."""

    def branched(self, seconds: float, rows: int) -> None:
        """Counts rows copied after a step, where hypotheses branch."""

    def admitted(self, queue_seconds: float) -> None:
        """Counts a request that leaves the queue for an engine."""

    def first_token(self, seconds: float) -> None:
        """Records the time from a request's arrival to its first token."""

    def finished(self, reason: FinishReason, source_tokens: int, target_tokens: int, seconds: float) -> None:
        """Counts a request that ended with a result, and the time since its arrival."""

    def dropped(self, reason: DropReason, phase: Phase) -> None:
        """Counts a request that ended without a result."""

    def device_error(self, kind: DeviceErrorKind) -> None:
        """Counts a graph run that failed."""

    def queue(self, backlog: Callable[[], tuple[int, int]]) -> None:
        """Registers what returns the number of waiting requests and their source tokens, in any thread."""

    def batch_limits(self, limits: Callable[[], dict[int, int]]) -> None:
        """Registers what returns the rows that batch requests may have, by engine, in any thread."""

    def state(self, engine: int, running: int, max_rows: int) -> None:
        """Sets the rows in use of an engine, and how many it has."""

    def cache(self, engine: int, bytes_: int) -> None:
        """Sets the size of an engine's cache pool."""
