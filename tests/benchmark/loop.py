"""What an engine's loop costs around the graphs: the scheduler, the searches, rows that move, metrics."""

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
LEAST_TURNS = 30  # in which no request begins or ends, for a median of them


class TimedSession:
    """A session that takes the time of its runs: `seconds` so far."""

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
        decoder, encoder: in the graphs.
        rest: outside them.
        changed: requests that began or ended in it.
    """

    decoder: float
    encoder: float
    rest: float
    changed: int


def summed_up(rows: int, turns: Sequence[Turn]) -> dict[str, Any]:
    """Mean seconds of a turn by part; the share of all time outside the graphs; and the median seconds outside them in
    a turn in which no request begins or ends (None where there was hardly one)."""
    mean = {part: sum(getattr(turn, part) for turn in turns) / len(turns) for part in Turn._fields[:3]}
    quiet = [turn.rest for turn in turns if not turn.changed]
    steady = median(quiet) if len(quiet) >= LEAST_TURNS else None
    return {"rows": rows, **mean, "share": mean["rest"] / sum(mean.values()), "steady": steady}


def measure_loop(bundle: Bundle, sources: Sequence[list[int]], limit: int, seconds: float) -> dict[str, Any]:
    """An engine of one thread, turned by hand, with ROWS rows, for so many seconds each.

    Args:
        sources: token ids of inputs, taken over and over.
        limit: tokens of an answer at most.
    """
    loop = Loop(bundle, sources, limit)
    return {"turns": [summed_up(rows, loop.measure(rows, seconds)) for rows in ROWS]}


class Loop:
    """See measure_loop."""

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
        """Turns for about so long, with requests waiting all the time."""
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
                if answered:  # rows are no more in step with each other
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
