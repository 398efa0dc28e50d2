"""Steps that are filled up and recorded as on a GPU, on the CPU: nothing of that may show in what they find."""

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
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from tests.gpu.host_stream import HostStream, run_on

SLOTS = 13
RECORDING = "gpu_graph_id"
WAYS = {
    "most probable": StepRequest(1),
    "candidates": StepRequest(5),
    "temperature": StepRequest(3, temperature=0.6),
    "edits": StepRequest(2, edits=LogitEdits([4, 7, 9], [1.3, 1.0, 0.8], [0.0, -np.inf, 0.0])),
    "temperature and plain": StepRequest(3, temperature=0.6, untempered=True),
    "short list": StepRequest(2, vocabulary=(2, 5, 6, 8)),
    "attention": StepRequest(1, attention=True),
    "more candidates than are kept for": StepRequest(MAX_CANDIDATES + 1),
}


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return load_bundle(tiny_bundle)


@pytest.fixture(scope="module")
def plain(bundle: Bundle) -> Runtime:
    """A runtime of the CPU."""
    return Runtime(Sessions(bundle, CPU, 1), SLOTS)


@pytest.fixture
def stream() -> HostStream:
    return HostStream()


@pytest.fixture
def filled(bundle: Bundle, stream: HostStream) -> Runtime:
    """A runtime that takes the CPU for a GPU."""
    sessions = Sessions(bundle, CPU, 1)
    run_on(stream, sessions)
    return Runtime(sessions, SLOTS)


def encode(runtime: Runtime) -> None:
    """Sources of different length in all rows, and two tokens decoded."""
    end = runtime.manifest.tokens.end
    runtime.encode([[*range(4, 5 + row % 4), end] for row in range(SLOTS)], 0)
    for _ in range(2):
        runtime.tokens[:] = runtime.top(SLOTS, 1).ids
        runtime.positions += 1


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_fill_up_change_nothing(plain: Runtime, filled: Runtime, way: str) -> None:
    step_request = WAYS[way]
    for runtime in (plain, filled):
        encode(runtime)
    for rows in range(1, SLOTS + 1):
        for runtime in (plain, filled):  # what is left of earlier requests in rows that are not in use
            runtime.tokens[rows:] = 1
            runtime.positions[rows:] = runtime.target_capacity
            runtime.source_lengths[rows:] = runtime.source_capacity
        expected, found = (runtime.step([step_request] * rows) for runtime in (plain, filled))
        for row in range(rows):
            count = step_request.candidates
            assert found.top(row)[0][:count] == expected.top(row)[0][:count]
            np.testing.assert_allclose(found.top(row)[1][:count], expected.top(row)[1][:count], atol=1e-5)
            assert found.best(row)[0] == expected.best(row)[0]
            np.testing.assert_allclose(found.untempered(row)[:count], expected.untempered(row)[:count], atol=1e-5)
            np.testing.assert_allclose(found.edited(row), expected.edited(row), atol=1e-5)
            if step_request.attention:
                np.testing.assert_allclose(found.attention(row), expected.attention(row), atol=1e-5)
        encode(plain)
        encode(filled)


def test_rows_ask_in_different_ways_by_turns(plain: Runtime, filled: Runtime) -> None:
    """What one step was given must not be left for the next."""
    edits = LogitEdits([4, 5, 6], [2.0, 1.0, 1.0], [-np.inf, 0.0, -1.0])
    turns = [
        [StepRequest(1)] * 5,
        [StepRequest(1, edits=edits), StepRequest(0), StepRequest(1), StepRequest(1, temperature=2.0), StepRequest(1)],
        [StepRequest(1)] * 5,
        [StepRequest(1, edits=LogitEdits([7], [1.0], [-np.inf])), *[StepRequest(1)] * 4],
        [StepRequest(2, temperature=0.5)] * 5,
        [StepRequest(1)] * 5,
    ]
    for runtime in (plain, filled):
        encode(runtime)
    for step_requests in turns:
        expected, found = (runtime.step(step_requests) for runtime in (plain, filled))
        for row, step_request in enumerate(step_requests):
            if step_request.candidates:
                assert found.best(row)[0] == expected.best(row)[0]
                assert found.best(row)[1] == pytest.approx(expected.best(row)[1], abs=1e-5)
            np.testing.assert_allclose(found.edited(row), expected.edited(row), atol=1e-5)


def test_a_step_is_waited_for_once_and_allocates_nothing(filled: Runtime, stream: HostStream) -> None:
    encode(filled)
    for rows in range(1, SLOTS + 1):
        filled.top(rows, 1)
    allocated, waits = stream.allocated, stream.waits
    for rows in range(SLOTS, 0, -1):
        filled.top(rows, 1)
        filled.move_row(0, 1)
    assert stream.allocated == allocated
    assert stream.waits == waits + SLOTS


@pytest.mark.parametrize("max_rows", [1, 2, 5, 12, 64, 100, 256])
def test_sizes(max_rows: int) -> None:
    """Few, and little is filled up."""
    found = step_sizes(max_rows)
    assert found == sorted(set(found))
    assert found[0] == 1
    assert found[-1] == max_rows
    assert len(found) <= 2 * max_rows.bit_length()
    for smaller, larger in pairwise(found):
        assert larger - (smaller + 1) < larger / 3


def spy(runtime: Runtime, react: Callable[[str], None]) -> None:
    """Tells `react` under which name each step is to be recorded, before it runs."""
    run: Any = runtime.decoder.run_with_iobinding

    def spied(binding: object, options: Any) -> None:
        react(options.get_run_config_entry(RECORDING))
        run(binding, options)

    runtime.decoder.run_with_iobinding = spied


def test_each_size_has_a_recording_and_all_else_has_none(filled: Runtime) -> None:
    names: list[str] = []
    spy(filled, names.append)
    filled.warm_up()
    assert set(names) == {NO_CAPTURE}, "recordings belong to the thread that makes them"
    names.clear()
    for rows, candidates in ((9, 1), (10, 1), (12, 1), (13, 1), (9, 3), (12, 4), (9, 1)):
        filled.top(rows, candidates)
    assert names[0] == names[1] == names[2] == names[6]
    assert names[4] == names[5]
    assert len(set(names)) == 3
    assert NO_CAPTURE not in names
    names.clear()
    filled.step([StepRequest(1, attention=True)])
    assert names == [NO_CAPTURE]


def test_no_more_is_recorded_than_shall_be(bundle: Bundle, stream: HostStream) -> None:
    sessions = Sessions(bundle, CPU, 1)
    run_on(stream, sessions)
    sessions.max_cuda_graphs = 2
    runtime = Runtime(sessions, 4)
    names: list[str] = []
    spy(runtime, names.append)
    for rows in (1, 2, 3, 1):
        runtime.top(rows, 1)
    assert names[0] == names[3] != names[1]
    assert names[2] == NO_CAPTURE


def test_recordings_of_two_runtimes_are_told_apart(bundle: Bundle, stream: HostStream) -> None:
    """They have memory of their own, and the same sessions."""
    sessions = Sessions(bundle, CPU, 1)
    run_on(stream, sessions)
    names: list[str] = []
    first, second = Runtime(sessions, 2), Runtime(sessions, 2)
    spy(first, names.append)
    first.top(1, 1)
    second.top(1, 1)
    assert len(set(names)) == 2


def test_goes_on_where_a_step_can_not_be_recorded(plain: Runtime, filled: Runtime) -> None:
    refused: list[str] = []

    def refuse(name: str) -> None:
        if name != NO_CAPTURE:
            refused.append(name)
            raise RuntimeError("operation not permitted when stream is capturing")

    for runtime in (plain, filled):
        runtime.encode([[5, 6, runtime.manifest.tokens.end]], 0)
    spy(filled, refuse)
    with capture_logs() as logs:
        found = [filled.top(1, 1).best(0) for _ in range(3)]
    assert found == [plain.top(1, 1).best(0)] * 3
    assert len(refused) == 1, "it is not tried again"
    assert [line["log_level"] for line in logs] == ["warning"]
    assert "capturing" in logs[0]["reason"]


def test_an_error_of_a_step_that_is_recorded_is_not_taken_for_that_of_recording(filled: Runtime) -> None:
    filled.top(1, 1)

    def fail(name: str) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    spy(filled, fail)
    with pytest.raises(RuntimeError, match="illegal"):
        filled.top(1, 1)


def test_the_decoder_can_be_recorded(bundle: Bundle) -> None:
    """Nothing waits for the device or hands it addresses of the host: neither would be there when it is replayed.

    ONNX Runtime multiplies a batch with a matrix by lists of addresses, unless the matrix is on the right; two batches
    of the same size, or two matrices, it multiplies without.
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
