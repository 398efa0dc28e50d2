"""The cache pool: KV cache buffers and the per-row inputs of the decoder, bound to the graphs in place."""

from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from dragoman_server.runtime.buffers import Array, Memory, MirroredArrays, allocate, ort_element_type
from dragoman_server.runtime.graph_check import is_cache
from dragoman_server.runtime.sessions import Sessions


class CachePool:
    """KV cache buffers of `rows` rows, with each row's last token, position and source length.

    Rows in use are always 0 .. n-1. A step binds the first n rows of every buffer as input and as output. The graph
    updates the cache in place; nothing is padded again or concatenated.

    Attributes:
        self_cache: Keys and values of the target, [planes, rows, heads, positions, d_head]. The planes are the keys of
            layer 0, the values of layer 0, the keys of layer 1, ...
        cross_cache: Keys and values of the source, in the same layout.
        last: Key and value of each row's last source position, [planes, rows, 1, heads * d_head]; None unless the
            manifest's attention is "ort".
        tokens: The decoder's next input token of each row, [rows, 1].
        positions: The position of that token, [rows].
        source_lengths: Source tokens of each row, [rows].
    """

    def __init__(self, sessions: Sessions, rows: int) -> None:
        manifest = sessions.bundle.manifest
        shape, limits = manifest.shape, manifest.limits
        self._graphs, self._begin = manifest.graphs, manifest.tokens.begin
        self._device, stream = sessions.device, sessions.stream

        planes = 2 * shape.decoder_layers
        target, source = limits.max_target_tokens, limits.max_source_tokens
        dtype = sessions.cache_dtype
        self.self_cache = allocate((planes, rows, shape.heads, target, shape.d_head), dtype, stream)
        self.cross_cache = allocate((planes, rows, shape.heads, source, shape.d_head), dtype, stream)
        self.last: Memory | None = None
        if manifest.attention == "ort":
            self.last = allocate((planes, rows, 1, shape.attention_width), sessions.compute_dtype, stream)
        self.nbytes = self.self_cache.nbytes + self.cross_cache.nbytes + (self.last.nbytes if self.last else 0)

        self.tokens: NDArray[np.int64] = np.zeros((rows, 1), np.int64)
        self.positions: NDArray[np.int32] = np.zeros(rows, np.int32)
        self.source_lengths: NDArray[np.int32] = np.zeros(rows, np.int32)
        self._mirror: MirroredArrays | None = None
        if stream is not None:
            types = {name: (array.dtype.type, array.shape) for name, array in self._row_inputs().items()}
            self._mirror = MirroredArrays(stream, types)
            self.tokens, self.positions, self.source_lengths = self._mirror.arrays.values()
        self.source_lengths[:] = 1
        self._capacities = {"self_capacity": np.array(target, np.int32), "cross_capacity": np.array(source, np.int32)}
        self._encoder_outputs = [self.place(name) for name in self._graphs.encoder.outputs]

    def place(self, name: str) -> tuple[Memory, int]:
        """Returns the buffer and the plane of a cache input or encoder output such as "cross_value_3"."""
        buffer, part, layer = name.removesuffix("_out").rsplit("_", 2)
        memory = {"self": self.self_cache, "cross": self.cross_cache, "last": self.last}[buffer]
        assert memory is not None, f"there is no cache for {name}"
        return memory, 2 * int(layer) + ("key", "value").index(part)

    def bind_decoder(self, binding: ort.IOBinding, rows: int) -> None:
        """Binds the decoder's cache inputs and outputs and its per-row inputs to the first rows of their buffers."""
        graph, device = self._graphs.decoder, self._device
        for name, array in self._row_inputs().items():
            address = array.ctypes.data if self._mirror is None else self._mirror.addresses[name]
            binding.bind_input(name, device.kind, device.index, array.dtype.type, (rows, *array.shape[1:]), address)
        for name, array in self._capacities.items():
            if name in graph.inputs:
                binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        for bind, names in ((binding.bind_input, graph.inputs), (binding.bind_output, graph.outputs)):
            for name in filter(is_cache, names):
                memory, plane = self.place(name)
                self._bind_cache(bind, name, memory, rows, memory.address(plane))

    def bind_encoder(self, binding: ort.IOBinding, row: int, count: int) -> None:
        """Binds the encoder's outputs to rows `row` .. `row + count - 1`, for sources padded to the full capacity."""
        for name, (memory, plane) in zip(self._graphs.encoder.outputs, self._encoder_outputs, strict=True):
            self._bind_cache(binding.bind_output, name, memory, count, memory.address(plane, row))

    def write_encoded(self, outputs: Sequence[Array], row: int, count: int) -> None:
        """Writes the first `count` rows of the encoder's outputs to the cache, from `row` on."""
        for (memory, plane), values in zip(self._encoder_outputs, outputs, strict=True):
            memory.write(plane, row, values[:count, :, : memory.shape[3]])  # [count, heads, source, d_head]

    def start_rows(self, row: int, source_lengths: Sequence[int]) -> None:
        """Resets the per-row inputs of newly encoded rows, from `row` on, to the first decoder step."""
        rows = slice(row, row + len(source_lengths))
        self.tokens[rows, 0] = self._begin
        self.positions[rows] = 0
        self.source_lengths[rows] = source_lengths

    def upload(self, rows: int, size: int) -> None:
        """Copies the per-row inputs to where the graph reads them.

        Args:
            rows: Rows in use.
            size: Rows of the step. Those beyond `rows` are padding, which decodes its first token.
        """
        if size > rows:
            self.tokens[rows:size] = self._begin
            self.positions[rows:size] = 0
            self.source_lengths[rows:size] = 1
        if self._mirror is not None:
            self._mirror.to_device()

    def copy_target(self, source: int, target: int, start: int) -> None:
        """Copies a row's target positions to another row of the same source.

        Args:
            start: The number of leading positions that both rows have in common already.
        """
        self.self_cache.copy_row(source, target, start, int(self.positions[source]))

    def move_row(self, source: int, target: int) -> None:
        """Copies a row's caches and inputs to another row."""
        self.self_cache.copy_row(source, target, 0, int(self.positions[source]))
        self.cross_cache.copy_row(source, target, 0, int(self.source_lengths[source]))
        if self.last is not None:
            self.last.copy_row(source, target, 0, 1)
        self.tokens[target] = self.tokens[source]
        self.positions[target] = self.positions[source]
        self.source_lengths[target] = self.source_lengths[source]

    def copy_rows(self, source: int, target: int, count: int) -> None:
        """Copies the caches and inputs of `count` rows, from `source` on, to as many others, from `target` on."""
        sources, targets = slice(source, source + count), slice(target, target + count)
        self.self_cache.copy_rows(source, target, count, int(self.positions[sources].max()))
        self.cross_cache.copy_rows(source, target, count, int(self.source_lengths[sources].max()))
        if self.last is not None:
            self.last.copy_rows(source, target, count, 1)
        for inputs in (self.tokens, self.positions, self.source_lengths):
            inputs[targets] = inputs[sources]

    def _row_inputs(self) -> dict[str, Array]:
        return {"token_ids": self.tokens, "positions": self.positions, "source_lengths": self.source_lengths}

    def _bind_cache(self, bind: Callable[..., None], name: str, memory: Memory, rows: int, address: int) -> None:
        shape = (rows, *memory.shape[2:])
        bind(name, self._device.kind, self._device.index, ort_element_type(memory.dtype), shape, address)
