"""How much of an engine's time is not spent in the graphs."""

import cProfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from statistics import median
from typing import Any, cast

import onnxruntime as ort

from server.bundle.load import Bundle
from server.engine.ending import Event
from server.engine.engine import Engine
from server.engine.queue import Queue
from server.engine.requests import GenerationRequest
from server.engine.scheduler import Job, Scheduler
from server.metrics import ModelMetrics
from server.runtime.device import CPU
from server.runtime.model import Runtime, Sessions
from server.search.factory import make_search
from server.search.options import SearchOptions
from server.text.stream import TargetDecoder

LEAST_TURNS = 30


class TimedSession:
    """A session that takes the time of its runs.

    Attributes:
        seconds: in runs so far.
    """

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


@dataclass(frozen=True)
class Turn:
    """One round of an engine's loop, in seconds.

    Attributes:
        decoder, encoder: in the graphs.
        changed: requests that began or ended in it.
    """

    seconds: float
    decoder: float
    encoder: float
    changed: int

    @property
    def rest(self) -> float:
        return self.seconds - self.decoder - self.encoder


@dataclass
class Turns:
    """Turns of an engine with so many rows, all of them busy."""

    rows: int
    turns: list[Turn] = field(default_factory=list)

    def mean(self, part: str) -> float:
        """Seconds of a turn: "seconds", "decoder", "encoder" or "rest"."""
        total: float = sum(getattr(turn, part) for turn in self.turns)
        return total / len(self.turns)

    @property
    def share(self) -> float:
        """Of all time, outside the graphs."""
        return self.mean("rest") / self.mean("seconds")

    @property
    def steady(self) -> tuple[float, float] | None:
        """Seconds outside the graphs, and their share, of a turn in which no request begins or ends; None where there
        was hardly one."""
        quiet = [turn for turn in self.turns if not turn.changed]
        if len(quiet) < LEAST_TURNS:
            return None
        return median(turn.rest for turn in quiet), median(turn.rest / turn.seconds for turn in quiet)

    @property
    def request(self) -> float | None:
        """Seconds outside the graphs that a request costs beside its steps, from first to last."""
        changed = sum(turn.changed for turn in self.turns) / 2
        if self.steady is None or not changed:
            return None
        return (self.mean("rest") - self.steady[0]) * len(self.turns) / changed


class Loop:
    """An engine of one thread that is turned by hand.

    Args:
        sources: token ids of inputs, taken over and over.
        limit: tokens of an answer at most.
    """

    def __init__(self, bundle: Bundle, sources: Sequence[list[int]], limit: int) -> None:
        self._manifest = bundle.manifest
        self._text = TargetDecoder(bundle.target_tokenizer)
        self._sources, self._options = sources, SearchOptions(limit)
        self._sessions = Sessions(bundle, CPU, 1)
        self._decoder, self._encoder = TimedSession(self._sessions.decoder), TimedSession(self._sessions.encoder)
        self._sessions.decoder = cast(ort.InferenceSession, self._decoder)
        self._sessions.encoder = cast(ort.InferenceSession, self._encoder)
        self._taken = 0

    def measure(self, rows: int, seconds: float, profile: cProfile.Profile | None = None) -> Turns:
        """Turns for about so long, with requests waiting all the time.

        Args:
            profile: enabled meanwhile, which takes time of its own.
        """
        runtime = Runtime(self._sessions, rows)
        runtime.warm_up()
        events: SimpleQueue[list[tuple[Job, Event]]] = SimpleQueue()
        queue = Queue(Scheduler(1, 8 * rows, 0.5, 0.005, 4096))
        engine = Engine(0, runtime, queue, ModelMetrics(), events.put, lambda _: None)
        turned = Turns(rows)
        deadline = None
        while deadline is None or time.perf_counter() < deadline:
            while queue.scheduler.waiting < 4 * rows:
                queue.scheduler.submit(self._job())
            waited = queue.scheduler.waiting
            before = self._decoder.seconds, self._encoder.seconds
            if profile is not None:
                profile.enable()
            started = time.perf_counter()
            engine._turn()
            ended = time.perf_counter()
            if profile is not None:
                profile.disable()
            answered = sum(len(events.get()) for _ in range(events.qsize()))
            begun = waited - queue.scheduler.waiting
            if deadline is None:
                if answered:  # rows are no more in step with each other
                    deadline = time.perf_counter() + seconds
                continue
            decoder, encoder = self._decoder.seconds - before[0], self._encoder.seconds - before[1]
            turned.turns.append(Turn(ended - started, decoder, encoder, begun + answered))
        return turned

    def _job(self) -> Job:
        self._taken += 1
        source = self._sources[self._taken % len(self._sources)]
        vocabulary = self._manifest.shape.target_vocabulary
        search = make_search(self._options, self._manifest.tokens, vocabulary, self._text)
        return Job(GenerationRequest(source, self._options), search, time.monotonic())
