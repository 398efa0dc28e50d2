"""Steps of a GPU whose inputs and outputs stay where they are, so that they can be recorded once and replayed.

A step of a small model is some hundred kernels of a few microseconds each, which takes longer to ask for than to do. A
recording (a CUDA graph) is asked for in one go. It repeats what was recorded to the letter: shapes, addresses, and
whatever the host had read, such as k. Hence

- rows are filled up to a size of which there are few. The rows that fill up are not in use; they decode their first
  token, from which nothing follows;
- k, and the number of edits, are rounded up;
- everything else is on the device, and one copy before a step renews it, one copy after it brings back what it found.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort
import structlog

from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import Block, Stream
from dragoman_server.runtime.device_errors import first_line
from dragoman_server.runtime.head_inputs import HeadRows
from dragoman_server.runtime.step_results import HeadOutputs, MixedResult, TopKResult

if TYPE_CHECKING:
    from dragoman_server.runtime.model import Runtime

log = structlog.get_logger()

MOST_CANDIDATES = MOST_EDITS = 64  # of a step; more are rare, and would need much memory for each size of step
MOST_STEPS = 256  # that are kept, of different size
UNUSED = 8  # rows of a short list that nobody uses: matrix products of one column are no faster
NOT_RECORDED = "-1"  # a run that ONNX Runtime neither records nor replays


def sizes(max_rows: int) -> list[int]:
    """Rows that steps are filled up to: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... and all, so less than a third are filling."""
    powers = [1 << power for power in range(max_rows.bit_length())]
    return sorted({size for power in powers for size in (power, power * 3 // 2) if size < max_rows} | {max_rows})


def run_options(recording: str, *, wait: bool = True) -> ort.RunOptions:
    """How a session on a GPU is to run.

    Args:
        recording: the name of a recording, a number: made where there is none, and replayed from then on.
        wait: until all is done.
    """
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", recording)
    if not wait:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return options


class FixedStep:
    """A step of one size, bound for good.

    Args:
        rows: see `sizes`.
        k: candidates of each row.
        edits: tokens of each row that may be edited, at least 1.
        unused: what the parts of the graph that nobody needs are given.
        recording: its name; None for none.

    Attributes:
        rows: see above.
    """

    def __init__(
        self, runtime: "Runtime", stream: Stream, rows: int, k: int, edits: int, unused: Block, recording: str | None
    ) -> None:
        self.rows, self._stream, self._runtime = rows, stream, runtime
        self._binding: ort.IOBinding = runtime.decoder.io_binding()
        self._choices = Block(
            stream,
            {
                "rows": (np.int64, (rows,)),
                "edit_ids": (np.int64, (rows, edits)),
                "scales": (np.float32, (rows, 1)),
                "edit_penalties": (np.float32, (rows, edits)),
                "edit_offsets": (np.float32, (rows, edits)),
            },
        )
        self._found = Block(
            stream,
            {
                "ids": (np.int64, (rows, k)),
                "log_probabilities": (np.float32, (rows, k)),
                "edited": (np.float32, (rows, edits)),
            },
        )
        self._k = np.array([k], np.int64)  # ONNX Runtime reads it on the host, when it records
        self._choices.arrays["rows"][:] = np.arange(rows)
        self._all_plain = False
        self._unrecorded = run_options(NOT_RECORDED, wait=False)
        self._recorded = None if recording is None else run_options(recording, wait=False)
        self._is_recorded = False
        self._bind_all(unused)

    def _bind_all(self, unused: Block) -> None:
        graph, binding = self._runtime.manifest.graphs.decoder, self._binding
        for name, (array, address) in self._runtime.row_inputs().items():
            self._bind(binding.bind_input, name, array.dtype, (self.rows, *array.shape[1:]), address)
        for block in (self._choices, self._found, unused):
            for name, array in block.arrays.items():
                bind = binding.bind_output if name in graph.outputs else binding.bind_input
                self._bind(bind, name, array.dtype, array.shape, block.addresses[name])
        for name, array in (self._runtime.capacities | {"k": self._k, "short_k": _ONE}).items():
            if name in graph.inputs:
                binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        self._runtime.bind_caches(binding, self.rows)

    def plain(self, rows: int, candidates: int, record: bool) -> TopKResult:
        """The most probable tokens of the first `rows` rows."""
        if not self._all_plain:
            arrays = self._choices.arrays
            arrays["scales"][:] = arrays["edit_penalties"][:] = 1
            arrays["edit_ids"][:] = arrays["edit_offsets"][:] = 0
            self._choices.to_device()
            self._all_plain = True
        self._run(rows, record)
        found = self._found.arrays
        return TopKResult(found["ids"][:rows, :candidates], found["log_probabilities"][:rows, :candidates])

    def mixed(self, step_requests: Sequence[StepRequest], record: bool) -> MixedResult:
        """What each row asked for, which may be edits and temperatures."""
        head = HeadRows()
        for row, step_request in enumerate(step_requests):
            head.add(row, step_request)
        inputs = head.inputs(0, self.rows)
        for name in ("scales", "edit_ids", "edit_penalties", "edit_offsets"):
            array, values = self._choices.arrays[name], inputs[name]
            if values.shape[1]:
                array[:] = values[:, :1]  # an edit that is made twice is the same
                array[:, : values.shape[1]] = values
            else:
                array[:] = 1 if name == "edit_penalties" else 0
        self._choices.to_device()
        self._all_plain = False
        self._run(len(step_requests), record)
        found = self._found.arrays
        scores = HeadOutputs(found["ids"], found["log_probabilities"], found["edited"])
        edits = {
            row: len(step_request.edits.ids) for row, step_request in enumerate(step_requests) if step_request.edits
        }
        heads = [(scores, row) if step_request.candidates else None for row, step_request in enumerate(step_requests)]
        return MixedResult(heads, {}, edits, {})

    def _run(self, rows: int, record: bool) -> None:
        self.launch(rows, record)
        self._found.to_host()
        self._stream.synchronize()

    def launch(self, rows: int, record: bool) -> None:
        """Tells the device to step, and does not wait for it."""
        self._runtime.upload(rows, self.rows)
        decoder, options = self._runtime.decoder, self._recorded if record else None
        try:
            decoder.run_with_iobinding(self._binding, options or self._unrecorded)
        except Exception as error:  # whatever ONNX Runtime raises
            if options is None or self._is_recorded:
                raise
            log.warning("a step can't be recorded as a CUDA graph", rows=self.rows, reason=first_line(error))
            self._recorded = options = None
            decoder.run_with_iobinding(self._binding, self._unrecorded)
        self._is_recorded |= options is not None

    def _bind(self, bind: Any, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], address: int) -> None:
        bind(name, self._stream.kind, self._stream.index, dtype.type, shape, address)


class FixedSteps:
    """The steps of a runtime on a GPU, one for each size that was asked for.

    Args:
        graphs: the most that are recorded as CUDA graphs. What is recorded can be replayed in the same thread only.
    """

    def __init__(self, runtime: "Runtime", stream: Stream, graphs: int) -> None:
        self._runtime, self._stream = runtime, stream
        self._sizes = sizes(runtime.max_rows)
        self._vocabulary = runtime.manifest.shape.target_vocabulary
        self._steps: dict[tuple[int, int, int], FixedStep] = {}
        self._unused = _unused(stream, runtime)
        self._graphs = graphs
        self._recording = True

    @contextmanager
    def not_recording(self) -> Iterator[None]:
        """Runs steps as if there were no recordings."""
        self._recording = False
        try:
            yield
        finally:
            self._recording = True

    def size(self, rows: int) -> int:
        """Rows that a step of `rows` rows is filled up to."""
        return self._sizes[bisect_left(self._sizes, rows)]

    def top(self, rows: int, candidates: int) -> TopKResult | None:
        """See Runtime.top; None where there is no such step."""
        step = self._step(rows, candidates, 1)
        return None if step is None else step.plain(rows, min(candidates, self._vocabulary), self._recording)

    def launcher(self, rows: int, candidates: int) -> Callable[[], None]:
        """What makes a step once more without waiting for it, to measure what the device alone takes."""
        step = self._step(rows, candidates, 1)
        assert step is not None
        step.plain(rows, candidates, self._recording)
        return partial(step.launch, rows, self._recording)

    def mixed(self, step_requests: Sequence[StepRequest]) -> MixedResult | None:
        """See Runtime.step; None where there is no such step."""
        if not all(map(_chooses_from_all, step_requests)):
            return None
        candidates = max((step_request.candidates for step_request in step_requests), default=1)
        edits = max((len(step_request.edits.ids) for step_request in step_requests if step_request.edits), default=1)
        step = self._step(len(step_requests), max(candidates, 1), max(edits, 1))
        return None if step is None else step.mixed(step_requests, self._recording)

    def _step(self, rows: int, candidates: int, edits: int) -> FixedStep | None:
        if candidates > MOST_CANDIDATES or edits > MOST_EDITS:
            return None
        size = self.size(rows)
        key = size, min(_rounded(candidates), self._vocabulary), _rounded(edits)
        step = self._steps.get(key)
        if step is None and len(self._steps) < MOST_STEPS:
            recording = self._runtime.next_recording() if len(self._steps) < self._graphs else None
            step = FixedStep(self._runtime, self._stream, *key, self._unused, recording)
            self._steps[key] = step
        return step


_ONE = np.array([1], np.int64)


def _unused(stream: Stream, runtime: "Runtime") -> Block:
    """A short list that one row chooses from, and the attention of one row: CUDA's kernels want something to do."""
    block = Block(
        stream,
        {
            "short_list": (np.int64, (UNUSED,)),
            "short_columns": (np.int64, (1, UNUSED)),
            "short_rows": (np.int64, (1,)),
            "short_edit_ids": (np.int64, (1, 1)),
            "attention_rows": (np.int64, (1,)),
            "short_ids": (np.int64, (1, 1)),
            "short_mask": (np.float32, (1, UNUSED)),
            "short_scales": (np.float32, (1, 1)),
            "short_edit_penalties": (np.float32, (1, 1)),
            "short_edit_offsets": (np.float32, (1, 1)),
            "short_log_probabilities": (np.float32, (1, 1)),
            "short_edited": (np.float32, (1, 1)),
            "attention": (np.float32, (1, runtime.source_capacity)),
        },
    )
    block.arrays["short_list"][:] = runtime.manifest.tokens.end
    block.arrays["short_scales"][:] = block.arrays["short_edit_penalties"][:] = 1
    block.to_device()
    stream.synchronize()
    return block


def _chooses_from_all(step_request: StepRequest) -> bool:
    """Whether a step_request is for tokens of the whole vocabulary, with one temperature."""
    return (
        step_request.vocabulary is None
        and not step_request.attention
        and not (step_request.untempered and step_request.temperature != 1)
    )


def _rounded(number: int) -> int:
    """Up to a power of two."""
    return 1 << (number - 1).bit_length()
