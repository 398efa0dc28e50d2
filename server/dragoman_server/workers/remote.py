"""A model in a worker process, as engines see it."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dragoman_server.bundle.load import Bundle
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.engine.layout import EngineOptions
from dragoman_server.runtime.device import Device
from dragoman_server.runtime.head_inputs import common_top_k
from dragoman_server.runtime.scorer_session import TargetScores
from dragoman_server.runtime.step_results import TopKResult
from dragoman_server.workers.channel import Channel


class Process(Protocol):
    """What a model needs of the worker process that it is loaded in."""

    def channel(self) -> Channel:
        """Raises WorkerLostError."""

    def watch(self, lost: Callable[[], None]) -> None:
        """See HostedModel.watch."""


class RemoteModel:
    """See HostedModel.

    Raises:
        BundleError, DeviceError: it can't be loaded.
        WorkerLostError: the worker has ended.
    """

    def __init__(self, process: Process, bundle: Bundle, options: EngineOptions) -> None:
        self.device: Device
        self._process = process
        self._tokens = bundle.manifest.tokens
        self._channel = process.channel()
        self._channels: list[Channel] = []  # of runtimes
        self._key, self.device, self.engines, self.threads, self.itemsize = self._channel.ask("load", bundle, options)

    def memory(self) -> tuple[int, str, int]:
        free, place, used = self._channel.ask("memory")
        return free, place, used

    def runtime(self, index: int, rows: int) -> "RemoteRuntime":
        channel = self._process.channel()
        self._channels.append(channel)
        size = channel.ask("runtime", self._key, index, rows)
        return RemoteRuntime(channel, rows, self._tokens.begin, size)

    def scorer(self) -> "RemoteScorer":
        channel = self._process.channel()  # closed with the scorer
        channel.ask("scorer", self._key)
        return RemoteScorer(channel)

    def watch(self, lost: Callable[[], None]) -> None:
        self._process.watch(lost)

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self._channel.close()


class RemoteRuntime:
    """See dragoman_server.runtime.runtime.Runtime. What is to be copied between rows is told with the next question.

    Args:
        begin: the begin token.
    """

    def __init__(self, channel: Channel, max_rows: int, begin: int, cache_bytes: int) -> None:
        self.max_rows = max_rows
        self.cache_bytes = cache_bytes
        self.tokens: NDArray[np.int64] = np.zeros((max_rows, 1), np.int64)
        self.positions: NDArray[np.int32] = np.zeros(max_rows, np.int32)
        self._channel = channel
        self._begin = begin
        self._copies: list[tuple[int, int, int | None, int]] = []

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int:
        padding: int = self._channel.step("encode", self._copied(), sources, row)
        rows = slice(row, row + len(sources))
        self.tokens[rows, 0] = self._begin
        self.positions[rows] = 0
        return padding

    def step(self, step_requests: Sequence[StepRequest]) -> StepResult:
        rows = len(step_requests)
        state = self._copied(), self.tokens[:rows], self.positions[:rows]
        if candidates := common_top_k(step_requests):
            return TopKResult(*self._channel.step("top", *state, candidates))
        scores: StepResult = self._channel.step("mixed", *state, step_requests)
        return scores

    def copy_target(self, source: int, target: int, start: int) -> None:
        self._copies.append((source, target, start, int(self.positions[source])))

    def move_row(self, source: int, target: int) -> None:
        self._copies.append((source, target, None, int(self.positions[source])))
        self.tokens[target] = self.tokens[source]
        self.positions[target] = self.positions[source]

    def _copied(self) -> list[tuple[int, int, int | None, int]]:
        """What to copy first: from and to which row, from which position on (None for all that belongs to the row), and
        how many it has."""
        copies, self._copies = self._copies, []
        return copies


class RemoteScorer:
    """See dragoman_server.runtime.scorer_session.ScorerSession."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def run(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], attention: bool) -> TargetScores:
        scores: TargetScores = self._channel.step("score", sources, targets, attention)
        return scores
