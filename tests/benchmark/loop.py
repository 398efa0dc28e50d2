"""The cost of an engine's loop outside the graphs: scheduler, searches, row moves, metrics."""

import time
from collections.abc import Sequence
from queue import SimpleQueue
from statistics import median
from typing import Any, NamedTuple, cast

import onnxruntime as ort

from dragoman_server.bundle.load import Bundle
from dragoman_server.core.requests import GenerationRequest
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.engine import Engine
from dragoman_server.engine.job import Event, Job
from dragoman_server.engine.scheduler import Scheduler, SchedulerOptions
from dragoman_server.engine.shared_queue import SharedQueue
from dragoman_server.metrics import ModelMetrics
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions

ROWS = (1, 8, 32, 64)
MIN_QUIET_TURNS = 30  # turns without a start or end of a request that a median needs


class TimedSession:
    """A session that sums up the time of its runs in `seconds`."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(self, *args: Any) -> Any:
        started = time.perf_counter()
        outputs = self._session.run(*args)
        self.seconds += time.perf_counter() - started
        return outputs

    def run_with_iobinding(self, *args: Any) -> None:
        started = time.perf_counter()
        self._session.run_with_iobinding(*args)
        self.seconds += time.perf_counter() - started


class Turn(NamedTuple):
    """One round of an engine's loop, in seconds.

    Attributes:
        decoder, encoder: Time in the graphs.
        rest: Time outside the graphs.
        changed: Number of requests that started or ended.
    """

    decoder: float
    encoder: float
    rest: float
    changed: int


def summarize(rows: int, turns: Sequence[Turn]) -> dict[str, Any]:
    """Returns mean seconds per turn by part, the share of time outside the graphs, and the median of `rest` over turns
    in which no request starts or ends (None if there are too few)."""
    mean = {part: sum(getattr(turn, part) for turn in turns) / len(turns) for part in Turn._fields[:3]}
    quiet = [turn.rest for turn in turns if not turn.changed]
    steady = median(quiet) if len(quiet) >= MIN_QUIET_TURNS else None
    return {"rows": rows, **mean, "share": mean["rest"] / sum(mean.values()), "steady": steady}


def measure_loop(bundle: Bundle, sources: Sequence[list[int]], limit: int, seconds: float) -> dict[str, Any]:
    """Measures a single-threaded engine with each of ROWS rows.

    Args:
        sources: Token ids of the inputs, repeated as needed.
        limit: The most tokens of an answer.
        seconds: Length of each measurement.
    """
    loop = Loop(bundle, sources, limit)
    return {"turns": [summarize(rows, loop.measure(rows, seconds)) for rows in ROWS]}


class Loop:
    """An engine that is driven turn by turn."""

    def __init__(self, bundle: Bundle, sources: Sequence[list[int]], limit: int) -> None:
        self._manifest = bundle.manifest
        self._text = TargetDecoder(bundle.target_tokenizer)
        self._sources, self._options = sources, SearchOptions(limit)
        self._sessions = Sessions(bundle, CPU, 1)
        self._decoder, self._encoder = TimedSession(self._sessions.decoder), TimedSession(self._sessions.encoder)
        self._sessions.decoder = cast(ort.InferenceSession, self._decoder)
        self._sessions.encoder = cast(ort.InferenceSession, self._encoder)
        self._taken = 0

    def measure(self, rows: int, seconds: float) -> list[Turn]:
        """Returns the turns of about `seconds`, with requests always waiting."""
        runtime = Runtime(self._sessions, rows)
        runtime.warm_up()
        events: SimpleQueue[list[tuple[Job, Event]]] = SimpleQueue()
        queue = SharedQueue(Scheduler(1, SchedulerOptions(queue_size=8 * rows, gather_steps=0)))
        engine = Engine(0, runtime, queue, ModelMetrics(), events.put, lambda _: None)
        turned: list[Turn] = []
        deadline = None
        while deadline is None or time.perf_counter() < deadline:
            while queue.scheduler.waiting < 4 * rows:
                queue.scheduler.submit(self._job())
            waited = queue.scheduler.waiting
            before = self._decoder.seconds, self._encoder.seconds
            started = time.perf_counter()
            engine._turn()
            spent = time.perf_counter() - started
            answered = sum(len(events.get()) for _ in range(events.qsize()))
            begun = waited - queue.scheduler.waiting
            if deadline is None:
                if answered:  # rows are out of step by now
                    deadline = time.perf_counter() + seconds
                continue
            decoder, encoder = self._decoder.seconds - before[0], self._encoder.seconds - before[1]
            turned.append(Turn(decoder, encoder, spent - decoder - encoder, begun + answered))
        return turned

    def _job(self) -> Job:
        self._taken += 1
        source = self._sources[self._taken % len(self._sources)]
        vocabulary = self._manifest.shape.target_vocabulary
        search = make_search(self._options, self._manifest.tokens, vocabulary, self._text)
        return Job(GenerationRequest(source, self._options), search, time.monotonic())
