"""A request inside the engine pool, and the sub-queue in which it waits."""

from collections import OrderedDict
from dataclasses import dataclass, field

from dragoman_server.core.requests import GenerationRequest
from dragoman_server.core.search import Search

NEVER = float("inf")


@dataclass(slots=True, eq=False)
class CallQueue:
    """The waiting jobs of one batch call, in the order of their arrival; single calls of a priority share one.

    The jobs of a batch call have the same priority, deadline and time limit.

    Attributes:
        jobs: The waiting jobs.
        tokens: Source tokens of the waiting jobs.
        virtual_time: Rows started, as in weighted fair queueing: among sub-queues the one with the least starts next.
        accepted: Whether a job of the batch call has been accepted; all that follow are accepted too.
    """

    jobs: "OrderedDict[Job, None]" = field(default_factory=OrderedDict)
    tokens: int = 0
    virtual_time: float = 0.0
    accepted: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """A request inside the engine pool.

    Attributes:
        arrived: Time of arrival, time.monotonic().
        handle: The object that receives the answer; the scheduler does not look at it.
        cancelled: Whether the client has left. Set by the event loop, read by engines.
        queue: The sub-queue in which the job waits, None once it has started or left.
    """

    request: GenerationRequest
    search: Search
    arrived: float
    handle: object = None
    cancelled: bool = False
    queue: CallQueue | None = None

    def expired(self, now: float) -> bool:
        return self.request.deadline is not None and now >= self.request.deadline

    def out_of_time(self, now: float) -> bool:
        return self.request.time_limit is not None and now >= self.request.time_limit
