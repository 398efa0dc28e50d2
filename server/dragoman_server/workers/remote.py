"""Models, runtimes and scorers in a worker process, with the interface of those in the server's own."""

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dragoman_server.bundle.load import Bundle
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.runtime.device import Device
from dragoman_server.runtime.device_memory import DeviceMemory
from dragoman_server.runtime.head_inputs import common_top_k
from dragoman_server.runtime.scorer_session import TargetScores
from dragoman_server.runtime.step_results import TopKResult
from dragoman_server.workers.worker_main import RowCopy
from dragoman_server.workers.worker_process import Channel, WorkerProcess


class RemoteModel:
    """A LoadedModel in a worker process.

    Raises:
        BundleError, DeviceError: The model can't be loaded.
        WorkerLostError: The worker has ended.
    """

    def __init__(self, process: WorkerProcess, bundle: Bundle, options: EngineOptions) -> None:
        self.device: Device
        self._process = process
        self._begin = bundle.manifest.tokens.begin
        self._channel = process.channel()
        self._runtime_channels: list[Channel] = []
        self._key, self.device, self.engines, self.threads, self.itemsize = self._channel.call("load", bundle, options)

    def memory(self) -> DeviceMemory:
        memory: DeviceMemory = self._channel.call("memory")
        return memory

    def runtime(self, index: int, rows: int) -> "RemoteRuntime":
        channel = self._process.channel()
        self._runtime_channels.append(channel)
        cache_bytes = channel.call("runtime", self._key, index, rows)
        return RemoteRuntime(channel, rows, self._begin, cache_bytes)

    def scorer(self) -> "RemoteScorer":
        channel = self._process.channel()  # closed with the scorer
        channel.call("scorer", self._key)
        return RemoteScorer(channel)

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._process.watch(callback)

    def close(self) -> None:
        for channel in self._runtime_channels:
            channel.close()
        self._channel.close()


class RemoteRuntime:
    """A Runtime in a worker process. Copies between rows are sent along with the next call.

    Args:
        begin: The begin token.
    """

    def __init__(self, channel: Channel, max_rows: int, begin: int, cache_bytes: int) -> None:
        self.max_rows = max_rows
        self.cache_bytes = cache_bytes
        self.tokens: NDArray[np.int64] = np.zeros((max_rows, 1), np.int64)
        self.positions: NDArray[np.int32] = np.zeros(max_rows, np.int32)
        self._channel = channel
        self._begin = begin
        self._lists = SentLists()
        self._copies: list[RowCopy] = []

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int:
        padding: int = self._channel.watched_call("encode", self._pending_copies(), sources, row)
        rows = slice(row, row + len(sources))
        self.tokens[rows, 0] = self._begin
        self.positions[rows] = 0
        return padding

    def step(self, step_requests: Sequence[StepRequest]) -> StepResult:
        rows = len(step_requests)
        state = self._pending_copies(), self.tokens[:rows], self.positions[:rows]
        candidates, listed = common_top_k(step_requests)
        if candidates and not listed:
            return TopKResult(*self._channel.watched_call("top", *state, candidates))
        if candidates:
            numbers, new = self._lists.numbers([cast(Sequence[int], r.vocabulary) for r in step_requests])
            return TopKResult(*self._channel.watched_call("listed_top", *state, candidates, numbers, new))
        result: StepResult = self._channel.watched_call("mixed", *state, step_requests)
        return result

    def copy_target(self, source: int, target: int, start: int) -> None:
        self._copies.append((source, target, start, int(self.positions[source])))

    def move_row(self, source: int, target: int) -> None:
        self._copies.append((source, target, None, int(self.positions[source])))
        self.tokens[target] = self.tokens[source]
        self.positions[target] = self.positions[source]

    def _pending_copies(self) -> list[RowCopy]:
        copies, self._copies = self._copies, []
        return copies


class SentLists:
    """The shortlists that a worker has: those of the rows of the last step. Each is sent once."""

    def __init__(self) -> None:
        self._sent: dict[int, tuple[int, Sequence[int]]] = {}  # by id(): number, and the list, kept alive
        self._next = 0

    def numbers(self, vocabularies: Sequence[Sequence[int]]) -> tuple[list[int], dict[int, Sequence[int]]]:
        """Returns a number for each row's shortlist, and the shortlists that the worker lacks, by number."""
        kept: dict[int, tuple[int, Sequence[int]]] = {}
        new: dict[int, Sequence[int]] = {}
        for vocabulary in vocabularies:
            key = id(vocabulary)
            if key in kept:
                continue
            if key not in self._sent:
                self._sent[key] = self._next, vocabulary
                new[self._next] = vocabulary
                self._next += 1
            kept[key] = self._sent[key]
        self._sent = kept
        return [kept[id(vocabulary)][0] for vocabulary in vocabularies], new


class RemoteScorer:
    """A ScorerSession in a worker process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def run(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], attention: bool) -> TargetScores:
        scores: TargetScores = self._channel.watched_call("score", sources, targets, attention)
        return scores
