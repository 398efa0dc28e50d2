"""A request on its way through the server."""

from dataclasses import dataclass

from dragoman_server.core.requests import GenerationRequest
from dragoman_server.core.search import Search

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the server.

    Attributes:
        arrived: time.monotonic() of its arrival.
        handle: whoever waits for the answer; the scheduler does not look at it.
        cancelled: nobody waits any more. Set from the event loop, read by engines.
        engine: the engine it runs in; None while it waits.
    """

    request: GenerationRequest
    search: Search
    arrived: float
    handle: object = None
    cancelled: bool = False
    engine: int | None = None

    def expired(self, now: float) -> bool:
        return self.request.deadline is not None and now >= self.request.deadline

    def out_of_time(self, now: float) -> bool:
        return self.request.time_limit is not None and now >= self.request.time_limit
