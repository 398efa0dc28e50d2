"""A model on a device: encodes sources into cache rows, and steps all rows that are in use."""

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import onnxruntime as ort
import structlog
from numpy.typing import NDArray

from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Precision
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.runtime.buffers import Array, Block, Memory, Stream, allocate
from dragoman_server.runtime.cuda import CudaStream
from dragoman_server.runtime.cuda_graphs import MOST_STEPS, NOT_RECORDED, FixedSteps, run_options
from dragoman_server.runtime.device import Device, DeviceError, open_session
from dragoman_server.runtime.graph_check import check_caches, check_names
from dragoman_server.runtime.head_inputs import ShortLists
from dragoman_server.runtime.step import Step, all_plain, is_cache
from dragoman_server.runtime.step_results import TopKResult

log = structlog.get_logger()

WARM_UP_TOKENS = 8  # of each source, where many are encoded together,
WARM_UP_ENCODED = 1024  # and of all of them, padding included: no more than requests will take

SUMMED = 4  # positions of a source, at a time
PROBED_TOKENS = 8
BLOCKWISE: tuple[Precision, ...] = ("int8-weights", "int4")  # multiplied by MatMulNBits

_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
    "tensor(bfloat16)": np.dtype(np.uint16),  # NumPy has none; nothing but the graphs looks at these
    "tensor(int8)": np.dtype(np.int8),
}
_BFLOAT16 = 16  # in the enumeration of onnx.TensorProto


def element(dtype: np.dtype[Any]) -> type[np.generic] | int:
    """What ONNX Runtime calls the type of a cache's numbers."""
    return _BFLOAT16 if dtype == np.uint16 else dtype.type


class Sessions:
    """The encoder and decoder graphs of a bundle, loaded.

    ONNX Runtime lets several threads run one session at once, so on a CPU engines whose operators use one thread share
    these and hold the weights once. On a GPU each engine has its own, since they work on one stream: what one engine
    puts there while another records a CUDA graph would become part of it.

    Args:
        graphs: the most steps that are recorded as CUDA graphs, where that can be done.

    Attributes:
        stream: what is done on the GPU, one after the other; None on a CPU.
        graphs: see above.
        recordings: numbers for them.
        cache_type: of the numbers in the caches.
        type: of the numbers that the graphs compute with.

    Raises:
        DeviceError: the device can't run them.
    """

    def __init__(self, bundle: Bundle, device: Device, threads: int, *, graphs: int = MOST_STEPS) -> None:
        self.bundle = bundle
        self.device = device
        self.threads = threads
        self.recordings = count(1)
        stream = None if device.kind == "cpu" else _open_stream(device)
        self.stream: Stream | None = stream
        self.encoder = open_session(bundle.encoder, device, threads, stream)
        self.graphs = 0 if stream is None else graphs
        self.decoder = self._open_decoder(stream)
        check_names(bundle, bundle.manifest.graphs.encoder, self.encoder)
        check_names(bundle, bundle.manifest.graphs.decoder, self.decoder)
        check_caches(bundle, self.encoder, self.decoder)
        self.cache_type = _DTYPES[next(node.type for node in self.decoder.get_inputs() if node.name == "self_key_0")]
        self.type = np.dtype(np.float32) if self.cache_type == np.int8 else self.cache_type

    @cached_property
    def least_rows(self) -> int:
        """Rows that every product of a step must have for each row's numbers not to depend on how many there are.

        1 or 2: on x86 without AVX-512, `MatMulNBits` multiplies a lone row by another kernel, which sums in another
        order. Whether this CPU does so is measured on the decoder itself, once.
        """
        if self.device.kind != "cpu" or self.bundle.manifest.precision not in BLOCKWISE:
            return 1
        return 2 if lone_rows_differ(self) else 1

    def _open_decoder(self, stream: CudaStream | None) -> ort.InferenceSession:
        path = self.bundle.decoder
        if self.graphs:
            try:
                return open_session(path, self.device, self.threads, stream, records=True)
            except DeviceError as error:
                log.warning("steps are not recorded as CUDA graphs, which makes them slower", reason=str(error))
                self.graphs = 0
        return open_session(path, self.device, self.threads, stream)


def _open_stream(device: Device) -> CudaStream:
    try:
        return CudaStream(device.index)
    except (OSError, RuntimeError, MemoryError) as error:
        raise DeviceError(f"{device} can't be used: {error}") from None


class Runtime:
    """Sessions with a cache pool of `max_rows` rows.

    Rows in use are always 0 .. n-1. A step binds the first n rows of every cache buffer as input and as output, so the
    graph updates the cache in place, and nothing is ever padded again or concatenated.

    Not thread-safe: one engine thread owns it.

    Args:
        least_rows: of a step, see `Sessions`; steps of fewer are filled up with rows that are not in use.
    """

    def __init__(self, sessions: Sessions, max_rows: int, *, least_rows: int | None = None) -> None:
        manifest = sessions.bundle.manifest
        shape, limits = manifest.shape, manifest.limits
        self.max_rows = max_rows
        self.least_rows = sessions.least_rows if least_rows is None else least_rows
        max_rows = max(max_rows, self.least_rows)
        self.device = sessions.device
        self.manifest = manifest
        self.source_capacity = limits.max_source_tokens
        self.target_capacity = limits.max_target_tokens
        self._encoder, self.decoder = sessions.encoder, sessions.decoder
        # On a GPU the encoder writes into the cache itself, for which sources are padded to the capacity; on a CPU,
        # where padding costs time, its outputs are copied.
        stream = self.stream = sessions.stream
        self._encodes_in_place = stream is not None

        dtype = sessions.cache_type
        planes, heads, head = 2 * shape.decoder_layers, shape.heads, shape.d_head
        # [planes, max_rows, heads, positions, d_head]; the planes are keys of layer 0, values of layer 0,
        # keys of layer 1, ...
        self.self_cache = allocate((planes, max_rows, heads, self.target_capacity, head), dtype, stream)
        self.cross_cache = allocate((planes, max_rows, heads, self.source_capacity, head), dtype, stream)
        self.last: Memory | None = None
        if manifest.attention == "ort":
            # Key and value of each row's last source position, [planes, max_rows, 1, heads * d_head].
            self.last = allocate((planes, max_rows, 1, shape.attention_width), sessions.type, stream)

        self._encoded = [self.place(name) for name in manifest.graphs.encoder.outputs]

        self.tokens: NDArray[np.int64] = np.zeros((max_rows, 1), np.int64)
        self.positions: NDArray[np.int32] = np.zeros(max_rows, np.int32)
        self.source_lengths: NDArray[np.int32] = np.ones(max_rows, np.int32)
        self.capacities = {
            "self_capacity": np.array(self.target_capacity, np.int32),
            "cross_capacity": np.array(self.source_capacity, np.int32),
        }
        self._recordings = sessions.recordings
        self._on_device: Block | None = None
        self.fixed: FixedSteps | None = None
        self.run_options: ort.RunOptions | None = None  # of runs that are not to be recorded
        self._steps: dict[int, Step] = {}
        self._lists, self.no_lists = ShortLists(sessions.threads), ShortLists(sessions.threads)
        if stream is not None:
            arrays = {name: (array.dtype.type, array.shape) for name, array in self._row_arrays().items()}
            self._on_device = block = Block(stream, arrays)
            self.tokens, self.positions, self.source_lengths = block.arrays.values()
            self.source_lengths[:] = 1
            self.no_lists.use([(manifest.tokens.end,)])  # see Step: there must be something to choose from
            self.run_options = run_options(NOT_RECORDED) if sessions.graphs else None
            self.fixed = FixedSteps(self, stream, sessions.graphs)

    @property
    def cache_bytes(self) -> int:
        return self.self_cache.nbytes + self.cross_cache.nbytes + (self.last.nbytes if self.last else 0)

    def warm_up(self) -> None:
        """Encodes the longest source and decodes the last position; then encodes and steps 1, 4, 16, ... rows and all.

        So the first requests need not wait while memory is allocated and kernels are chosen, and graphs that are not
        what the manifest says fail here, not under somebody's request.
        """
        if self.fixed is not None:
            # Recordings belong to the thread that makes them, which shall be the engine's.
            with self.fixed.not_recording():
                self._warm_up()
        else:
            self._warm_up()

    def _warm_up(self) -> None:
        end = self.manifest.tokens.end
        self.encode([[end] * self.source_capacity], 0)
        self.positions[0] = self.target_capacity - 1
        self.top(1, 1)
        short = [end] * min(WARM_UP_TOKENS, self.source_capacity)
        at_once = max(1, WARM_UP_ENCODED // (self.source_capacity if self._encodes_in_place else len(short)))
        for rows in sorted(
            {*(4**power for power in range(self.max_rows.bit_length()) if 4**power < self.max_rows), self.max_rows}
        ):
            for first in range(0, rows, at_once):
                self.encode([short] * min(at_once, rows - first), first)
            self.top(rows, 1)

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int:
        """Encodes sources into rows `row`, `row` + 1, ... and makes them ready for their first step.

        Args:
            sources: source ids, the end token included, 1 to source_capacity each.

        Returns:
            padding tokens among those encoded.
        """
        count = len(sources)
        lengths = [len(source) for source in sources]
        longest = self.source_capacity if self._encodes_in_place else _multiple(max(lengths))
        ids = np.full((count, longest), self.manifest.tokens.pad, np.int64)
        for i, source in enumerate(sources):
            ids[i, : lengths[i]] = source
        feed: dict[str, Array] = {"source_ids": ids, "source_lengths": np.array(lengths, np.int32)}
        if self._encodes_in_place:
            self._encode_in_place(feed, row, count)
        else:
            if sum(lengths) < self.least_rows:  # a product has a row for each token
                feed = {name: np.repeat(values, self.least_rows, 0) for name, values in feed.items()}
            outputs = self._encoder.run(self.manifest.graphs.encoder.outputs, feed)
            for (memory, plane), values in zip(self._encoded, outputs, strict=True):
                memory.write(plane, row, values[:count, :, : memory.shape[3]])  # [count, heads, source, d_head]
        rows = slice(row, row + count)
        self.tokens[rows, 0] = self.manifest.tokens.begin
        self.positions[rows] = 0
        self.source_lengths[rows] = lengths
        return count * longest - sum(lengths)

    def _encode_in_place(self, feed: dict[str, Array], row: int, count: int) -> None:
        """Sources padded to the capacity give outputs with the layout of cache rows: the encoder writes them there."""
        binding = self._encoder.io_binding()
        for name, values in feed.items():
            binding.bind_cpu_input(name, values)
        for name, (memory, plane) in zip(self.manifest.graphs.encoder.outputs, self._encoded, strict=True):
            shape = (count, *memory.shape[2:])
            binding.bind_output(
                name, self.device.kind, self.device.index, element(memory.dtype), shape, memory.address(plane, row)
            )
        self._encoder.run_with_iobinding(binding)

    def step(self, step_requests: Sequence[StepRequest]) -> StepResult:
        """Decodes one token further in rows 0 .. n-1, from what stands in `tokens` and `positions`.

        Doing it again changes nothing: so it can be repeated with other step_requests.

        Args:
            step_requests: what is to be known of each row in use, 1 to `max_rows`.

        Returns:
            views that the next step overwrites.
        """
        candidates = all_plain(step_requests)
        if candidates:
            return self.top(len(step_requests), candidates)
        scores = None if self.fixed is None else self.fixed.mixed(step_requests)
        return self._step(len(step_requests)).mixed(step_requests, self._lists) if scores is None else scores

    def top(self, rows: int, candidates: int) -> TopKResult:
        """As `step`, for the most probable tokens of every row and no more."""
        scores = None if self.fixed is None else self.fixed.top(rows, candidates)
        return self._step(rows).top(candidates) if scores is None else scores

    def stepped(self, rows: int) -> int:
        """Rows of the cache that a step of `rows` rows may write to: it can be filled up with unused rows."""
        return max(rows, self.least_rows) if self.fixed is None else self.fixed.size(rows)

    def _step(self, rows: int) -> Step:
        step = self._steps.get(rows)
        if step is None:
            step = self._steps[rows] = Step(self, rows)
        return step

    def copy_target(self, source: int, target: int, start: int) -> None:
        """Copies what one row has decoded to another of the same source.

        Args:
            start: positions from the start that both have in common already.
        """
        self.self_cache.copy_row(source, target, start, int(self.positions[source]))

    def move_row(self, source: int, target: int) -> None:
        """Copies all that belongs to a row."""
        self.self_cache.copy_row(source, target, 0, int(self.positions[source]))
        self.cross_cache.copy_row(source, target, 0, int(self.source_lengths[source]))
        if self.last is not None:
            self.last.copy_row(source, target, 0, 1)
        self.tokens[target] = self.tokens[source]
        self.positions[target] = self.positions[source]
        self.source_lengths[target] = self.source_lengths[source]

    def row_inputs(self) -> dict[str, tuple[Array, int]]:
        """The per-row inputs of a step, and the address where the graph reads each."""
        block = self._on_device
        return {
            name: (array, array.ctypes.data if block is None else block.addresses[name])
            for name, array in self._row_arrays().items()
        }

    def upload(self, rows: int, size: int) -> None:
        """Brings the per-row inputs to where the graph reads them.

        Args:
            rows: in use.
            size: of the step; the rows beyond those in use get their first token once more.
        """
        if size > rows:
            self.tokens[rows:size] = self.manifest.tokens.begin
            self.positions[rows:size] = 0
            self.source_lengths[rows:size] = 1
        if self._on_device is not None:
            self._on_device.to_device()

    def next_recording(self) -> str:
        """The name of a recording that there is not yet."""
        return str(next(self._recordings))

    def bind_caches(self, binding: ort.IOBinding, rows: int) -> None:
        """Binds the cache inputs and outputs of the decoder to the first rows of their buffers."""
        graph = self.manifest.graphs.decoder
        for bind, names in ((binding.bind_input, graph.inputs), (binding.bind_output, graph.outputs)):
            for name in filter(is_cache, names):
                self._bind_cache(bind, name, rows)

    def _bind_cache(self, bind: Callable[..., None], name: str, rows: int) -> None:
        memory, plane = self.place(name)
        shape = (rows, *memory.shape[2:])
        bind(name, self.device.kind, self.device.index, element(memory.dtype), shape, memory.address(plane))

    def _row_arrays(self) -> dict[str, Array]:
        return {"token_ids": self.tokens, "positions": self.positions, "source_lengths": self.source_lengths}

    def place(self, name: str) -> tuple[Memory, int]:
        """The buffer and the plane of a cache input or encoder output such as "cross_value_3"."""
        buffer, part, layer = name.removesuffix("_out").rsplit("_", 2)
        memory = {"self": self.self_cache, "cross": self.cross_cache, "last": self.last}[buffer]
        assert memory is not None, f"there is no cache for {name}"
        return memory, 2 * int(layer) + ("key", "value").index(part)


def _multiple(length: int) -> int:
    """Up to what sources are padded on a CPU.

    The kernels of x86 without AVX2 sum over the positions of the source four at a time, and over those that are left
    one by one; so sums depended on how far another source pads this one.
    """
    return length + -length % SUMMED


def lone_rows_differ(sessions: Sessions) -> bool:
    """Whether a step gives a row other numbers when it is alone than beside another one."""
    runtime = Runtime(sessions, 2, least_rows=1)
    shape, end = sessions.bundle.manifest.shape, sessions.bundle.manifest.tokens.end
    runtime.encode([[end], [end]], 0)
    for token in range(min(PROBED_TOKENS, shape.target_vocabulary)):
        runtime.tokens[:, 0] = token
        together, alone = (runtime.top(rows, shape.target_vocabulary).log_probabilities[0].copy() for rows in (2, 1))
        if not np.array_equal(alone, together):
            return True
    return False
