"""Decoder steps on a GPU whose inputs and outputs keep their addresses, so that CUDA graphs can capture them.

A step of a small model is some hundred kernels of a few microseconds each, which take longer to launch than to run. A
CUDA graph launches them all at once. It replays exactly what was captured: shapes, addresses, and host values such as
k. Therefore

- rows are padded to one of a few sizes. Padding rows are not in use; they decode their first token, and their output is
  ignored;
- k and the number of edits are rounded up;
- everything else is on the device: one copy before a step updates the inputs, one copy after it fetches the outputs.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import onnxruntime as ort
import structlog

from dragoman_server.bundle.manifest import Manifest
from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import MirroredArrays, Stream
from dragoman_server.runtime.cache_pool import CachePool
from dragoman_server.runtime.device import first_line
from dragoman_server.runtime.head_inputs import HeadRows
from dragoman_server.runtime.sessions import Sessions
from dragoman_server.runtime.step_results import HeadOutputs, MixedResult, TopKResult

log = structlog.get_logger()

MAX_CANDIDATES = MAX_EDITS = 64  # per row; more are rare, and would need much memory for each step size
MAX_STEPS = 256  # step sizes kept per runtime
SHORTLIST_PADDING = 8  # tokens of the unused shortlist: matrix products of one column are no faster
NO_CAPTURE = "-1"  # the graph id for which ONNX Runtime neither captures nor replays
_ONE = np.array([1], np.int64)


def step_sizes(max_rows: int) -> list[int]:
    """Returns the row counts that steps are padded to: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and max_rows.

    Less than a third of a step's rows are padding.
    """
    powers = [1 << power for power in range(max_rows.bit_length())]
    return sorted({size for power in powers for size in (power, power * 3 // 2) if size < max_rows} | {max_rows})


def run_options(graph_id: str, *, wait: bool = True) -> ort.RunOptions:
    """Returns options for a run on a GPU.

    Args:
        graph_id: A number that identifies a CUDA graph: the first run captures it, later runs replay it.
        wait: Whether the run waits for the device.
    """
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", graph_id)
    if not wait:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


class CudaGraphStep:
    """A step of one size, with inputs and outputs bound to fixed device memory.

    Args:
        size: Rows, candidates (k) and edits of the step, each at least 1.
        unused: Inputs and outputs of the parts of the graph that these steps do not use.
        graph_id: Identifier of the CUDA graph to capture; None to capture none.

    Attributes:
        rows: Rows of the step, padding included.
    """

    def __init__(
        self,
        sessions: Sessions,
        pool: CachePool,
        stream: Stream,
        size: tuple[int, int, int],
        unused: MirroredArrays,
        graph_id: str | None,
    ) -> None:
        rows, k, edits = size
        self.rows = rows
        self._decoder: ort.InferenceSession = sessions.decoder
        self._pool, self._stream = pool, stream
        self._inputs = MirroredArrays(
            stream,
            {
                "rows": (np.int64, (rows,)),
                "edit_ids": (np.int64, (rows, edits)),
                "scales": (np.float32, (rows, 1)),
                "edit_penalties": (np.float32, (rows, edits)),
                "edit_offsets": (np.float32, (rows, edits)),
            },
        )
        self._outputs = MirroredArrays(
            stream,
            {
                "ids": (np.int64, (rows, k)),
                "log_probabilities": (np.float32, (rows, k)),
                "edited": (np.float32, (rows, edits)),
            },
        )
        self._k = np.array([k], np.int64)  # ONNX Runtime reads it on the host, during capture
        self._inputs.arrays["rows"][:] = np.arange(rows)
        self._inputs_are_plain = False  # whether the inputs on the device request the top k of every row
        self._uncaptured = run_options(NO_CAPTURE, wait=False)
        self._captured = None if graph_id is None else run_options(graph_id, wait=False)
        self._has_captured = False
        self._binding: ort.IOBinding = self._decoder.io_binding()
        self._bind(sessions.bundle.manifest, unused)

    def _bind(self, manifest: Manifest, unused: MirroredArrays) -> None:
        graph, binding, stream = manifest.graphs.decoder, self._binding, self._stream
        for block in (self._inputs, self._outputs, unused):
            for name, array in block.arrays.items():
                bind = binding.bind_output if name in graph.outputs else binding.bind_input
                bind(name, stream.kind, stream.index, array.dtype.type, array.shape, block.addresses[name])
        for name, array in (("k", self._k), ("short_k", _ONE)):
            if name in graph.inputs:
                binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._pool.bind_decoder(binding, self.rows)

    def top(self, rows: int, candidates: int, capture: bool) -> TopKResult:
        """Returns the most probable tokens of the first `rows` rows."""
        if not self._inputs_are_plain:
            arrays = self._inputs.arrays
            arrays["scales"][:] = arrays["edit_penalties"][:] = 1
            arrays["edit_ids"][:] = arrays["edit_offsets"][:] = 0
            self._inputs.to_device()
            self._inputs_are_plain = True
        self._run(rows, capture)
        outputs = self._outputs.arrays
        return TopKResult(outputs["ids"][:rows, :candidates], outputs["log_probabilities"][:rows, :candidates])

    def mixed(self, step_requests: Sequence[StepRequest], capture: bool) -> MixedResult:
        """Returns the scores that each row requests, with its own edits and temperature."""
        head = HeadRows()
        for row, step_request in enumerate(step_requests):
            head.add(row, step_request)
        inputs = head.inputs(0, self.rows)
        for name in ("scales", "edit_ids", "edit_penalties", "edit_offsets"):
            array, values = self._inputs.arrays[name], inputs[name]
            if values.shape[1]:
                array[:] = values[:, :1]  # padding repeats the first edit, which changes nothing
                array[:, : values.shape[1]] = values
            else:
                array[:] = 1 if name == "edit_penalties" else 0
        self._inputs.to_device()
        self._inputs_are_plain = False
        self._run(len(step_requests), capture)
        arrays = self._outputs.arrays
        outputs = HeadOutputs(arrays["ids"], arrays["log_probabilities"], arrays["edited"])
        edits = {
            row: len(step_request.edits.ids) for row, step_request in enumerate(step_requests) if step_request.edits
        }
        heads = [(outputs, row) if step_request.candidates else None for row, step_request in enumerate(step_requests)]
        return MixedResult(heads, {}, edits, {})

    def _run(self, rows: int, capture: bool) -> None:
        self.launch(rows, capture)
        self._outputs.to_host()
        self._stream.synchronize()

    def launch(self, rows: int, capture: bool) -> None:
        """Launches the step on the device without waiting for it."""
        self._pool.upload(rows, self.rows)
        options = self._captured if capture else None
        try:
            self._decoder.run_with_iobinding(self._binding, options or self._uncaptured)
        except Exception as error:  # ONNX Runtime's exceptions have no common base
            if options is None or self._has_captured:
                raise
            log.warning("a step can't be recorded as a CUDA graph", rows=self.rows, reason=first_line(error))
            self._captured = options = None
            self._decoder.run_with_iobinding(self._binding, self._uncaptured)
        self._has_captured |= options is not None


class CudaGraphSteps:
    """The steps of a runtime on a GPU, one per size, created on first use.

    A CUDA graph can only be replayed by the thread that captured it.
    """

    def __init__(self, sessions: Sessions, pool: CachePool, stream: Stream, max_rows: int) -> None:
        self.stream = stream
        self._sessions, self._pool = sessions, pool
        self._sizes = step_sizes(max_rows)
        self._vocabulary = sessions.bundle.manifest.shape.target_vocabulary
        self._steps: dict[tuple[int, int, int], CudaGraphStep] = {}
        self._unused = _unused_arrays(stream, sessions)
        self._max_captured = sessions.max_cuda_graphs
        self._capture = True

    @contextmanager
    def capture_disabled(self) -> Iterator[None]:
        """Runs steps without capturing or replaying CUDA graphs."""
        self._capture = False
        try:
            yield
        finally:
            self._capture = True

    def padded_rows(self, rows: int) -> int:
        """Returns the number of rows that a step of `rows` rows is padded to."""
        return self._sizes[bisect_left(self._sizes, rows)]

    def top(self, rows: int, candidates: int) -> TopKResult | None:
        """Runs `Runtime.top`; returns None if there is no step of this size."""
        step = self._step(rows, candidates, 1)
        return None if step is None else step.top(rows, min(candidates, self._vocabulary), self._capture)

    def launcher(self, rows: int, candidates: int) -> Callable[[], None]:
        """Runs a step and returns a function that launches it again without waiting, to time the device alone."""
        step = self._step(rows, candidates, 1)
        assert step is not None
        step.top(rows, candidates, self._capture)
        return partial(step.launch, rows, self._capture)

    def mixed(self, step_requests: Sequence[StepRequest]) -> MixedResult | None:
        """Runs `Runtime.step`; returns None if there is no step of this size or kind."""
        if not all(map(_uses_full_head_once, step_requests)):
            return None
        candidates = max((step_request.candidates for step_request in step_requests), default=1)
        edits = max((len(step_request.edits.ids) for step_request in step_requests if step_request.edits), default=1)
        step = self._step(len(step_requests), max(candidates, 1), max(edits, 1))
        return None if step is None else step.mixed(step_requests, self._capture)

    def _step(self, rows: int, candidates: int, edits: int) -> CudaGraphStep | None:
        if candidates > MAX_CANDIDATES or edits > MAX_EDITS:
            return None
        size = self.padded_rows(rows), min(_power_of_two(candidates), self._vocabulary), _power_of_two(edits)
        step = self._steps.get(size)
        if step is None and len(self._steps) < MAX_STEPS:
            graph_id = str(next(self._sessions.graph_ids)) if len(self._steps) < self._max_captured else None
            step = CudaGraphStep(self._sessions, self._pool, self.stream, size, self._unused, graph_id)
            self._steps[size] = step
        return step


def _unused_arrays(stream: Stream, sessions: Sessions) -> MirroredArrays:
    """Returns a shortlist for one row and the attention of one row: some CUDA kernels fail on empty inputs."""
    manifest, kept = sessions.bundle.manifest, sessions.listed_dtype
    indices: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {}
    weights: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {}
    if kept is not None:
        indices = {"short_new": (np.int64, (1,)), "short_places": (np.int64, (1, 1))}
        shape = SHORTLIST_PADDING, manifest.shape.d_model
        weights = dict.fromkeys(("short_weights", "short_weights_out"), (kept.type, shape))
    arrays = MirroredArrays(
        stream,
        {
            **indices,
            "short_list": (np.int64, (SHORTLIST_PADDING,)),
            "short_columns": (np.int64, (1, SHORTLIST_PADDING)),
            "short_rows": (np.int64, (1,)),
            "short_edit_ids": (np.int64, (1, 1)),
            "attention_rows": (np.int64, (1,)),
            "short_ids": (np.int64, (1, 1)),
            "short_mask": (np.float32, (1, SHORTLIST_PADDING)),
            "short_scales": (np.float32, (1, 1)),
            "short_edit_penalties": (np.float32, (1, 1)),
            "short_edit_offsets": (np.float32, (1, 1)),
            "short_log_probabilities": (np.float32, (1, 1)),
            "short_edited": (np.float32, (1, 1)),
            "attention": (np.float32, (1, manifest.limits.max_source_tokens)),
            **weights,
        },
    )
    arrays.arrays["short_list"][:] = manifest.tokens.end
    arrays.arrays["short_scales"][:] = arrays.arrays["short_edit_penalties"][:] = 1
    arrays.to_device()
    stream.synchronize()
    return arrays


def _uses_full_head_once(step_request: StepRequest) -> bool:
    """Returns whether a row chooses from the whole vocabulary at one temperature, without attention."""
    return (
        step_request.vocabulary is None
        and not step_request.attention
        and not (step_request.untempered and step_request.temperature != 1)
    )


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
