"""Metrics for Prometheus. Every label value comes from a closed set: nothing that a client sends becomes one.

Steps and calls are counted in plain Python data behind one lock per model, which costs a microsecond or two. The text
format is produced when Prometheus scrapes.
"""

from dragoman_server.metrics.calls import CallMetrics
from dragoman_server.metrics.histogram import REQUEST_SECONDS, ROWS, STEP_SECONDS, TOKENS, Histogram, geometric
from dragoman_server.metrics.model_counts import ModelMetrics
from dragoman_server.metrics.server_metrics import ModelLoad, ServerMetrics

__all__ = [
    "REQUEST_SECONDS",
    "ROWS",
    "STEP_SECONDS",
    "TOKENS",
    "CallMetrics",
    "Histogram",
    "ModelLoad",
    "ModelMetrics",
    "ServerMetrics",
    "geometric",
]
