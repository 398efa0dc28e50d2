"""What a server's metrics say, again and again, while something else goes on."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dragoman.local import LocalServer

EVERY_SECONDS = 0.2


@dataclass(frozen=True)
class Look:
    """At a moment (perf_counter): requests that wait, and cache rows in use."""

    at: float
    waiting: float
    running: float


@contextmanager
def watched(server: LocalServer) -> Iterator[list[Look]]:
    """Looks from another thread, until the end of the block."""
    looks: list[Look] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(EVERY_SECONDS):
            at, page = time.perf_counter(), server.metrics()
            looks.append(Look(at, total(page, "dragoman_requests_waiting"), total(page, "dragoman_rows_running")))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield looks
    finally:
        over.set()
        thread.join()


def total(page: dict[str, float], name: str) -> float:
    """Of a metric, over all its labels: of all models and engines of the server."""
    return sum(value for sample, value in page.items() if sample.partition("{")[0] == name)
