"""The server's engines with nobody to serve: scheduler, searches, rows and graphs, but no gRPC and no text."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

from server.bundle.load import load_bundle
from server.engine.ending import Event
from server.engine.engine import Engine
from server.engine.layout import EngineOptions, layout, weights_of
from server.engine.queue import Queue
from server.engine.requests import Finished, FinishReason, GenerationRequest
from server.engine.scheduler import Job, Scheduler
from server.metrics import ModelMetrics
from server.runtime.device import CPU
from server.runtime.model import Runtime, Sessions
from server.search.base import Continuation, Scores
from server.search.factory import make_search
from server.search.greedy import GreedySearch
from server.search.options import SearchOptions
from server.text.stream import TargetDecoder
from tests.benchmark.engine_work import EngineWork
from tests.benchmark.samples import Sample

Searches = Mapping[str, Sequence[SearchOptions]]
"""By name; one for each source, or one for all."""
Advance = Callable[[Scores, Sequence[int]], Sequence[Continuation] | None]


class EngineLoop:
    """Engines as the server would lay them out, given batches of requests, one batch after the other.

    Args:
        bundle: its directory.
        sources: token ids of each input.
        searches: that may be measured.
        rows: of each engine.
        cores: to be used.
    """

    def __init__(
        self, bundle: Path, sources: Sequence[Sequence[int]], searches: Searches, rows: int, cores: int
    ) -> None:
        opened = load_bundle(bundle)
        self.manifest = opened.manifest
        self.text = TargetDecoder(opened.target_tokenizer)
        self.sources = [list(source) for source in sources]
        self.searches = searches
        options = EngineOptions(cores=cores, max_rows=rows, queue_size=len(sources))
        engines, threads = layout(options, CPU, weights_of(self.manifest))
        self._setting = f"{engines} x {threads} threads"
        self.metrics = ModelMetrics()
        self._advance_seconds: list[float] = []
        self._events: SimpleQueue[list[tuple[Job, Event]]] = SimpleQueue()
        self._queue = Queue(
            Scheduler(engines, options.queue_size, options.gather_share, options.gather_seconds, options.encode_tokens)
        )
        shared = Sessions(opened, CPU, threads) if threads == 1 else None
        self._engines = []
        for index in range(engines):
            runtime = Runtime(shared or Sessions(opened, CPU, threads), rows)
            engine = Engine(index, runtime, self._queue, self.metrics, self._events.put, lambda _: None)
            engine.start()
            self._engines.append(engine)
        self._warm: set[tuple[str, int]] = set()

    def setting(self) -> str:
        """In words."""
        return self._setting

    def measure(self, seconds: float, name: str, size: int) -> Sample:
        """Answers batches of `size` inputs for at least `seconds`, with the search of that name."""
        starts = range(0, len(self.sources) - size + 1, size)
        if (name, size) not in self._warm:
            self._batch(name, 0, size)
            self._warm.add((name, size))
        latencies: list[float] = []
        tokens = 0
        before, cpu = self._work(), time.process_time()
        started = now = time.perf_counter()
        while now - started < seconds:
            answers = self._batch(name, starts[len(latencies) % len(starts)], size)
            best = [answer.hypotheses[0] for answer in answers]
            tokens += sum(len(hypothesis.ids) + (hypothesis.reason is FinishReason.EOS) for hypothesis in best)
            latencies.append(time.perf_counter() - now)
            now += latencies[-1]
        cpu_seconds = {"own": time.process_time() - cpu}
        work = self._work().since(before)
        return Sample(now - started, tokens, size * len(latencies), latencies, cpu_seconds=cpu_seconds, work=work)

    def answers(self, name: str, size: int) -> list[list[int]]:
        """Token ids of every source's best hypothesis, without the end token, from batches of `size`."""
        count = len(self.sources)
        batches = [self._batch(name, start, min(size, count - start)) for start in range(0, count, size)]
        return [answer.hypotheses[0].ids for answers in batches for answer in answers]

    def close(self) -> None:
        """Ends the engines."""
        with self._queue.lock:
            self._queue.stopping = True
            self._queue.wake_all()
        for engine in self._engines:
            engine.join()

    def _batch(self, name: str, start: int, size: int) -> list[Finished]:
        """Answers to so many sources from the `start`-th on, which are waited for."""
        jobs = [self._job(name, index) for index in range(start, start + size)]
        with self._queue.lock:
            for job in jobs:
                self._queue.scheduler.submit(job)
            self._queue.wake_all()
        answers: dict[Job, Finished] = {}
        while len(answers) < size:
            for job, event in self._events.get():
                if not isinstance(event, Finished):
                    raise RuntimeError(f"an engine gave {event!r} instead of an answer")
                answers[job] = event
        return [answers[job] for job in jobs]

    def _job(self, name: str, index: int) -> Job:
        searches = self.searches[name]
        options = searches[index % len(searches)]
        search = make_search(options, self.manifest.tokens, self.manifest.shape.target_vocabulary, self.text)
        if not isinstance(search, GreedySearch):  # those are led all together
            search.advance = self._timed(search.advance)  # type: ignore[assignment]
        return Job(GenerationRequest(self.sources[index], options), search, time.monotonic())

    def _timed(self, advance: Advance) -> Advance:
        """Takes the time of each call, in much less than the call takes."""

        def timed(scores: Scores, rows: Sequence[int]) -> Sequence[Continuation] | None:
            started = time.perf_counter()
            continuations = advance(scores, rows)
            self._advance_seconds.append(time.perf_counter() - started)
            return continuations

        return timed

    def _work(self) -> EngineWork:
        return EngineWork.of_metrics(self.metrics, self._advance_seconds)
