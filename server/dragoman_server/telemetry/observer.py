"""Hears of every call that ended, and tells of it: on a line, in the summary, and in traces."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from dragoman_server.core.call_record import CallRecord
from dragoman_server.telemetry.log_lines import LineWriter
from dragoman_server.telemetry.phases import phases
from dragoman_server.telemetry.summary import Window

# Asked every few seconds by machines. They are logged at the level "debug" alone, and not counted in the summary.
PROBES = (
    "grpc.health.v1.Health/",
    "inference.GRPCInferenceService/ServerLive",
    "inference.GRPCInferenceService/ServerReady",
)

Which = Literal["all", "failed", "none"]
Render = Callable[[Mapping[str, Any]], str]


class Tracer(Protocol):
    """What is needed of server.observe.tracing.CallTracer."""

    def trace(self, record: CallRecord, now: float) -> str:
        """Hands on the spans of a call; gives the id of the trace, "" where it is not sampled. Called in one thread.

        Args:
            now: time.time() when time.monotonic() was 0.
        """


class Observer:
    """Costs the event loop a few microseconds a call: lines are made, and spans, in the writer's thread.

    Args:
        lines: where lines go.
        render: makes a line of fields.
        requests: which calls have a line,
        probes: and whether those have one that ask for health.
        load: requests that wait and cache rows in use.
        tracer: None for no traces.
    """

    def __init__(
        self,
        lines: LineWriter,
        render: Render,
        *,
        requests: Which = "all",
        probes: bool = False,
        load: Callable[[], tuple[int, int]] = lambda: (0, 0),
        tracer: Tracer | None = None,
    ) -> None:
        self._lines = lines
        self._render = render
        self._requests = requests
        self._probes = probes
        self._load = load
        self._tracer = tracer
        self._window = Window(time.monotonic())

    def ended(self, record: CallRecord) -> None:
        """Takes the record of a call that is over, or of one of the requests of a call whose requests stream.

        For the event loop alone.
        """
        if record.method.startswith(PROBES):
            if not self._probes:
                return
        elif not record.parts:  # those are counted by themselves; how long their stream was open tells nothing
            self._window.add(record)
        if self._wanted(record) or self._tracer is not None:
            now = time.time()
            self._lines.put(lambda: self._line(record, now - record.ended))

    async def summarize(self, seconds: float) -> None:
        """Writes a line of what was done, every so often; none where there was nothing to do. Never ends."""
        while True:
            await asyncio.sleep(seconds)
            window, self._window = self._window, Window(time.monotonic())
            waiting, running = self._load()
            if window.calls or waiting or running:
                self._lines.put(self._summary(window, time.monotonic(), waiting, running))

    def _summary(self, window: Window, now: float, waiting: int, running: int) -> Callable[[], str]:
        timestamp = time.time()
        return lambda: self._render(
            {"event": "summary", "level": "info", "timestamp": timestamp, **window.told(now, waiting, running)}
        )

    def _wanted(self, record: CallRecord) -> bool:
        return self._requests == "all" or (self._requests == "failed" and record.code != "OK")

    def _line(self, record: CallRecord, epoch: float) -> str:
        trace = "" if self._tracer is None else self._tracer.trace(record, epoch)
        if not self._wanted(record):
            return ""
        level = "error" if record.code == "INTERNAL" else "info"
        fields = {"event": "request", "level": level, "timestamp": epoch + record.ended, **told(record)}
        if trace:
            fields["trace_id"] = trace
        return self._render(fields)


def told(record: CallRecord) -> dict[str, Any]:
    """What the line of a call says. What it has not is left out."""
    fields: dict[str, Any] = {"request_id": record.id, "method": record.method, "code": record.code}
    if record.key is not None:
        fields["key"] = record.key
    if record.model:
        fields["model"], fields["version"] = record.model, record.version
    if record.inputs:
        if record.inputs > 1:
            fields["inputs"], fields["failed"] = record.inputs, record.failed
        fields["source_tokens"] = record.source_tokens
        fields["target_tokens"] = record.target_tokens
        fields["hypotheses"] = record.hypotheses
    if record.finishes:
        counts = record.finishes
        fields["finish"] = (
            next(iter(counts)) if record.inputs == 1 else " ".join(f"{key}={count}" for key, count in counts.items())
        )
    for name, start, end in phases(record):
        fields[f"{name}_ms"] = milliseconds(end - start)
    if record.parts:
        fields["requests"] = record.parts
    fields["total_ms"] = milliseconds(record.seconds)
    return fields


def milliseconds(seconds: float) -> float:
    """To the microsecond."""
    return round(seconds * 1_000_000) / 1000  # in half the time of round(..., 3)
