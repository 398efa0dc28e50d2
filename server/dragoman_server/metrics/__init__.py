"""What Prometheus sees. Every label comes from a closed set: nothing that a client sends becomes one.

What is counted at every step or call is plain Python data, behind one lock for each model: that costs a microsecond or
two. It is put into words when Prometheus asks.
"""

from dragoman_server.metrics.calls import CallMetrics
from dragoman_server.metrics.histogram import REQUEST_SECONDS, ROWS, STEP_SECONDS, TOKENS, Histogram, geometric
from dragoman_server.metrics.model_counts import ModelMetrics
from dragoman_server.metrics.server_metrics import ServerMetrics

__all__ = [
    "REQUEST_SECONDS",
    "ROWS",
    "STEP_SECONDS",
    "TOKENS",
    "CallMetrics",
    "Histogram",
    "ModelMetrics",
    "ServerMetrics",
    "geometric",
]
