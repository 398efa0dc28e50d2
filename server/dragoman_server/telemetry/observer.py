"""Reports every finished call: in a log line, in the summary and in traces."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from dragoman_server.config import ServerConfig
from dragoman_server.core.call_record import CallRecord
from dragoman_server.core.errors import StartError
from dragoman_server.telemetry.log_lines import LineWriter
from dragoman_server.telemetry.phases import phases
from dragoman_server.telemetry.summary import SummaryWindow

# Machines call these every few seconds. They are logged at level "debug" only, and left out of the summary.
PROBES = (
    "grpc.health.v1.Health/",
    "inference.GRPCInferenceService/ServerLive",
    "inference.GRPCInferenceService/ServerReady",
)

LoggedCalls = Literal["all", "failed", "none"]
Render = Callable[[Mapping[str, Any]], str]


class Tracer(Protocol):
    """The interface of telemetry.tracing.CallTracer, which can't be imported without OpenTelemetry."""

    def trace(self, record: CallRecord, epoch: float) -> str:
        """Sends the spans of a call. All calls come from one thread.

        Args:
            epoch: time.time() when time.monotonic() was 0.

        Returns:
            The trace id; "" if the call is not sampled.
        """

    def close(self, seconds: float) -> None:
        """Sends the remaining spans, for at most `seconds`."""


def start_tracing(config: ServerConfig) -> Tracer | None:
    """Returns a tracer, or None if tracing is off; then OpenTelemetry is not even imported.

    Raises:
        StartError: The extra is not installed, or an OTEL_ variable is invalid.
    """
    if not config.tracing:
        return None
    try:
        from dragoman_server.telemetry.tracing import CallTracer, tracer_provider
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        sentence = f"--tracing needs {package}; `pip install '.[server,tracing]'` in a clone of Dragoman installs it"
        raise StartError(sentence) from None
    return CallTracer(tracer_provider())


class Observer:
    """Reports calls. It costs the event loop a few microseconds per call: the writer's thread makes lines and spans.

    Args:
        lines: Writes the log.
        render: Formats fields as a line.
        requests: Which calls to log.
        probes: Whether to log health checks.
        load: Returns the waiting requests and the cache rows in use.
        tracer: None for no traces.
    """

    def __init__(
        self,
        lines: LineWriter,
        render: Render,
        *,
        requests: LoggedCalls = "all",
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
        self._window = SummaryWindow(time.monotonic())

    def ended(self, record: CallRecord) -> None:
        """Reports a finished call, or a finished request of a call that streams requests. For the event loop only."""
        if record.method.startswith(PROBES):
            if not self._probes:
                return
        elif not (record.parts or record.items_reported):  # they count one by one, and the duration means nothing
            self._window.add(record)
        if self._is_logged(record) or self._tracer is not None:
            now = time.time()
            self._lines.put(lambda: self._line(record, now - record.ended))

    def item_ended(self, source_tokens: int, target_tokens: int, seconds: float, failed: bool) -> None:
        """Counts an answered item of a GenerateMany call in the summary. For the event loop only."""
        self._window.add_item(source_tokens, target_tokens, seconds, failed)

    async def summarize(self, seconds: float) -> None:
        """Logs a summary at this interval, unless the server was idle. Never returns."""
        while True:
            await asyncio.sleep(seconds)
            window, self._window = self._window, SummaryWindow(time.monotonic())
            waiting, running = self._load()
            if window.calls or waiting or running:
                self._lines.put(self._summary(window, time.monotonic(), waiting, running))

    def _summary(self, window: SummaryWindow, now: float, waiting: int, running: int) -> Callable[[], str]:
        timestamp = time.time()
        return lambda: self._render(
            {"event": "summary", "level": "info", "timestamp": timestamp, **window.fields(now, waiting, running)}
        )

    def _is_logged(self, record: CallRecord) -> bool:
        return self._requests == "all" or (self._requests == "failed" and record.code != "OK")

    def _line(self, record: CallRecord, epoch: float) -> str:
        trace = "" if self._tracer is None else self._tracer.trace(record, epoch)
        if not self._is_logged(record):
            return ""
        level = "error" if record.code == "INTERNAL" else "info"
        fields = {"event": "request", "level": level, "timestamp": epoch + record.ended, **call_fields(record)}
        if trace:
            fields["trace_id"] = trace
        return self._render(fields)


def call_fields(record: CallRecord) -> dict[str, Any]:
    """Returns the fields of a call's log line; those that do not apply are left out."""
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
    """Converts seconds to milliseconds, rounded to the microsecond."""
    return round(seconds * 1_000_000) / 1000  # twice as fast as round(..., 3)
