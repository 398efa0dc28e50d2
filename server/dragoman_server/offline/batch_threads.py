"""Threads that decode plain searches by batches of similar lengths, without a scheduler."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile

from dragoman_server.core.requests import GenerationRequest, GenerationResult
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.factory import is_plain_greedy
from dragoman_server.offline.batch_beam import BeamBatch, is_plain_beam
from dragoman_server.offline.batch_greedy import greedy_batch
from dragoman_server.offline.tickets import Place, Ticket
from dragoman_server.runtime.runtime import Runtime

# More sources in a greedy batch make it no faster, but finish less evenly.
GREEDY_SOURCES = 48

Deliver = Callable[[list[tuple[Place, GenerationResult]]], None]


def fits_batches(search: SearchOptions, vocabulary: int) -> bool:
    """Returns whether a search can be decoded by batches: plain greedy or beam search."""
    if search.beam is None:
        return is_plain_greedy(search) and search.constraints.vocabulary is None
    return is_plain_beam(search) and 2 * search.beam.beam_size <= vocabulary


class BatchThreads:
    """A thread for each runtime, which share a queue.

    Args:
        runtimes: Runtimes on CPUs, used by nothing else.
        deliver: Takes the answers of a batch. Called in the threads.
        failed: Takes the error that ended a thread. Called in that thread.
    """

    def __init__(self, runtimes: Sequence[Runtime], deliver: Deliver, failed: Callable[[BaseException], None]) -> None:
        self._deliver, self._failed = deliver, failed
        self._waiting: deque[tuple[GenerationRequest, Place]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, args=(runtime,), name=f"batches-{index}", daemon=True)
            for index, runtime in enumerate(runtimes)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Queues the requests of a ticket."""
        with self._changed:
            self._waiting += [(request, Place(ticket, position)) for position, request in enumerate(ticket.requests)]
            self._changed.notify_all()

    def close(self) -> None:
        """Ends the threads after their current batches."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, runtime: Runtime) -> None:
        try:
            while batch := self._take(runtime.max_rows):
                sources = [request.source_ids for request, _ in batch]
                answers = _decode(runtime, sources, batch[0][0].search)
                self._deliver([(place, answer) for (_, place), answer in zip(batch, answers, strict=True)])
        except Exception as error:  # ONNX Runtime raises many types
            self._failed(error)

    def _take(self, rows: int) -> list[tuple[GenerationRequest, Place]]:
        """Waits for requests and returns those of the next batch; none if the thread should end."""
        with self._changed:
            while not (self._waiting or self._stopping):
                self._changed.wait()
            if self._stopping:
                return []
            search = self._waiting[0][0].search
            most = GREEDY_SOURCES if search.beam is None else rows // search.beam.beam_size
            alike = takewhile(lambda waiting: waiting[0].search is search, self._waiting)
            count = sum(1 for _, _ in zip(range(min(most, rows)), alike, strict=False))
            return [self._waiting.popleft() for _ in range(count)]


def _decode(runtime: Runtime, sources: Sequence[Sequence[int]], search: SearchOptions) -> list[GenerationResult]:
    if search.beam is None:
        return greedy_batch(runtime, sources, search.max_new_tokens)
    return BeamBatch(runtime, search).answers(sources)
