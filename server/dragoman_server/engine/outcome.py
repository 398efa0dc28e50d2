"""How requests end, and what engines tell of them."""

from dragoman_server.core.engine_metrics import EngineMetrics
from dragoman_server.core.errors import DeadlineExpiredError, EngineError
from dragoman_server.core.requests import BeamProgress, FinishReason, GenerationResult, Progress
from dragoman_server.engine.job import Job
from dragoman_server.engine.priority_queue import Admission

Event = Progress | BeamProgress | GenerationResult | EngineError


def overdue(admission: Admission, now: float, metrics: EngineMetrics) -> list[tuple[Job, Event]]:
    """The ends of those that waited too long."""
    for _ in admission.expired:
        metrics.dropped("expired", "waiting")
    answers = [(job, finish(job, now, metrics, FinishReason.TIME_LIMIT)) for job in admission.out_of_time]
    return [*((job, DeadlineExpiredError()) for job in admission.expired), *answers]


def finish(job: Job, now: float, metrics: EngineMetrics, reason: FinishReason | None = None) -> GenerationResult:
    """The answer of a search that is over, or that is ended for a reason."""
    if reason is not None:
        job.search.stop(reason)
    if job.request.stages is not None:
        job.request.stages.decoded = now
    hypotheses = job.search.hypotheses()
    target_tokens = sum(len(h.ids) for h in hypotheses)
    metrics.finished(hypotheses[0].reason, len(job.request.source_ids), target_tokens, now - job.arrived)
    return GenerationResult(hypotheses)
