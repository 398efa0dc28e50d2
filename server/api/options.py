"""Checks of a request's options."""

from dragoman.v1 import generation_pb2 as pb
from server.api.errors import invalid

MAX_DURATION_SECONDS = 315_576_000_000  # google.protobuf.Duration's own limit: 10,000 years
MAX_NANOS = 999_999_999


def max_new_tokens(options: pb.GenerationOptions, limit: int) -> int:
    """Tokens to generate at most.

    Args:
        limit: the model's, and the default.

    Raises:
        ApiError: the option is not in 1 .. limit.
    """
    if not options.HasField("max_new_tokens"):
        return limit
    asked = options.max_new_tokens
    if not 1 <= asked <= limit:
        raise invalid("options.max_new_tokens", f"is {asked}, but must be in 1 to {limit}, which is the model's limit")
    return asked


def time_limit(options: pb.GenerationOptions, arrival: float) -> float | None:
    """time.monotonic() at which generation stops with what there is; None for no limit.

    Args:
        arrival: time.monotonic() of the call's arrival.

    Raises:
        ApiError: the option is not a valid duration, or not positive.
    """
    if not options.HasField("time_limit"):
        return None
    seconds, nanos = options.time_limit.seconds, options.time_limit.nanos
    if abs(seconds) > MAX_DURATION_SECONDS or abs(nanos) > MAX_NANOS or seconds * nanos < 0:
        raise invalid("options.time_limit", f"is not a valid duration: {seconds} s and {nanos} ns")
    if seconds < 0 or nanos < 0 or seconds == nanos == 0:
        raise invalid("options.time_limit", "must be more than zero")
    return arrival + seconds + nanos * 1e-9
