"""OpenTelemetry traces: a span for each call and each of its phases, made when the call is over.

Needs the extra `tracing`; no other module of the server imports OpenTelemetry. The standard variables configure it:
OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER, OTEL_SERVICE_NAME and so on.
"""

import os
from importlib import import_module
from importlib.metadata import version
from threading import Thread

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, format_trace_id, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dragoman_server.core.call_record import CallRecord
from dragoman_server.core.errors import StartError
from dragoman_server.telemetry.phases import phases

SERVICE = "dragoman"
EXPORTERS = {
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
# Statuses that OpenTelemetry's conventions for gRPC servers count as errors.
FAULTS = ("UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS")
CODES = (  # in the order of their numbers
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED "
    "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS "
    "UNAUTHENTICATED"
).split()
NAMES = {"queue": "wait"}  # phases with another name in traces


def tracer_provider(exporter: SpanExporter | None = None) -> TracerProvider:
    """Returns a provider that sends spans to an exporter.

    Args:
        exporter: None for the one that the environment configures.

    Raises:
        StartError: The environment configures an exporter that is unknown or not installed.
    """
    attributes = {SERVICE_VERSION: version("dragoman")}
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        attributes[SERVICE_NAME] = SERVICE
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter or _exporter()))
    return provider


class CallTracer:
    """Makes the spans of calls. Not thread-safe."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("dragoman.server", version("dragoman"))
        self._propagator = TraceContextTextMapPropagator()

    def trace(self, record: CallRecord, epoch: float) -> str:
        """See telemetry.observer.Tracer."""
        service, _, method = record.method.partition("/")
        span = self._tracer.start_span(
            record.method,
            self._parent(record),
            SpanKind.SERVER,
            {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method, "dragoman.request_id": record.id},
            start_time=_nanoseconds(epoch + record.received),
        )
        if span.is_recording():
            span.set_attributes(_attributes(record))
            if record.code in FAULTS:
                span.set_status(Status(StatusCode.ERROR))
            context = set_span_in_context(span, Context())
            later = list(phases(record))
            received = later[0][1] if later else record.ended
            for name, start, end in [("receive", record.received, received), *later]:
                child = self._tracer.start_span(NAMES.get(name, name), context, start_time=_nanoseconds(epoch + start))
                child.end(_nanoseconds(epoch + end))
        span.end(_nanoseconds(epoch + record.ended))
        identity = span.get_span_context()
        return format_trace_id(identity.trace_id) if identity.trace_flags.sampled else ""

    def close(self, seconds: float) -> None:
        """See telemetry.observer.Tracer."""
        # NOTE: if the collector does not answer, exporters exceed their timeout.
        sending = Thread(target=self._provider.force_flush, args=[int(seconds * 1000)], daemon=True)
        sending.start()
        sending.join(seconds)

    def _parent(self, record: CallRecord) -> Context:
        if not record.traceparent:
            return Context()
        carrier = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        return self._propagator.extract(carrier, Context())


def _exporter() -> SpanExporter:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    protocol = protocol or "grpc"
    if protocol not in EXPORTERS:
        raise StartError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol}, but must be one of {', '.join(EXPORTERS)}")
    try:
        module = import_module(EXPORTERS[protocol])
    except ModuleNotFoundError:
        package = "opentelemetry-exporter-otlp-proto-" + protocol.partition("/")[0]
        raise StartError(f"traces over {protocol} need another package: pip install {package}") from None
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter


def _attributes(record: CallRecord) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {"rpc.grpc.status_code": CODES.index(record.code)}
    if record.key is not None:
        attributes["dragoman.key"] = record.key
    if record.model:
        attributes["dragoman.model"], attributes["dragoman.version"] = record.model, record.version
    if record.inputs:
        attributes["dragoman.inputs"] = record.inputs
        attributes["dragoman.source_tokens"] = record.source_tokens
        attributes["dragoman.target_tokens"] = record.target_tokens
        attributes["dragoman.hypotheses"] = record.hypotheses
    if len(record.finishes) == 1:
        attributes["dragoman.finish"] = next(iter(record.finishes))
    return attributes


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
