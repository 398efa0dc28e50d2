"""A decode step of a given number of rows, bound to its buffers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import Array
from dragoman_server.runtime.head_inputs import HeadRows, ShortLists, is_plain
from dragoman_server.runtime.step_results import HeadOutputs, MixedResult, TopKResult

if TYPE_CHECKING:
    from dragoman_server.runtime.model import Runtime

WHOLE, SHORT = "", "short_"  # how the names of a head's inputs and outputs begin
_INT64, _FLOAT = np.dtype(np.int64), np.dtype(np.float32)


class Step:
    """What a step of `rows` rows reads and writes. (On a GPU it makes the steps that server.runtime.fixed has not.)

    The caches and the per-row inputs are bound once. What is asked of the rows changes rarely from step to step where
    all want the most probable tokens and no more; those inputs stay bound too as long as it does.

    Args:
        runtime: whose buffers these are.
        rows: in use; steps of fewer than `runtime.least_rows` are filled up.
    """

    def __init__(self, runtime: "Runtime", rows: int) -> None:
        self._runtime, self._rows, self._size = runtime, rows, max(rows, runtime.least_rows)
        self._binding: ort.IOBinding = runtime.decoder.io_binding()
        self._bound: dict[str, Array] = {}  # keeps what is bound alive
        self._plain_k: int | None = None
        graph = runtime.manifest.graphs.decoder
        choices = {name for name in graph.inputs if not is_cache(name)}
        for name, (array, address) in runtime.row_inputs().items():
            kind, index = runtime.device.kind, runtime.device.index
            self._binding.bind_input(name, kind, index, array.dtype.type, (self._size, *array.shape[1:]), address)
            choices.discard(name)
        for name, value in runtime.capacities.items():
            if name in choices:
                self._bind_input(name, value)
        runtime.bind_caches(self._binding, self._size)
        # CUDA kernels are not all prepared for no rows at all, where those of the CPU are: there a part that nobody
        # needs gets one row, whose outcome nobody looks at.
        self._least = 0 if runtime.stream is None else 1

    def top(self, candidates: int) -> TopKResult:
        """The most probable tokens of every row."""
        runtime = self._runtime
        k = min(candidates, runtime.manifest.shape.target_vocabulary)
        if self._plain_k != k:
            whole, short = HeadRows(), HeadRows()
            step_request = StepRequest(k)
            for row in range(self._rows):
                whole.add(row, step_request)
            self._bind_choices(whole, short, [], runtime.no_lists)
            self._plain_k = k
        self._run()
        return TopKResult(self._bound["ids"][: self._rows], self._bound["log_probabilities"][: self._rows])

    def mixed(self, step_requests: Sequence[StepRequest], lists: ShortLists) -> MixedResult:
        """What each row asked for.

        Args:
            lists: kept from step to step.
        """
        lists.use(
            [
                step_request.vocabulary
                for step_request in step_requests
                if step_request.candidates and step_request.vocabulary is not None
            ]
        )
        whole, short = HeadRows(), HeadRows()
        looking: list[int] = []
        for row, step_request in enumerate(step_requests):
            if step_request.candidates:
                (whole if step_request.vocabulary is None else short).add(row, step_request)
            if step_request.attention:
                looking.append(row)
        self._plain_k = None
        self._bind_choices(whole, short, looking, lists)
        self._run()
        outputs = {prefix: self._head_scores(prefix) for prefix, head in ((WHOLE, whole), (SHORT, short)) if head.rows}
        if short.rows:
            outputs[SHORT].ids = lists.ids(short.step_requests, outputs[SHORT].ids)
        heads: list[tuple[HeadOutputs, int] | None] = [None] * len(step_requests)
        for prefix, head in ((WHOLE, whole), (SHORT, short)):
            for row, place in head.places.items():
                heads[row] = (outputs[prefix], place)
        edits = {
            row: len(step_request.edits.ids) for row, step_request in enumerate(step_requests) if step_request.edits
        }
        lengths = self._runtime.source_lengths
        attention = {row: self._bound["attention"][place, : lengths[row]] for place, row in enumerate(looking)}
        return MixedResult(heads, whole.plain | short.plain, edits, attention)

    def _bind_choices(self, whole: HeadRows, short: HeadRows, looking: list[int], lists: ShortLists) -> None:
        vocabulary = self._runtime.manifest.shape.target_vocabulary
        # A product of one row may take another kernel, with other rounding, and must not depend on who else is there.
        for prefix, head, size, least in (
            (WHOLE, whole, vocabulary, self._runtime.least_rows),
            (SHORT, short, lists.width, 2),
        ):
            inputs = head.inputs(size, max(self._least, least if head.rows else 0))
            for name, array in inputs.items():
                self._bind_input(prefix + name, array)
            count, k, width = len(inputs["rows"]), int(inputs["k"][0]), inputs["edit_ids"].shape[1]
            self._bind_output(f"{prefix}log_probabilities", (count, k), _FLOAT)
            self._bind_output(f"{prefix}ids", (count, k), _INT64)
            self._bind_output(f"{prefix}edited", (count, width), _FLOAT)
        for name, array in lists.inputs(short.step_requests, len(self._bound["short_rows"])).items():
            self._bind_input(name, array)
        looking = looking or [0] * self._least
        self._bind_input("attention_rows", np.array(looking, np.int64))
        self._bind_output("attention", (len(looking), self._runtime.source_capacity), _FLOAT)

    def _head_scores(self, prefix: str) -> HeadOutputs:
        bound = self._bound
        return HeadOutputs(bound[f"{prefix}ids"], bound[f"{prefix}log_probabilities"], bound[f"{prefix}edited"])

    def _run(self) -> None:
        self._runtime.upload(self._rows, self._size)
        self._runtime.decoder.run_with_iobinding(self._binding, self._runtime.run_options)

    def _bind_input(self, name: str, array: Array) -> None:
        array = np.ascontiguousarray(array).reshape(array.shape)
        self._bound[name] = array
        self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        array = self._bound[name] = np.empty(shape, dtype)
        self._binding.bind_output(name, "cpu", 0, dtype.type, shape, array.ctypes.data)


def is_cache(name: str) -> bool:
    return name.split("_", 1)[0] in ("self", "cross", "last") and not name.endswith("capacity")


def all_plain(step_requests: Sequence[StepRequest]) -> int:
    """How many candidates are wanted where all rows want the most probable tokens and no more; else 0."""
    distinct = {
        id(step_request): step_request for step_request in step_requests
    }.values()  # searches ask with the same object again and again
    return max(d.candidates for d in distinct) if all(map(is_plain, distinct)) else 0
