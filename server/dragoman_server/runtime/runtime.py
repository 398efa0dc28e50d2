"""The runtime of one engine: encodes sources into cache rows and runs decoder steps over the rows in use."""

from collections.abc import Sequence

import numpy as np

from dragoman_server.bundle.manifest import Precision
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.runtime.buffers import Array
from dragoman_server.runtime.cache_pool import CachePool
from dragoman_server.runtime.cuda_graphs import CudaGraphSteps
from dragoman_server.runtime.head_inputs import common_top_k
from dragoman_server.runtime.sessions import Sessions
from dragoman_server.runtime.step import Step, make_lists, no_lists
from dragoman_server.runtime.step_results import TopKResult

WARM_UP_TOKENS = 8  # tokens per source in warm-up batches
WARM_UP_ENCODED = 1024  # tokens per warm-up batch, padding included: never more than real requests use

# The kernels of x86 without AVX2 sum over source positions four at a time and over the rest one by one. Without this
# padding, a row's sums would depend on the length of the sources beside it.
SOURCE_MULTIPLE = 4
PROBED_TOKENS = 8

# Tokens of an encoder run on a CPU, padding included; one source always runs. Larger runs are no faster: the base shape
# takes as long in runs of 1024 tokens, and with d 384 sources of 60 tokens take a twelfth longer in runs of 1920. But
# they need memory in proportion: 84 MB instead of 46 for 1024 tokens of the base shape.
ENCODED_TOKENS = 512
BLOCKWISE: tuple[Precision, ...] = ("int8-weights", "int4")  # precisions that MatMulNBits computes


class Runtime:
    """Sessions with a cache pool of `max_rows` rows.

    Not thread-safe: one engine thread owns it.

    Args:
        min_rows: The rows that every product of a step needs for a row's numbers not to depend on how many rows there
            are; smaller steps are padded with unused rows. 1, or 2 where `lone_rows_differ`; None to measure it.

    Attributes:
        tokens, positions, source_lengths: The per-row inputs of the cache pool.
        cuda_graphs: The steps that CUDA graphs can capture; None on a CPU.
    """

    def __init__(self, sessions: Sessions, max_rows: int, *, min_rows: int | None = None) -> None:
        self.max_rows = max_rows
        self.min_rows = min_rows = _measured_min_rows(sessions) if min_rows is None else min_rows
        self.manifest = sessions.bundle.manifest
        self.source_capacity = self.manifest.limits.max_source_tokens
        self.target_capacity = self.manifest.limits.max_target_tokens
        self._sessions = sessions
        self._encoder, self.decoder = sessions.encoder, sessions.decoder
        # On a GPU the encoder writes into the cache itself, with sources padded to the capacity. On a CPU padding costs
        # time, so its outputs are copied.
        self._encodes_in_place = sessions.stream is not None
        self.pool = pool = CachePool(sessions, max(max_rows, min_rows))
        self.tokens, self.positions, self.source_lengths = pool.tokens, pool.positions, pool.source_lengths
        self._steps: dict[int, Step] = {}
        self._lists, self._no_lists = make_lists(sessions, pool.tokens.shape[0]), no_lists(sessions)
        self.cuda_graphs: CudaGraphSteps | None = None
        if sessions.stream is not None:
            self.cuda_graphs = CudaGraphSteps(sessions, pool, sessions.stream, max_rows)

    @property
    def cache_bytes(self) -> int:
        """Size of the cache pool."""
        return self.pool.nbytes

    def warm_up(self) -> None:
        """Encodes the longest source and decodes the last position; on a GPU, also steps 1, 4, 16, ... and all rows.

        This fails here if the graphs do not match the manifest. On a GPU it allocates memory and selects kernels before
        the first request. On a CPU that would take longer than it saves: the first step of 64 rows takes 2 ms
        longer with the shipped model, and rows that were never used take no memory.
        """
        if self.cuda_graphs is not None:
            # A captured graph can only be replayed by the thread that captured it, which must be the engine's.
            with self.cuda_graphs.capture_disabled():
                self._warm_up()
        else:
            self._warm_up()

    def _warm_up(self) -> None:
        end = self.manifest.tokens.end
        self.encode([[end] * self.source_capacity], 0)
        self.positions[0] = self.target_capacity - 1
        self.top(1, 1)
        if not self._encodes_in_place:
            return
        source = [end] * min(WARM_UP_TOKENS, self.source_capacity)
        batch = max(1, WARM_UP_ENCODED // self.source_capacity)
        powers = (4**power for power in range(self.max_rows.bit_length()))
        for rows in sorted({*(power for power in powers if power < self.max_rows), self.max_rows}):
            for first in range(0, rows, batch):
                self.encode([source] * min(batch, rows - first), first)
            self.top(rows, 1)

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int:
        """Encodes sources into rows `row`, `row` + 1, ... and prepares the rows for their first step.

        Args:
            sources: Source ids, the end token included, 1 to source_capacity each.

        Returns:
            the number of padding tokens in the encoder's input.
        """
        if self._encodes_in_place:
            return self._encode(sources, row)
        size = max(1, ENCODED_TOKENS // _padded_length(max(map(len, sources))))
        return sum(self._encode(sources[i : i + size], row + i) for i in range(0, len(sources), size))

    def _encode(self, sources: Sequence[Sequence[int]], row: int) -> int:
        """Encodes sources in one run, see `encode`."""
        count = len(sources)
        lengths = [len(source) for source in sources]
        longest = self.source_capacity if self._encodes_in_place else _padded_length(max(lengths))
        ids = np.full((count, longest), self.manifest.tokens.pad, np.int64)
        for i, source in enumerate(sources):
            ids[i, : lengths[i]] = source
        feed: dict[str, Array] = {"source_ids": ids, "source_lengths": np.array(lengths, np.int32)}
        if self._encodes_in_place:
            binding = self._encoder.io_binding()
            for name, values in feed.items():
                binding.bind_cpu_input(name, values)
            self.pool.bind_encoder(binding, row, count)
            self._encoder.run_with_iobinding(binding)
        else:
            if sum(lengths) < self.min_rows:  # the encoder's products have a row per token
                feed = {name: np.repeat(values, self.min_rows, 0) for name, values in feed.items()}
            self.pool.write_encoded(self._encoder.run(self.manifest.graphs.encoder.outputs, feed), row, count)
        self.pool.start_rows(row, lengths)
        return count * longest - sum(lengths)

    def step(self, step_requests: Sequence[StepRequest]) -> StepResult:
        """Decodes one token in rows 0 .. n-1, from their `tokens` and `positions`.

        Repeating a step does not change its result, so it can be repeated with other step requests.

        Args:
            step_requests: One per row in use, 1 to `max_rows`.

        Returns:
            views that the next step overwrites.
        """
        candidates, listed = common_top_k(step_requests)
        if candidates and not listed:
            return self.top(len(step_requests), candidates)
        step = self._step(len(step_requests))
        if candidates:
            return step.listed_top(step_requests, candidates, self._lists)
        scores = None if self.cuda_graphs is None else self.cuda_graphs.mixed(step_requests)
        return step.mixed(step_requests, self._lists) if scores is None else scores

    def top(self, rows: int, candidates: int) -> TopKResult:
        """Runs a `step` that returns only the most probable tokens of every row."""
        scores = None if self.cuda_graphs is None else self.cuda_graphs.top(rows, candidates)
        return self._step(rows).top(candidates) if scores is None else scores

    def padded_rows(self, rows: int) -> int:
        """Returns the number of cache rows that a step of `rows` rows may write to: it may be padded."""
        return max(rows, self.min_rows) if self.cuda_graphs is None else self.cuda_graphs.padded_rows(rows)

    def copy_target(self, source: int, target: int, start: int) -> None:
        """See `CachePool.copy_target`."""
        self.pool.copy_target(source, target, start)

    def move_row(self, source: int, target: int) -> None:
        """See `CachePool.move_row`."""
        self.pool.move_row(source, target)

    def copy_rows(self, source: int, target: int, count: int) -> None:
        """See `CachePool.copy_rows`."""
        self.pool.copy_rows(source, target, count)

    def _step(self, rows: int) -> Step:
        step = self._steps.get(rows)
        if step is None:
            step = self._steps[rows] = Step(self._sessions, self.pool, rows, self.min_rows, self._no_lists)
        return step


def lone_rows_differ(sessions: Sessions) -> bool:
    """Returns whether a row's numbers in a step of its own differ from those beside another row.

    On x86 without AVX-512, `MatMulNBits` multiplies a single row with another kernel, which sums in another order. This
    measures it on the decoder itself.
    """
    runtime = Runtime(sessions, 2, min_rows=1)
    shape, end = sessions.bundle.manifest.shape, sessions.bundle.manifest.tokens.end
    runtime.encode([[end], [end]], 0)
    for token in range(min(PROBED_TOKENS, shape.target_vocabulary)):
        runtime.tokens[:, 0] = token
        together, alone = (runtime.top(rows, shape.target_vocabulary).log_probabilities[0].copy() for rows in (2, 1))
        if not np.array_equal(alone, together):
            return True
    return False


def _measured_min_rows(sessions: Sessions) -> int:
    """Returns the rows that every step needs, see `Runtime`; measured once per `Sessions`."""
    if sessions.min_rows is None:
        blockwise = sessions.device.kind == "cpu" and sessions.bundle.manifest.precision in BLOCKWISE
        sessions.min_rows = 2 if blockwise and lone_rows_differ(sessions) else 1
    return sessions.min_rows


def _padded_length(length: int) -> int:
    return length + -length % SOURCE_MULTIPLE
