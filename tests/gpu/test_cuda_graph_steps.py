"""Steps that are padded and captured as on a GPU, run on a fake GPU: their results must equal those of plain steps."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from structlog.testing import capture_logs

from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.core.search import LogitEdits, StepRequest
from dragoman_server.runtime.cuda_graphs import MAX_CANDIDATES, NO_CAPTURE, step_sizes
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import WARM_UP_ENCODED, Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_server.runtime.step_results import TopKResult
from tests.gpu.host_stream import HostStream, run_on

MAX_ROWS = 13
GRAPH_ID = "gpu_graph_id"
STEP_REQUESTS = {
    "most probable": StepRequest(1),
    "candidates": StepRequest(5),
    "temperature": StepRequest(3, temperature=0.6),
    "edits": StepRequest(2, edits=LogitEdits([4, 7, 9], [1.3, 1.0, 0.8], [0.0, -np.inf, 0.0])),
    "untempered": StepRequest(3, temperature=0.6, untempered=True),
    "shortlist": StepRequest(2, vocabulary=(2, 5, 6, 8)),
    "attention": StepRequest(1, attention=True),
    "more candidates than a captured step has": StepRequest(MAX_CANDIDATES + 1),
}


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return load_bundle(tiny_bundle)


@pytest.fixture(scope="module")
def plain(bundle: Bundle) -> Runtime:
    """A runtime on the CPU."""
    return Runtime(Sessions(bundle, CPU, 1), MAX_ROWS)


@pytest.fixture
def stream() -> HostStream:
    return HostStream()


@pytest.fixture
def padded(bundle: Bundle, stream: HostStream) -> Runtime:
    """A runtime on a fake GPU."""
    sessions = Sessions(bundle, CPU, 1)
    run_on(stream, sessions)
    return Runtime(sessions, MAX_ROWS)


def encode(runtime: Runtime) -> None:
    """Encodes sources of different lengths into all rows and decodes two tokens."""
    end = runtime.manifest.tokens.end
    runtime.encode([[*range(4, 5 + row % 4), end] for row in range(MAX_ROWS)], 0)
    for _ in range(2):
        runtime.tokens[:] = runtime.top(MAX_ROWS, 1).ids
        runtime.positions += 1


@pytest.mark.parametrize("name", STEP_REQUESTS)
def test_padding_rows_change_nothing(plain: Runtime, padded: Runtime, name: str) -> None:
    step_request = STEP_REQUESTS[name]
    for runtime in (plain, padded):
        encode(runtime)
    for rows in range(1, MAX_ROWS + 1):
        for runtime in (plain, padded):  # leftovers of earlier requests in unused rows
            runtime.tokens[rows:] = 1
            runtime.positions[rows:] = runtime.target_capacity
            runtime.source_lengths[rows:] = runtime.source_capacity
        expected, result = (runtime.step([step_request] * rows) for runtime in (plain, padded))
        for row in range(rows):
            count = step_request.candidates
            assert result.top(row)[0][:count] == expected.top(row)[0][:count]
            np.testing.assert_allclose(result.top(row)[1][:count], expected.top(row)[1][:count], atol=1e-5)
            assert result.best(row)[0] == expected.best(row)[0]
            np.testing.assert_allclose(result.untempered(row)[:count], expected.untempered(row)[:count], atol=1e-5)
            np.testing.assert_allclose(result.edited(row), expected.edited(row), atol=1e-5)
            if step_request.attention:
                np.testing.assert_allclose(result.attention(row), expected.attention(row), atol=1e-5)
        encode(plain)
        encode(padded)


def test_steps_with_changing_step_requests(plain: Runtime, padded: Runtime) -> None:
    """No input of one step may leak into the next."""
    edits = LogitEdits([4, 5, 6], [2.0, 1.0, 1.0], [-np.inf, 0.0, -1.0])
    steps = [
        [StepRequest(1)] * 5,
        [StepRequest(1, edits=edits), StepRequest(0), StepRequest(1), StepRequest(1, temperature=2.0), StepRequest(1)],
        [StepRequest(1)] * 5,
        [StepRequest(1, edits=LogitEdits([7], [1.0], [-np.inf])), *[StepRequest(1)] * 4],
        [StepRequest(2, temperature=0.5)] * 5,
        [StepRequest(1)] * 5,
    ]
    for runtime in (plain, padded):
        encode(runtime)
    for step_requests in steps:
        expected, result = (runtime.step(step_requests) for runtime in (plain, padded))
        for row, step_request in enumerate(step_requests):
            if step_request.candidates:
                assert result.best(row)[0] == expected.best(row)[0]
                assert result.best(row)[1] == pytest.approx(expected.best(row)[1], abs=1e-5)
            np.testing.assert_allclose(result.edited(row), expected.edited(row), atol=1e-5)


def test_a_step_waits_once_and_allocates_nothing(padded: Runtime, stream: HostStream) -> None:
    encode(padded)
    for rows in range(1, MAX_ROWS + 1):
        padded.top(rows, 1)
    allocated, waits = stream.allocated, stream.waits
    for rows in range(MAX_ROWS, 0, -1):
        padded.top(rows, 1)
        padded.move_row(0, 1)
    assert stream.allocated == allocated
    assert stream.waits == waits + MAX_ROWS


@pytest.mark.parametrize("max_rows", [1, 2, 5, 12, 64, 100, 256])
def test_step_sizes(max_rows: int) -> None:
    """There are few sizes, and little padding."""
    found = step_sizes(max_rows)
    assert found == sorted(set(found))
    assert found[0] == 1
    assert found[-1] == max_rows
    assert len(found) <= 2 * max_rows.bit_length()
    for smaller, larger in pairwise(found):
        assert larger - (smaller + 1) < larger / 3


def spy(runtime: Runtime, react: Callable[[str], None]) -> None:
    """Calls `react` with the graph id of each step before it runs."""
    run: Any = runtime.decoder.run_with_iobinding

    def spied(binding: object, options: Any) -> None:
        react(options.get_run_config_entry(GRAPH_ID))
        run(binding, options)

    runtime.decoder.run_with_iobinding = spied


def test_each_size_has_a_graph(padded: Runtime) -> None:
    graph_ids: list[str] = []
    spy(padded, graph_ids.append)
    padded.warm_up()
    assert set(graph_ids) == {NO_CAPTURE}, "a graph can only be replayed by the thread that captured it"
    graph_ids.clear()
    for rows, candidates in ((9, 1), (10, 1), (12, 1), (13, 1), (9, 3), (12, 4), (9, 1)):
        padded.top(rows, candidates)
    assert graph_ids[0] == graph_ids[1] == graph_ids[2] == graph_ids[6]
    assert graph_ids[4] == graph_ids[5]
    assert len(set(graph_ids)) == 3
    assert NO_CAPTURE not in graph_ids
    graph_ids.clear()
    padded.step([StepRequest(1, attention=True)])
    assert graph_ids == [NO_CAPTURE]


@pytest.mark.parametrize(
    ("max_rows", "expected"), [(1, [1]), (2, [1, 2]), (64, [1, 4, 16, 64]), (200, [1, 4, 16, 64, 200])]
)
def test_warm_up_steps_few_and_all_rows(
    bundle: Bundle, stream: HostStream, max_rows: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped: list[int] = []
    encoded: list[tuple[int, int]] = []
    top, encode = Runtime.top, Runtime.encode

    def recording_top(runtime: Runtime, rows: int, candidates: int) -> TopKResult:
        stepped.append(rows)
        return top(runtime, rows, candidates)

    def recording_encode(runtime: Runtime, sources: list[list[int]], row: int) -> int:
        encoded.append((row, len(sources)))
        assert len(sources) == 1 or len(sources) * runtime.source_capacity <= WARM_UP_ENCODED, "padded to the capacity"
        return encode(runtime, sources, row)

    monkeypatch.setattr(Runtime, "top", recording_top)
    monkeypatch.setattr(Runtime, "encode", recording_encode)
    sessions = Sessions(bundle, CPU, 1)
    run_on(stream, sessions)
    Runtime(sessions, max_rows).warm_up()
    assert stepped == [1, *expected]  # the first with the longest source, at the last position
    assert max(row + count for row, count in encoded) == max_rows


def test_no_more_graphs_than_the_maximum(bundle: Bundle, stream: HostStream) -> None:
    sessions = Sessions(bundle, CPU, 1)
    run_on(stream, sessions)
    sessions.max_cuda_graphs = 2
    runtime = Runtime(sessions, 4)
    graph_ids: list[str] = []
    spy(runtime, graph_ids.append)
    for rows in (1, 2, 3, 1):
        runtime.top(rows, 1)
    assert graph_ids[0] == graph_ids[3] != graph_ids[1]
    assert graph_ids[2] == NO_CAPTURE


def test_two_runtimes_have_graphs_of_their_own(bundle: Bundle, stream: HostStream) -> None:
    """They share the sessions but not the memory."""
    sessions = Sessions(bundle, CPU, 1)
    run_on(stream, sessions)
    graph_ids: list[str] = []
    first, second = Runtime(sessions, 2), Runtime(sessions, 2)
    spy(first, graph_ids.append)
    first.top(1, 1)
    second.top(1, 1)
    assert len(set(graph_ids)) == 2


def test_continues_without_capture_if_it_fails(plain: Runtime, padded: Runtime) -> None:
    refused: list[str] = []

    def refuse(graph_id: str) -> None:
        if graph_id != NO_CAPTURE:
            refused.append(graph_id)
            raise RuntimeError("operation not permitted when stream is capturing")

    for runtime in (plain, padded):
        runtime.encode([[5, 6, runtime.manifest.tokens.end]], 0)
    spy(padded, refuse)
    with capture_logs() as logs:
        found = [padded.top(1, 1).best(0) for _ in range(3)]
    assert found == [plain.top(1, 1).best(0)] * 3
    assert len(refused) == 1, "not tried again"
    assert [line["log_level"] for line in logs] == ["warning"]
    assert "capturing" in logs[0]["reason"]


def test_an_error_of_a_captured_step_is_raised(padded: Runtime) -> None:
    padded.top(1, 1)

    def fail(graph_id: str) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    spy(padded, fail)
    with pytest.raises(RuntimeError, match="illegal"):
        padded.top(1, 1)


def test_the_decoder_can_be_captured(bundle: Bundle) -> None:
    """No operator waits for the device or passes it host addresses, which a replay would not have.

    ONNX Runtime multiplies a batch with a matrix through lists of addresses, unless the matrix is on the right or both
    sides have the same rank.
    """
    graph = onnx.shape_inference.infer_shapes(onnx.load(bundle.decoder, load_external_data=False)).graph
    types = {node.op_type for node in graph.node}
    assert not types & {"If", "Loop", "Scan", "NonZero", "Unique", "Compress", "NonMaxSuppression"}
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in (*graph.value_info, *graph.input)}
    ranks |= {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type == "MatMul"]
    assert products
    for node in products:
        left, right = (ranks[name] for name in node.input)
        assert left == right or right == 2, f"{node.name} multiplies shapes of {left} and {right} dimensions"
