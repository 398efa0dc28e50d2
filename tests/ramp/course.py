"""A server under load that rises beyond what it can do, and what its metrics say meanwhile."""

import random
import time
from statistics import fmean, median

from dragoman.local import LOOPBACK, LocalServer
from dragoman_server.bundle.load import load_bundle, shipped_bundle
from tests.benchmark.workload import real_words
from tests.ramp.lead import Moment, Ramp
from tests.ramp.watch import Look, total, watched
from tests.support.load import Call, LoadGenerator, percentile

WORDS = 2048
FIRST_SHARE, LAST_SHARE = 0.2, 1.4  # of the rate that the server can do
ROUNDS = 3


def load_generator(server: LocalServer) -> LoadGenerator:
    """Of words for the model that ships."""
    requests = real_words(load_bundle(shipped_bundle()), WORDS).unary()
    return LoadGenerator((LOOPBACK, server.port), server.process.pid, "Generate", requests)


def measure(server: LocalServer, seconds: float, full_seconds: float, seed: int) -> Ramp:
    """The ramp of a server of the model that ships.

    Calls come at random moments, at a rate that rises in a straight line. What the server can do is measured before,
    with as many calls in flight as it has cache rows: all rows busy, and nobody waits.

    Args:
        seconds: for which calls are sent.
        full_seconds: of each measurement of what the server can do.
    """
    generator = load_generator(server)
    rows = round(total(server.metrics(), "dragoman_rows"))
    full = [generator.closed(rows, full_seconds) for _ in range(ROUNDS)]
    capacity = median(sample.sequences / sample.seconds for sample in full)
    full_p95 = median(percentile(sample.latencies, 0.95) for sample in full)
    due = rising(capacity * FIRST_SHARE, capacity * LAST_SHARE, seconds, seed)
    with watched(server) as looks:
        started = time.perf_counter()
        calls = generator.arrive(due, started)
    moments = tuple(_moment(second, started, calls, looks) for second in range(int(seconds)))
    return Ramp(rows, capacity, full_p95, moments)


def rising(first: float, last: float, seconds: float, seed: int) -> list[float]:
    """Random moments at a rate that rises from `first` to `last` a second."""
    draw = random.Random(seed)
    due, now = list[float](), 0.0
    while (now := now + draw.expovariate(first + (last - first) * now / seconds)) < seconds:
        due.append(now)
    return due


def _moment(second: int, started: float, calls: list[Call], looks: list[Look]) -> Moment:
    def within(at: float) -> bool:
        return second <= at - started < second + 1

    due = [call for call in calls if within(call.due)]
    latencies = [call.done - call.due for call in due if call.answer is not None]
    seen = [look for look in looks if within(look.at)]
    return Moment(
        second=second,
        offered=len(due),
        answered=sum(within(call.done) and call.answer is not None for call in calls),
        refused=sum(within(call.done) and call.answer is None for call in calls),
        p50_seconds=percentile(latencies, 0.5) if latencies else None,
        p95_seconds=percentile(latencies, 0.95) if latencies else None,
        waiting=fmean(look.waiting for look in seen) if seen else None,
        running=fmean(look.running for look in seen) if seen else None,
    )
