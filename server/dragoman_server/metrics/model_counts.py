"""Counts of one version of a model."""

from collections.abc import Callable
from threading import Lock
from typing import get_args

from dragoman_server.core.engine_metrics import DeviceErrorKind, DropReason, Phase
from dragoman_server.core.requests import FinishReason
from dragoman_server.metrics.histogram import REQUEST_SECONDS, ROWS, STEP_SECONDS, TOKENS, Histogram


class ModelMetrics:
    """Counts what the engines (core.engine_metrics.EngineMetrics) and the scorer of a model report. Thread-safe."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.encode_seconds = Histogram(STEP_SECONDS)
        self.encode_rows = Histogram(ROWS)
        self.step_seconds = Histogram(STEP_SECONDS)
        self.step_rows = Histogram(ROWS)
        self.inter_token_seconds = Histogram(STEP_SECONDS)
        self.queue_seconds = Histogram(REQUEST_SECONDS)
        self.first_token_seconds = Histogram(REQUEST_SECONDS)
        self.generation_seconds = Histogram(REQUEST_SECONDS)
        self.source_length = Histogram(TOKENS)
        self.target_length = Histogram(TOKENS)
        self.score_seconds = Histogram(STEP_SECONDS)
        self.score_rows = Histogram(ROWS)
        self.scored_tokens = 0
        self.unseen_source_requests = 0
        self.branch_seconds = 0.0
        self.branch_rows = 0
        self.encoded_tokens = 0
        self.padding_tokens = 0
        self.finishes = dict.fromkeys(FinishReason, 0)
        self.drops: dict[tuple[DropReason, Phase], int] = {
            (reason, phase): 0 for reason in get_args(DropReason) for phase in get_args(Phase)
        }
        self.device_errors: dict[DeviceErrorKind, int] = dict.fromkeys(get_args(DeviceErrorKind), 0)
        self._queues: list[Callable[[], tuple[int, int]]] = []
        self.engines: dict[int, tuple[int, int]] = {}  # rows in use, max_rows
        self.batch_rows: Callable[[], dict[int, int]] = dict[int, int]  # that batch requests may have, by engine
        self.cache_bytes: dict[int, int] = {}

    def encoded(self, seconds: float, rows: int, source_tokens: int, padding_tokens: int) -> None:
        with self.lock:
            self.encode_seconds.observe(seconds)
            self.encode_rows.observe(rows)
            self.encoded_tokens += source_tokens
            self.padding_tokens += padding_tokens

    def stepped(self, seconds: float, rows: int, gap_seconds: float | None) -> None:
        with self.lock:
            self.step_seconds.observe(seconds)
            self.step_rows.observe(rows)
            if gap_seconds is not None:
                self.inter_token_seconds.observe(gap_seconds, rows)

    def branched(self, seconds: float, rows: int) -> None:
        with self.lock:
            self.branch_seconds += seconds
            self.branch_rows += rows

    def admitted(self, queue_seconds: float) -> None:
        with self.lock:
            self.queue_seconds.observe(queue_seconds)

    def first_token(self, seconds: float) -> None:
        with self.lock:
            self.first_token_seconds.observe(seconds)

    def finished(self, reason: FinishReason, source_tokens: int, target_tokens: int, seconds: float) -> None:
        with self.lock:
            self.finishes[reason] += 1
            self.source_length.observe(source_tokens)
            self.target_length.observe(target_tokens)
            self.generation_seconds.observe(seconds)

    def unseen(self) -> None:
        """Counts an answered request whose source has tokens that the training data lacks."""
        with self.lock:
            self.unseen_source_requests += 1

    def scored(self, seconds: float, rows: int, target_tokens: int) -> None:
        with self.lock:
            self.score_seconds.observe(seconds)
            self.score_rows.observe(rows)
            self.scored_tokens += target_tokens

    def dropped(self, reason: DropReason, phase: Phase) -> None:
        with self.lock:
            self.drops[reason, phase] += 1

    def device_error(self, kind: DeviceErrorKind) -> None:
        with self.lock:
            self.device_errors[kind] += 1

    def queue(self, waits: Callable[[], tuple[int, int]]) -> None:
        self._queues.append(waits)

    def batch_limits(self, limits: Callable[[], dict[int, int]]) -> None:
        self.batch_rows = limits

    def waits(self) -> tuple[int, int]:
        """Returns the waiting requests, including targets to score, and their source tokens."""
        requests, tokens = zip(*(waits() for waits in self._queues), strict=True) if self._queues else ((), ())
        return sum(requests), sum(tokens)

    def state(self, engine: int, running: int, max_rows: int) -> None:
        self.engines[engine] = running, max_rows

    def cache(self, engine: int, bytes_: int) -> None:
        self.cache_bytes[engine] = bytes_

    def cache_used_bytes(self) -> dict[int, int]:
        """Returns the bytes of the rows in use, by engine."""
        return {
            engine: self.cache_bytes.get(engine, 0) * running // max_rows
            for engine, (running, max_rows) in list(self.engines.items())
            if max_rows
        }
