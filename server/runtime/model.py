"""A model on a device: encodes sources into cache rows, and steps all rows that are in use."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from server.bundle.load import Bundle, BundleError
from server.bundle.manifest import Graph
from server.runtime.device import Device, open_session
from server.runtime.memory import Array, Memory, allocate

_DTYPES: dict[str, np.dtype[Any]] = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(float16)": np.dtype(np.float16),
}


class Sessions:
    """The encoder and decoder graphs of a bundle, loaded.

    ONNX Runtime lets several threads run one session at once, so engines whose operators use one thread share these and
    hold the weights once.
    """

    def __init__(self, bundle: Bundle, device: Device, threads: int) -> None:
        self.bundle = bundle
        self.device = device
        self.encoder = open_session(bundle.encoder, device, threads)
        self.decoder = open_session(bundle.decoder, device, threads)
        graphs = bundle.manifest.graphs
        _check_names(bundle, graphs.encoder, self.encoder)
        _check_names(bundle, graphs.decoder, self.decoder)


def _check_names(bundle: Bundle, graph: Graph, session: ort.InferenceSession) -> None:
    for kind, declared, nodes in (
        ("input", graph.inputs, session.get_inputs()),
        ("output", graph.outputs, session.get_outputs()),
    ):
        actual = [node.name for node in nodes]
        for name in [*declared, *actual]:
            if name not in actual:
                raise BundleError(f"{bundle.path / graph.file} has no {kind} {name}, which the manifest lists")
            if name not in declared:
                raise BundleError(f"{bundle.path / graph.file} has an {kind} {name}, which the manifest does not list")


class Runtime:
    """Sessions with a cache pool of `slots` rows.

    Rows in use are always 0 .. n-1. A step binds the first n rows of every cache buffer as input and as output, so the
    graph updates the cache in place, and nothing is ever padded again or concatenated.

    Not thread-safe: one engine thread owns it.
    """

    def __init__(self, sessions: Sessions, slots: int) -> None:
        manifest = sessions.bundle.manifest
        shape, limits = manifest.shape, manifest.limits
        self.slots = slots
        self.device = sessions.device
        self.manifest = manifest
        self.source_capacity = limits.max_source_tokens
        self.target_capacity = limits.max_target_tokens
        self._encoder, self._decoder = sessions.encoder, sessions.decoder
        # On a GPU the encoder writes into the cache itself, for which sources are padded to the capacity; on a CPU,
        # where padding costs time, its outputs are copied.
        self._encodes_in_place = sessions.device.kind == "cuda"

        dtype = _DTYPES[next(node.type for node in self._decoder.get_inputs() if node.name == "self_key_0")]
        planes, heads, head = 2 * shape.decoder_layers, shape.heads, shape.d_head
        # [planes, slots, heads, positions, d_head]; planes are keys of layer 0, values of layer 0, keys of layer 1, ...
        self.self_cache = allocate((planes, slots, heads, self.target_capacity, head), dtype, self.device)
        self.cross_cache = allocate((planes, slots, heads, self.source_capacity, head), dtype, self.device)
        self.last: Memory | None = None
        if manifest.attention == "ort":
            # Key and value of each row's last source position, [planes, slots, 1, d_model].
            self.last = allocate((planes, slots, 1, shape.d_model), dtype, self.device)

        self._encoded = [self._place(name) for name in manifest.graphs.encoder.outputs]

        self.tokens: NDArray[np.int64] = np.zeros((slots, 1), np.int64)
        self.positions: NDArray[np.int32] = np.zeros(slots, np.int32)
        self.source_lengths: NDArray[np.int32] = np.ones(slots, np.int32)
        self._capacities = {
            "self_capacity": np.array(self.target_capacity, np.int32),
            "cross_capacity": np.array(self.source_capacity, np.int32),
        }
        self._inputs = _StepInputs(self)
        self._bindings: dict[tuple[int, int], _Binding] = {}

    @property
    def cache_bytes(self) -> int:
        return self.self_cache.nbytes + self.cross_cache.nbytes + (self.last.nbytes if self.last else 0)

    def warm_up(self) -> None:
        """Encodes the longest source and decodes the last position.

        So the first request need not wait while memory is allocated and kernels are chosen, and graphs that are not
        what the manifest says fail here, not under somebody's request.
        """
        self.encode([[self.manifest.tokens.end] * self.source_capacity], 0)
        self.positions[0] = self.target_capacity - 1
        self.step(1, 1)

    def encode(self, sources: Sequence[Sequence[int]], row: int) -> int:
        """Encodes sources into rows `row`, `row` + 1, ... and makes them ready for their first step.

        Args:
            sources: source ids, the end token included, 1 to source_capacity each.

        Returns:
            padding tokens among those encoded.
        """
        count = len(sources)
        lengths = [len(source) for source in sources]
        longest = self.source_capacity if self._encodes_in_place else max(lengths)
        ids = np.full((count, longest), self.manifest.tokens.pad, np.int64)
        for i, source in enumerate(sources):
            ids[i, : lengths[i]] = source
        feed: dict[str, Array] = {"source_ids": ids, "source_lengths": np.array(lengths, np.int32)}
        if self._encodes_in_place:
            self._encode_in_place(feed, row, count)
        else:
            outputs = self._encoder.run(self.manifest.graphs.encoder.outputs, feed)
            for (memory, plane), values in zip(self._encoded, outputs, strict=True):
                memory.write(plane, row, values)
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
                name, self.device.kind, self.device.index, memory.dtype, shape, memory.address(plane, row)
            )
        self._encoder.run_with_iobinding(binding)

    def step(self, rows: int, candidates: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Decodes one token further in rows 0 .. rows-1, from what stands in `tokens` and `positions`.

        Args:
            rows: how many rows are in use, 1 to `slots`.
            candidates: how many best continuations to return for each.

        Returns:
            ids and log-probabilities [rows, candidates], best first: views that the next step overwrites.
        """
        binding = self._bindings.get((rows, candidates))
        if binding is None:
            binding = self._bindings[rows, candidates] = _Binding(self, rows, candidates)
        self._inputs.upload(rows)
        self._decoder.run_with_iobinding(binding.binding)
        return binding.ids, binding.log_probabilities

    def move_row(self, source: int, target: int) -> None:
        """Copies all that belongs to a row."""
        self.self_cache.move_row(source, target, int(self.positions[source]))
        self.cross_cache.move_row(source, target, int(self.source_lengths[source]))
        if self.last is not None:
            self.last.move_row(source, target, None)
        self.tokens[target] = self.tokens[source]
        self.positions[target] = self.positions[source]
        self.source_lengths[target] = self.source_lengths[source]

    def _place(self, name: str) -> tuple[Memory, int]:
        """The buffer and the plane of a cache input or encoder output such as "cross_value_3"."""
        buffer, part, layer = name.removesuffix("_out").rsplit("_", 2)
        memory = {"self": self.self_cache, "cross": self.cross_cache, "last": self.last}[buffer]
        assert memory is not None, f"there is no cache for {name}"
        return memory, 2 * int(layer) + ("key", "value").index(part)


class _StepInputs:
    """The per-row inputs of a step, where the graph reads them: the arrays themselves, or copies on the GPU."""

    def __init__(self, runtime: Runtime) -> None:
        self.host: dict[str, Array] = {
            "token_ids": runtime.tokens,
            "positions": runtime.positions,
            "source_lengths": runtime.source_lengths,
        }
        self.on_device: dict[str, Memory] = {}
        if runtime.device.kind != "cpu":
            for name, array in self.host.items():
                self.on_device[name] = allocate((1, *array.shape), array.dtype, runtime.device)

    def address(self, name: str) -> int:
        return self.on_device[name].address(0) if self.on_device else self.host[name].ctypes.data

    def upload(self, rows: int) -> None:
        for name, memory in self.on_device.items():
            memory.write(0, 0, self.host[name][:rows])


class _Binding:
    """What a step of a given number of rows reads and writes: addresses are fixed, so it is bound once."""

    def __init__(self, runtime: Runtime, rows: int, candidates: int) -> None:
        device, graph = runtime.device, runtime.manifest.graphs.decoder
        self.binding: ort.IOBinding = runtime._decoder.io_binding()
        self.log_probabilities: NDArray[np.float32] = np.empty((rows, candidates), np.float32)
        self.ids: NDArray[np.int64] = np.empty((rows, candidates), np.int64)
        self._on_host: dict[str, Array] = {"top_k": np.array([candidates], np.int64), **runtime._capacities}
        outputs: dict[str, Array] = {"log_probabilities": self.log_probabilities, "ids": self.ids}
        for name in graph.inputs:
            if name in runtime._inputs.host:
                array = runtime._inputs.host[name]
                address = runtime._inputs.address(name)
                self.binding.bind_input(
                    name, device.kind, device.index, array.dtype.type, (rows, *array.shape[1:]), address
                )
            elif name in self._on_host:
                array = self._on_host[name]
                self.binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            else:
                self._bind_cache(runtime, self.binding.bind_input, name, rows)
        for name in graph.outputs:
            if name in outputs:
                array = outputs[name]
                self.binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            else:
                self._bind_cache(runtime, self.binding.bind_output, name, rows)

    @staticmethod
    def _bind_cache(runtime: Runtime, bind: Any, name: str, rows: int) -> None:
        memory, plane = runtime._place(name)
        shape = (rows, *memory.shape[2:])
        bind(name, runtime.device.kind, runtime.device.index, memory.dtype.type, shape, memory.address(plane))
