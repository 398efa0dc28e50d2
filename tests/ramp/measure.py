"""Measures a server, and samples its metrics, under load that rises beyond its capacity."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median

from dragoman.local import LOOPBACK, LocalServer
from dragoman_server.bundle.load import load_bundle
from tests.benchmark.workload import real_words
from tests.ramp.results import Moment, Ramp
from tests.support.bundles import SHIPPED_G2P
from tests.support.load import Call, LoadGenerator, percentile

WORDS = 2048
FIRST_SHARE, LAST_SHARE = 0.2, 1.4  # of the server's capacity
ROUNDS = 3
SAMPLE_SECONDS = 0.2


@dataclass(frozen=True)
class QueueSample:
    """Waiting requests and cache rows in use at a moment (perf_counter)."""

    at: float
    waiting: float
    running: float


@contextmanager
def sample_queue(server: LocalServer) -> Iterator[list[QueueSample]]:
    """Samples the metrics from another thread until the end of the block."""
    samples: list[QueueSample] = []
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            at, metrics = time.perf_counter(), server.metrics()
            waiting, running = (total(metrics, f"dragoman_{name}") for name in ("requests_waiting", "rows_running"))
            samples.append(QueueSample(at, waiting, running))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()


def total(metrics: dict[str, float], name: str) -> float:
    """Returns the sum of a metric over all models and engines."""
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name)


def load_generator(server: LocalServer) -> LoadGenerator:
    """Returns a generator of Generate calls with words for the shipped model."""
    requests = real_words(load_bundle(SHIPPED_G2P), WORDS).unary()
    return LoadGenerator((LOOPBACK, server.port), server.process.pid, "Generate", requests)


def measure(server: LocalServer, seconds: float, full_seconds: float, seed: int) -> Ramp:
    """Measures a server of the shipped model under rising load.

    Calls arrive at random moments, at a rate that rises linearly. The capacity is measured before, with as many calls
    in flight as there are cache rows: all rows are busy and nobody waits.

    Args:
        server: A server without other load.
        seconds: Duration of the rising load.
        full_seconds: Duration of each measurement of the capacity.
        seed: Seed of the arrival times.
    """
    generator = load_generator(server)
    rows = round(total(server.metrics(), "dragoman_rows"))
    full = [generator.closed(rows, full_seconds) for _ in range(ROUNDS)]
    capacity = median(sample.sequences / sample.seconds for sample in full)
    full_p95 = median(percentile(sample.latencies, 0.95) for sample in full)
    due = arrival_times(capacity * FIRST_SHARE, capacity * LAST_SHARE, seconds, seed)
    with sample_queue(server) as samples:
        started = time.perf_counter()
        calls = generator.arrive(due, started)
    moments = tuple(_moment(second, started, calls, samples) for second in range(int(seconds)))
    return Ramp(rows, capacity, full_p95, moments)


def arrival_times(first: float, last: float, seconds: float, seed: int) -> list[float]:
    """Returns random times at a rate that rises linearly from `first` to `last` per second."""
    draw = random.Random(seed)
    due, now = list[float](), 0.0
    while (now := now + draw.expovariate(first + (last - first) * now / seconds)) < seconds:
        due.append(now)
    return due


def _moment(second: int, started: float, calls: list[Call], samples: list[QueueSample]) -> Moment:
    def within(at: float) -> bool:
        return second <= at - started < second + 1

    due = [call for call in calls if within(call.due)]
    latencies = [call.done - call.due for call in due if call.answer is not None]
    current = [sample for sample in samples if within(sample.at)]
    return Moment(
        second=second,
        offered=len(due),
        answered=sum(within(call.done) and call.answer is not None for call in calls),
        refused=sum(within(call.done) and call.answer is None for call in calls),
        p50_seconds=percentile(latencies, 0.5) if latencies else None,
        p95_seconds=percentile(latencies, 0.95) if latencies else None,
        waiting=fmean(sample.waiting for sample in current) if current else None,
        running=fmean(sample.running for sample in current) if current else None,
    )
