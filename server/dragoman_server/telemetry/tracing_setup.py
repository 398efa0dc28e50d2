"""Tracing as the configuration wants it."""

from typing import TYPE_CHECKING

from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError

if TYPE_CHECKING:
    from dragoman_server.telemetry.tracing import CallTracer


def start_tracing(config: ServerConfig) -> "CallTracer | None":
    """None where it is off; then nothing of OpenTelemetry is even imported.

    Raises:
        StartError: the extra is not installed, or its variables say something that can't be.
    """
    if not config.tracing:
        return None
    try:
        from dragoman_server.telemetry.tracing import CallTracer, tracer_provider
    except ModuleNotFoundError as error:
        lacking = (error.name or "").partition(".")[0]
        sentence = f"--tracing needs {lacking}; `pip install '.[server,tracing]'` in a clone of Dragoman brings it"
        raise StartError(sentence) from None
    return CallTracer(tracer_provider())
