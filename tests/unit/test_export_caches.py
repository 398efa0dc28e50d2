"""Integers in the caches: their scales, and steps that compute nearly what they do with floats."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman_export.bundle.onnx_files import ENCODER, load_models
from dragoman_export.bundle.options import ExportOptions
from dragoman_export.bundle.write import write_files, write_manifest
from dragoman_export.precision.caches import are_faster
from dragoman_export.precision.calibration import Feed, cache_peaks, scorer_feed
from dragoman_export.precision.editable_graph import Floats
from dragoman_export.precision.quantize import CalibratedWeights, quantize_bundle
from dragoman_export.precision.scales import cache_scales
from dragoman_export.run_data import read_run
from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from dragoman_server.bundle.manifest import INTEGERS
from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import HostMemory
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.device_memory import row_bytes
from dragoman_server.runtime.graph_check import check_caches
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from tests.support.bundles import altered_copy, edit_manifest
from tests.support.random_model import VOCABULARY, small_run

pytestmark = pytest.mark.usefixtures("shared_graphs")

ROWS, STEPS = 6, 5
LENGTHS = [3, 9, 1, 5, 7, 2] * 7


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("cache") / "exact"
    folder.mkdir()
    run = read_run(small_run(folder.parent / "run"), print)
    write_manifest(write_files(run, folder, ExportOptions("x"), ["w5"]), folder)
    return load_bundle(folder)


@pytest.fixture(scope="module")
def feeds(exact: Bundle) -> list[Feed]:
    rng = np.random.default_rng(0)
    return [
        scorer_feed(
            rng.integers(4, VOCABULARY, n).tolist(),
            rng.integers(4, VOCABULARY, n % 5 + 1).tolist(),
            exact.manifest.tokens.begin,
        )
        for n in LENGTHS
    ]


@pytest.fixture(scope="module")
def quantized(exact: Bundle, feeds: list[Feed]) -> Bundle:
    """Integers in the caches, and floats everywhere else."""
    folder, no_weights = exact.path.parent / "quantized", CalibratedWeights({}, {})
    return quantize_bundle(exact, folder, INTEGERS[0], no_weights, [], scales_of(exact, feeds))


def scales_of(exact: Bundle, feeds: Sequence[Feed]) -> dict[str, Floats]:
    return cache_scales(cache_peaks(exact, feeds, 1))


def new_runtime(bundle: Bundle) -> Runtime:
    return Runtime(Sessions(bundle, CPU, 1), ROWS)


def run_steps(
    runtime: Runtime, feeds: list[Feed], step_request: StepRequest, first: int = 0
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """Returns log-probabilities [steps, rows, k] in the order of the ids, and the rows' attention, over fixed targets.

    Args:
        runtime: The runtime.
        feeds: The sources of the rows.
        step_request: The request of every row.
        first: Number of the first row, which its targets depend on.
    """
    runtime.encode([feed["source_ids"][0].tolist() for feed in feeds], 0)
    rows, found, attention = len(feeds), [], []
    for step in range(STEPS):
        scores = runtime.step([step_request] * rows)
        by_id = [sorted(zip(*scores.top(row), strict=True)) for row in range(rows)]
        found.append([[value for _, value in pairs] for pairs in by_id])
        attention += [np.array(scores.attention(row)) for row in range(rows)] if step_request.attention else []
        runtime.tokens[:rows, 0] = 4 + (7 * step + first + np.arange(rows)) % (VOCABULARY - 4)
        runtime.positions[:rows] += 1
    return np.array(found, np.float32), attention


def test_steps_are_close_to_those_with_floats(exact: Bundle, quantized: Bundle, feeds: list[Feed]) -> None:
    request = StepRequest(VOCABULARY, attention=True)
    (floats, attention), (integers, other_attention) = (
        run_steps(new_runtime(bundle), feeds[:ROWS], request) for bundle in (exact, quantized)
    )
    allowed = np.isfinite(floats)
    assert (np.isfinite(integers) == allowed).all()
    assert 1e-5 < np.abs(floats[allowed] - integers[allowed]).max() < 0.05
    assert floats[allowed].std() > 0.3, "the distributions are not flat"
    for expected, actual in zip(attention, other_attention, strict=True):
        np.testing.assert_allclose(actual, expected, atol=0.01)


def test_caches_hold_the_floats_in_steps_of_the_scale(exact: Bundle, quantized: Bundle, feeds: list[Feed]) -> None:
    runtimes = [new_runtime(bundle) for bundle in (exact, quantized)]
    for runtime in runtimes:
        run_steps(runtime, feeds[:1], StepRequest(1))
    for name, scale in scales_of(exact, feeds).items():
        (floats, plane), (integers, _) = (runtime.pool.place(name) for runtime in runtimes)
        length = STEPS if name.startswith("self") else LENGTHS[0]
        expected = floats.read(plane, 0)[:, :length] / scale[0]
        stored = integers.read(plane, 0)
        assert stored.dtype == np.int8
        # What the second layer caches depends on what was read from the first one's cache.
        np.testing.assert_allclose(stored[:, :length], np.clip(expected, -128, 127), atol=0.51 if "_0" in name else 3)


def test_scales_reach_the_largest_cached_value(exact: Bundle, feeds: list[Feed]) -> None:
    scales = scales_of(exact, feeds[:1])
    assert scales.keys() == {
        f"{kind}_{part}_{i}" for kind in ("self", "cross") for part in ("key", "value") for i in (0, 1)
    }
    runtime = new_runtime(exact)
    runtime.encode([feeds[0]["source_ids"][0].tolist()], 0)
    memory, plane = runtime.pool.place("cross_key_1")
    largest = np.abs(memory.read(plane, 0)[:, : LENGTHS[0]]).max(1)
    np.testing.assert_allclose(127 * scales["cross_key_1"][0, :, 0], largest, rtol=1e-5)
    more = scales_of(exact, feeds)
    assert all((more[name] >= 0.999 * scale).all() for name, scale in scales.items())


def test_a_row_does_not_depend_on_the_others(quantized: Bundle, feeds: list[Feed]) -> None:
    together, _ = run_steps(new_runtime(quantized), feeds[:ROWS], StepRequest(VOCABULARY))
    for row in range(ROWS):
        alone, _ = run_steps(new_runtime(quantized), [feeds[row]], StepRequest(VOCABULARY), first=row)
        np.testing.assert_allclose(alone[:, 0], together[:, row], atol=1e-5)


def test_rows_move_with_their_integers(quantized: Bundle, feeds: list[Feed]) -> None:
    runtime = new_runtime(quantized)
    run_steps(runtime, feeds[:ROWS], StepRequest(1))
    assert isinstance(runtime.pool.self_cache, HostMemory)
    before = runtime.pool.self_cache.array[:, 5, :, :STEPS].copy()
    assert before.any()
    runtime.move_row(5, 1)
    np.testing.assert_array_equal(runtime.pool.self_cache.array[:, 1, :, :STEPS], before)


def test_a_row_takes_a_quarter_of_the_memory(exact: Bundle, quantized: Bundle) -> None:
    for bundle in (exact, quantized):
        assert row_bytes(bundle.manifest, 4) * ROWS == new_runtime(bundle).cache_bytes
    last = 2 * quantized.manifest.shape.decoder_layers * quantized.manifest.shape.d_model * 4
    assert 4 * (row_bytes(quantized.manifest, 4) - last) == row_bytes(exact.manifest, 4) - last


def test_the_encoder_quantizes_all_layers_at_once(quantized: Bundle) -> None:
    graph = load_models(quantized.path)[ENCODER].graph
    assert sum(node.op_type == "QuantizeLinear" for node in graph.node) == 1


def test_integers_must_be_faster_by_a_margin(
    exact: Bundle, quantized: Bundle, feeds: list[Feed], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {exact.path: 2.0, quantized.path: 1.0}
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    top = Runtime.top

    def timed(self: Runtime, rows: int, candidates: int) -> object:
        now[0] += seconds[quantized.path if self.pool.self_cache.dtype == np.int8 else exact.path]
        return top(self, rows, candidates)

    monkeypatch.setattr(Runtime, "top", timed)
    assert are_faster(exact, quantized, feeds[:3], 1)
    seconds[quantized.path] = 1.95
    assert not are_faster(exact, quantized, feeds[:3], 1), "2.5 % less time is not worth the loss"


@pytest.mark.parametrize(
    ("fixture", "edit", "message"),
    [
        ("exact", {"cache": "int8"}, r"graphs are tensor\(float\), but the manifest says int8"),
        ("quantized", {"cache": "float"}, r"graphs are tensor\(int8\), but the manifest says float"),
        ("exact", {"shape": {"decoder_layers": 3}}, "caches of 2 layers; expected 3"),
    ],
)
def test_caches_unlike_the_manifest_are_refused(
    fixture: str, edit: dict[str, Any], message: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bundle: Bundle = request.getfixturevalue(fixture)

    def change(document: dict[str, Any]) -> None:
        document |= {"shape": document["shape"] | edit.get("shape", {})} | {"cache": edit.get("cache", "float")}

    wrong = load_bundle(altered_copy(bundle.path, tmp_path / "wrong", edit_manifest(change)))
    with pytest.raises(BundleError, match=message):
        Sessions(wrong, CPU, 1)


def test_graphs_with_different_caches_are_refused(exact: Bundle, quantized: Bundle) -> None:
    floats, integers = Sessions(exact, CPU, 1), Sessions(quantized, CPU, 1)
    with pytest.raises(BundleError, match=r"caches of different types: tensor\(float\), tensor\(int8\)"):
        check_caches(quantized, floats.encoder, integers.decoder)
