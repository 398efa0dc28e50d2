"""A decoder step of a given number of rows, bound to the cache pool."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import onnxruntime as ort

from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import Array, ort_element_type, zeroed
from dragoman_server.runtime.cache_pool import CachePool
from dragoman_server.runtime.cuda_graphs import NO_CAPTURE, run_options
from dragoman_server.runtime.head_inputs import HeadRows
from dragoman_server.runtime.sessions import Sessions
from dragoman_server.runtime.shortlists import ListedRows, Shortlists
from dragoman_server.runtime.step_results import HeadOutputs, MixedResult, TopKResult

FULL, SHORT = "", "short_"  # name prefixes of the two heads' inputs and outputs
MIN_LISTED_ROWS = 2  # a product of one row may use another kernel with other rounding
_INT64, _FLOAT = np.dtype(np.int64), np.dtype(np.float32)


class Step:
    """A step of `rows` rows, bound to the first rows of the cache pool. On a GPU, the fallback of `CudaGraphStep`.

    Caches and per-row inputs are bound once. The head inputs stay bound as long as they do not change, which is the
    usual case if all rows request only their most probable tokens.

    Args:
        rows: Rows in use.
        min_rows: Smaller steps are padded to this many rows, see `Runtime`.
        no_lists: See `no_lists`; shared by all steps of a runtime.
    """

    def __init__(self, sessions: Sessions, pool: CachePool, rows: int, min_rows: int, no_lists: ListedRows) -> None:
        self._decoder: ort.InferenceSession = sessions.decoder
        self._pool = pool
        self._rows, self._size, self._min_rows = rows, max(rows, min_rows), min_rows
        manifest = sessions.bundle.manifest
        self._vocabulary = manifest.shape.target_vocabulary
        self._source_capacity = manifest.limits.max_source_tokens
        self._options = run_options(NO_CAPTURE) if sessions.max_cuda_graphs else None
        self._binding: ort.IOBinding = self._decoder.io_binding()
        self._bound: dict[str, Array] = {}  # keeps bound arrays alive
        self._top_k: int | None = None  # k of the head inputs that are bound, if `top` bound them
        self._listed_top_k: tuple[int, ...] | None = None  # k and the bound lists, if `listed_top` bound them
        pool.bind_decoder(self._binding, self._size)
        # Some CUDA kernels fail on empty inputs, unlike the CPU's. There, an unused part of the graph gets one row,
        # whose output is ignored.
        self._min_head_rows = 0 if sessions.stream is None else 1
        self._no_lists = no_lists

    def top(self, candidates: int) -> TopKResult:
        """Returns the most probable tokens of every row."""
        k = min(candidates, self._vocabulary)
        if self._top_k != k:
            full = HeadRows()
            step_request = StepRequest(k)
            for row in range(self._rows):
                full.add(row, step_request)
            self._listed_top_k = None
            self._bind_head_inputs(full, HeadRows(), [], self._no_lists)
            self._top_k = k
        self._run()
        return TopKResult(self._bound["ids"][: self._rows], self._bound["log_probabilities"][: self._rows])

    def listed_top(self, step_requests: Sequence[StepRequest], candidates: int, lists: ListedRows) -> TopKResult:
        """Returns the most probable tokens of every row, each from its own shortlist.

        Args:
            step_requests: Step request of each row, all with a shortlist.
            candidates: Number of tokens.
            lists: Reused from step to step.
        """
        rows = self._rows
        vocabularies = [step_request.vocabulary for step_request in step_requests]
        lists.use(cast(list[Sequence[int]], vocabularies), max(rows, MIN_LISTED_ROWS))
        k = min(candidates, lists.shortlists.width)
        bound = k, lists.generation, len(lists.shortlists.tokens)
        if self._listed_top_k != bound:
            if self._listed_top_k is None or self._listed_top_k[0] != k:
                short, step_request = HeadRows(), StepRequest(k)
                for row in range(rows):
                    short.add(row, step_request)
                self._bind_head_inputs(HeadRows(), short, [], lists)
            else:
                self._bind_lists(lists, len(self._bound["short_rows"]))
            self._top_k, self._listed_top_k = None, bound
        elif lists.weights is not None:
            self._bind_placed(lists)
        self._run()
        lists.shortlists.forget_placed()
        ids = lists.tokens(self._bound["short_ids"][:rows])
        return TopKResult(ids, self._bound["short_log_probabilities"][:rows])

    def mixed(self, step_requests: Sequence[StepRequest], lists: ListedRows) -> MixedResult:
        """Returns the scores that each row requests.

        Args:
            step_requests: Step request of each row.
            lists: Reused from step to step.
        """
        full, short = HeadRows(), HeadRows()
        attention_rows: list[int] = []
        for row, step_request in enumerate(step_requests):
            if step_request.candidates:
                (full if step_request.vocabulary is None else short).add(row, step_request)
            if step_request.attention:
                attention_rows.append(row)
        vocabularies = [step_request.vocabulary for step_request in short.step_requests]
        if vocabularies:
            lists.use(cast(list[Sequence[int]], vocabularies), max(len(vocabularies), MIN_LISTED_ROWS))
        else:
            lists = self._no_lists
        self._top_k = self._listed_top_k = None
        self._bind_head_inputs(full, short, attention_rows, lists)
        self._run()
        lists.shortlists.forget_placed()
        heads: list[tuple[HeadOutputs, int] | None] = [None] * len(step_requests)
        for prefix, head in ((FULL, full), (SHORT, short)):
            if head.rows:
                outputs = self._head_outputs(prefix)
                if prefix == SHORT:
                    outputs.ids = lists.tokens(outputs.ids)
                for row, place in head.places.items():
                    heads[row] = (outputs, place)
        edits = {
            row: len(step_request.edits.ids) for row, step_request in enumerate(step_requests) if step_request.edits
        }
        lengths = self._pool.source_lengths
        attention = {row: self._bound["attention"][place, : lengths[row]] for place, row in enumerate(attention_rows)}
        return MixedResult(heads, full.untempered | short.untempered, edits, attention)

    def _bind_head_inputs(self, full: HeadRows, short: HeadRows, attention_rows: list[int], lists: ListedRows) -> None:
        # A product of one row may use another kernel with other rounding, and must not depend on the other rows.
        for prefix, head, size, min_rows in (
            (FULL, full, self._vocabulary, self._min_rows),
            (SHORT, short, lists.shortlists.width, MIN_LISTED_ROWS),
        ):
            inputs = head.inputs(size, max(self._min_head_rows, min_rows if head.rows else 0))
            for name, array in inputs.items():
                self._bind_input(prefix + name, array)
            count, k, width = len(inputs["rows"]), int(inputs["k"][0]), inputs["edit_ids"].shape[1]
            self._bind_output(f"{prefix}log_probabilities", (count, k), _FLOAT)
            self._bind_output(f"{prefix}ids", (count, k), _INT64)
            self._bind_output(f"{prefix}edited", (count, width), _FLOAT)
        self._bind_lists(lists, len(self._bound["short_rows"]))
        attention_rows = attention_rows or [0] * self._min_head_rows
        self._bind_input("attention_rows", np.array(attention_rows, np.int64))
        self._bind_output("attention", (len(attention_rows), self._source_capacity), _FLOAT)

    def _bind_lists(self, lists: ListedRows, rows: int) -> None:
        self._bind_input("short_list", lists.shortlists.tokens)
        self._bind_input("short_columns", lists.columns[:rows])
        self._bind_input("short_mask", lists.mask[:rows])
        if lists.weights is not None:
            weights = lists.weights[: len(lists.shortlists.tokens)]
            self._bind_input("short_weights", weights)
            kind, address = ort_element_type(weights.dtype), weights.ctypes.data
            self._binding.bind_output("short_weights_out", "cpu", 0, kind, weights.shape, address)
            self._bind_placed(lists)

    def _bind_placed(self, lists: ListedRows) -> None:
        new, places = lists.shortlists.placed
        self._bind_input("short_new", new)
        self._bind_input("short_places", places)

    def _head_outputs(self, prefix: str) -> HeadOutputs:
        bound = self._bound
        return HeadOutputs(bound[f"{prefix}ids"], bound[f"{prefix}log_probabilities"], bound[f"{prefix}edited"])

    def _run(self) -> None:
        self._pool.upload(self._rows, self._size)
        self._decoder.run_with_iobinding(self._binding, self._options)

    def _bind_input(self, name: str, array: Array) -> None:
        array = np.ascontiguousarray(array).reshape(array.shape)
        self._bound[name] = array
        kind = ort_element_type(array.dtype)
        self._binding.bind_input(name, "cpu", 0, kind, array.shape, array.ctypes.data)

    def _bind_output(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        array = self._bound[name] = np.empty(shape, dtype)
        self._binding.bind_output(name, "cpu", 0, dtype.type, shape, array.ctypes.data)


def make_lists(sessions: Sessions, capacity: int) -> ListedRows:
    """Returns the shortlists of a runtime's steps.

    Args:
        capacity: Most head rows expected.
    """
    manifest, weights = sessions.bundle.manifest, None
    shortlists = Shortlists(manifest.shape.target_vocabulary, sessions.threads)
    if sessions.listed_dtype is not None:
        weights = zeroed((shortlists.most, manifest.shape.d_model), sessions.listed_dtype)
    return ListedRows(shortlists, capacity, weights)


def no_lists(sessions: Sessions) -> ListedRows:
    """Returns what the graph gets instead of shortlists while no row has one."""
    lists = make_lists(sessions, 1)
    if sessions.stream is not None:  # see `Step`: some CUDA kernels fail on empty inputs
        lists.use([(sessions.bundle.manifest.tokens.end,)], 1)
    return lists
