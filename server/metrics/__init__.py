"""What Prometheus sees. Every label comes from a closed set: nothing that a client sends becomes one.

What is counted at every step or call is plain Python data, behind one lock for each model: that costs a microsecond or
two. It is put into words when Prometheus asks.
"""

from server.metrics.calls import CallMetrics
from server.metrics.histogram import REQUEST_SECONDS, ROWS, STEP_SECONDS, TOKENS, Histogram, geometric
from server.metrics.model import ModelMetrics
from server.metrics.server import ServerMetrics

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
