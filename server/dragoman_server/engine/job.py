"""A request inside the engine pool: how it waits, and how it ends."""

from collections import OrderedDict
from dataclasses import dataclass, field

from dragoman_server.core.engine_metrics import EngineMetrics
from dragoman_server.core.errors import DeadlineExpiredError, EngineError
from dragoman_server.core.requests import BeamProgress, FinishReason, GenerationRequest, GenerationResult, Progress
from dragoman_server.core.search import Search

NEVER = float("inf")

Event = Progress | BeamProgress | GenerationResult | EngineError


@dataclass(slots=True, eq=False)
class CallQueue:
    """The waiting jobs of one batch call, in the order of their arrival; single calls of a priority share one.

    The jobs of a batch call have the same priority and deadline.

    Attributes:
        jobs: The waiting jobs.
        tokens: Source tokens of the waiting jobs.
        virtual_time: Rows started, as in weighted fair queueing: among sub-queues the one with the least starts next.
        accepted: Whether a job of the batch call has been accepted; all that follow are accepted too.
        alike: Whether all jobs have the same deadline and time limit.
    """

    jobs: "OrderedDict[Job, None]" = field(default_factory=OrderedDict)
    tokens: int = 0
    virtual_time: float = 0.0
    accepted: bool = False
    alike: bool = True


@dataclass(slots=True, eq=False)
class Job:
    """A request inside the engine pool.

    Attributes:
        arrived: Time of arrival, time.monotonic().
        handle: The object that receives the answer, None after that; the scheduler does not look at it.
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


@dataclass(slots=True)
class Admission:
    """Jobs that left the queue.

    Attributes:
        admitted: Jobs that the engine encodes before its next step.
        expired: Jobs whose deadline passed while they waited.
        out_of_time: Jobs whose time limit passed while they waited; they are answered with nothing generated.
    """

    admitted: list[Job] = field(default_factory=list)
    expired: list[Job] = field(default_factory=list)
    out_of_time: list[Job] = field(default_factory=list)


def end_overdue(admission: Admission, now: float, metrics: EngineMetrics) -> list[tuple[Job, Event]]:
    """Returns the events that end jobs which waited too long."""
    for _ in admission.expired:
        metrics.dropped("expired", "waiting")
    results = [(job, finish(job, now, metrics, FinishReason.TIME_LIMIT)) for job in admission.out_of_time]
    return [*((job, DeadlineExpiredError()) for job in admission.expired), *results]


def finish(job: Job, now: float, metrics: EngineMetrics, reason: FinishReason | None = None) -> GenerationResult:
    """Returns the result of a search that is over, or that is stopped for the given reason."""
    if reason is not None:
        job.search.stop(reason)
    if job.request.stages is not None:
        job.request.stages.decoded = now
    hypotheses = job.search.hypotheses()
    target_tokens = sum(len(h.ids) for h in hypotheses)
    metrics.finished(hypotheses[0].reason, len(job.request.source_ids), target_tokens, now - job.arrived)
    return GenerationResult(hypotheses)
