"""Engine pools over a fake runtime that computes with plain numbers."""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, GenerationRequest
from dragoman_server.core.search import StepRequest
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scheduler import SchedulerOptions
from dragoman_server.runtime.device import Device, WorkerLostError
from dragoman_server.runtime.device_memory import DeviceMemory
from dragoman_server.runtime.step_results import TopKResult
from tests.support.fake_engines import letters_bundle

END = 3


class CountingRuntime:
    """A fake runtime: the target is the source reversed. Content lives in rows, so a wrong move shows."""

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self.cache_bytes = 0
        self.tokens: NDArray[np.int64] = np.zeros((max_rows, 1), np.int64)
        self.positions: NDArray[np.int32] = np.zeros(max_rows, np.int32)
        self.memory: list[list[int]] = [[] for _ in range(max_rows)]
        self.encoded: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.steps = 0
        self.hold_at: int | None = None  # step before which the gate closes
        self.most_rows = 0
        self.errors: list[Exception] = []  # raised by the next runs
        self.most_memory: int | None = None  # rows for which a step has enough memory
        self.most_encoded: int | None = None  # sources for which an encoder run has enough memory
        self.holds_encoding = False
        self.encoding = False
        self.padding_shares: list[float] = []  # of the encoder runs

    def hold_encoding(self) -> None:
        """Closes the gate, for encoding as well."""
        self.gate.clear()
        self.holds_encoding = True

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int:
        self._raise()
        if self.most_encoded is not None and len(sources) > self.most_encoded:
            raise MemoryError
        self.encoding = True
        if self.holds_encoding:
            self.gate.wait(10)
        lengths = [len(source) for source in sources]
        self.padding_shares.append(1 - sum(lengths) / (len(lengths) * max(lengths)))
        for i, source in enumerate(sources):
            self.memory[row + i] = list(source)
            self.encoded.append(list(source))
            self.tokens[row + i] = 2
            self.positions[row + i] = 0
        return 0

    def step(self, step_requests: Sequence[StepRequest]) -> TopKResult:
        rows = len(step_requests)
        if self.steps == self.hold_at:
            self.gate.clear()
        self.gate.wait(10)
        self._raise()
        if self.most_memory is not None and rows > self.most_memory:
            raise MemoryError
        self.steps += 1
        self.most_rows = max(self.most_rows, rows)
        ids = []
        for row in range(rows):
            position = int(self.positions[row])
            answer = [*self.memory[row][-2::-1], END]
            assert self.tokens[row, 0] == (2 if position == 0 else answer[position - 1]), "fed the wrong token"
            ids.append([answer[position]])
        return TopKResult(np.array(ids, np.int64), np.full((rows, 1), -0.5, np.float32))

    def _raise(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def copy_target(self, source: int, target: int, start: int) -> None:
        raise AssertionError("greedy search does not branch")

    def move_row(self, source: int, target: int) -> None:
        self.memory[target] = self.memory[source]
        self.tokens[target] = self.tokens[source]
        self.positions[target] = self.positions[source]


class CountingHost:
    """A fake host of the given runtimes, and the model loaded there.

    Attributes:
        loads: Number of times that the model was loaded.
        fresh: Returns a runtime after a loss; None if the host can't restart.
        losing: Number of attempts to load the model that lose the worker.
        lost: Reports that the model is lost.
    """

    name, ready = "here", True
    device, threads, itemsize = Device("cpu"), 1, 4

    def __init__(self, *runtimes: CountingRuntime, fresh: Callable[[], CountingRuntime] | None = None) -> None:
        self.runtimes = list(runtimes)
        self.fresh = fresh
        self.restartable = fresh is not None
        self.engines = len(runtimes)
        self.loads = self.broke = self.losing = 0
        self.lost: Callable[[], None] = lambda: None

    def load(self, bundle: Any, options: Any) -> "CountingHost":
        self.loads += 1
        if self.loads <= self.losing:
            raise WorkerLostError("the worker process has ended")
        if self.loads > 1 and not self.losing:
            assert self.fresh is not None
            self.runtimes = [self.fresh() for _ in self.runtimes]
        return self

    def memory(self) -> DeviceMemory:
        return DeviceMemory(2**40, "machine", 0)

    def runtime(self, index: int, rows: int) -> CountingRuntime:
        return self.runtimes[index]

    def scorer(self) -> Any:
        raise AssertionError("nothing is scored here")

    def on_lost(self, callback: Callable[[], None]) -> None:
        self.lost = callback

    def restart(self) -> None:
        self.broke += 1
        self.lost()

    def close(self) -> None: ...


class Metrics:
    """Records the measurements that tests look at."""

    def __init__(self) -> None:
        self.drops: list[tuple[str, str]] = []
        self.errors: list[str] = []
        self.reasons: list[FinishReason] = []
        self.waits: Callable[[], tuple[int, int]] = lambda: (0, 0)  # requests, source tokens

    def dropped(self, reason: Any, phase: Any) -> None:
        self.drops.append((reason, phase))

    def finished(self, reason: FinishReason, source_tokens: int, target_tokens: int, seconds: float) -> None:
        self.reasons.append(reason)

    def first_token(self, seconds: float) -> None: ...
    def encoded(self, seconds: float, rows: int, source_tokens: int, padding_tokens: int) -> None: ...
    def stepped(self, seconds: float, rows: int, gap_seconds: float | None) -> None: ...
    def branched(self, seconds: float, rows: int) -> None: ...
    def admitted(self, queue_seconds: float) -> None: ...
    def device_error(self, kind: str) -> None:
        self.errors.append(kind)

    def queue(self, waits: Callable[[], tuple[int, int]]) -> None:
        self.waits = waits

    def batch_limits(self, limits: Callable[[], dict[int, int]]) -> None: ...

    def state(self, engine: int, running: int, max_rows: int) -> None: ...
    def cache(self, engine: int, bytes_: int) -> None: ...


def eager(**options: Any) -> SchedulerOptions:
    """Options with which engines start waiting jobs at once, and share them from the start."""
    least = {"gather_seconds": 0.0, "gather_steps": 0, "min_rows_per_engine": 1, "min_single_rows_per_engine": 1}
    return SchedulerOptions(**{**least, **options})


@asynccontextmanager
async def pool_of(
    *runtimes: CountingRuntime,
    queue_size: int = 1000,
    metrics: Metrics | None = None,
    scheduling: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[EnginePool]:
    """Starts a pool with an engine for each fake runtime."""
    hosts = [CountingHost(*runtimes)]
    options["scheduling"] = eager(queue_size=queue_size, **(scheduling or {}))
    pool = EnginePool(letters_bundle(), EngineOptions(**options), metrics or Metrics(), hosts)
    await pool.start()
    try:
        yield pool
    finally:
        for runtime in runtimes:
            runtime.gate.set()
        await pool.close()


def request(*ids: int, limit: int = 50, **more: Any) -> GenerationRequest:
    return GenerationRequest([*ids, END], SearchOptions(limit), **more)


def at_rest(pool: EnginePool) -> bool:
    """Returns whether no job waits and every row is released."""
    assert pool._queue is not None
    with pool._queue.lock:
        return pool._queue.scheduler.waiting == pool._queue.scheduler.running == 0
