"""Integers in the caches: what they stand for, and that steps compute nearly what they do with floats."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from dragoman_export.build import BuildInput, build, short_data_note
from dragoman_export.bundle.onnx_files import ENCODER, load_models
from dragoman_export.bundle.options import ExportOptions
from dragoman_export.bundle.write import write_files, write_manifest
from dragoman_export.checks.report import CheckFailedError, ParityReport
from dragoman_export.precision.caches import are_faster
from dragoman_export.precision.calibration import Feed, cache_peaks, scorer_feed
from dragoman_export.precision.editable_graph import Floats
from dragoman_export.precision.quantize import CalibratedWeights, quantize_bundle
from dragoman_export.precision.scales import cache_scales
from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from dragoman_server.bundle.manifest import INTEGERS, MANIFEST_FILE
from dragoman_server.core.search import StepRequest
from dragoman_server.runtime.buffers import HostMemory
from dragoman_server.runtime.device import CPU, Device
from dragoman_server.runtime.device_memory import row_bytes
from dragoman_server.runtime.graph_check import check_caches
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.data.pairs import Pair
from dragoman_training.run.load import load_run
from tests.support.random_model import VOCABULARY, small_run

ROWS, STEPS = 6, 5


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("cache") / "exact"
    folder.mkdir()
    run = load_run(small_run(folder.parent / "run"))
    write_manifest(write_files(run, folder, ExportOptions("x"), ["w5"]), folder)
    return load_bundle(folder)


@pytest.fixture(scope="module")
def shown(exact: Bundle) -> list[Feed]:
    rng = np.random.default_rng(0)
    pairs = [
        (rng.integers(4, VOCABULARY, n).tolist(), rng.integers(4, VOCABULARY, n % 5 + 1).tolist()) for n in LENGTHS
    ]
    return [scorer_feed(*pair, exact.manifest.tokens.begin) for pair in pairs]


@pytest.fixture(scope="module")
def narrow(exact: Bundle, shown: list[Feed]) -> Bundle:
    """Integers in the caches, and floats everywhere else."""
    return quantize_bundle(
        exact,
        exact.path.parent / "narrow",
        INTEGERS[0],
        CalibratedWeights({}, {}),
        [],
        cache_scales(cache_peaks(exact, shown, 1)),
    )


LENGTHS = [3, 9, 1, 5, 7, 2] * 7


def runtime(bundle: Bundle) -> Runtime:
    return Runtime(Sessions(bundle, CPU, 1), ROWS)


def steps(
    runtime: Runtime, shown: list[Feed], step_request: StepRequest
) -> tuple[NDArray[np.float32], list[NDArray[np.float32]]]:
    """Log-probabilities [steps, rows, k] in the order of the ids, and where the rows looked, of the same targets."""
    runtime.encode([feed["source_ids"][0].tolist() for feed in shown], 0)
    rows, found, looked = len(shown), [], []
    for step in range(STEPS):
        scores = runtime.step([step_request] * rows)
        found.append([_by_id(*scores.top(row)) for row in range(rows)])
        looked += [np.array(scores.attention(row)) for row in range(rows)] if step_request.attention else []
        runtime.tokens[:rows, 0] = 4 + (7 * step + np.arange(rows)) % (VOCABULARY - 4)
        runtime.positions[:rows] += 1
    return np.array(found, np.float32), looked


def _by_id(ids: list[int], log_probabilities: list[float]) -> list[float]:
    return [value for _, value in sorted(zip(ids, log_probabilities, strict=True))]


def test_steps_are_close_to_those_with_floats(exact: Bundle, narrow: Bundle, shown: list[Feed]) -> None:
    step_request = StepRequest(VOCABULARY, attention=True)
    (floats, places), (integers, others) = (
        steps(runtime(each), shown[:ROWS], step_request) for each in (exact, narrow)
    )
    allowed = np.isfinite(floats)
    assert (np.isfinite(integers) == allowed).all()
    assert 1e-5 < np.abs(floats[allowed] - integers[allowed]).max() < 0.05
    assert floats[allowed].std() > 0.3, "there is something to tell"
    for place, other in zip(places, others, strict=True):
        np.testing.assert_allclose(other, place, atol=0.01)


def test_caches_hold_what_was_cached_in_steps_of_the_scale(exact: Bundle, narrow: Bundle, shown: list[Feed]) -> None:
    runtimes = [runtime(each) for each in (exact, narrow)]
    for each in runtimes:
        steps(each, shown[:1], StepRequest(1))
    scales = cache_scales(cache_peaks(exact, shown, 1))
    for name, scale in scales.items():
        (floats, plane), (integers, _) = (each.pool.place(name) for each in runtimes)
        length = STEPS if name.startswith("self") else LENGTHS[0]
        wanted = floats.read(plane, 0)[:, :length] / scale[0]
        stored = integers.read(plane, 0)
        assert stored.dtype == np.int8
        # What the second layer caches depends on what was read from the first one's cache.
        np.testing.assert_allclose(stored[:, :length], np.clip(wanted, -128, 127), atol=0.51 if "_0" in name else 3)


def test_scales_are_of_the_largest_that_was_cached(exact: Bundle, shown: list[Feed]) -> None:
    scales = cache_scales(cache_peaks(exact, shown[:1], 1))
    assert scales.keys() == {
        f"{which}_{part}_{i}" for which in ("self", "cross") for part in ("key", "value") for i in (0, 1)
    }
    alone = runtime(exact)
    alone.encode([shown[0]["source_ids"][0].tolist()], 0)
    memory, plane = alone.pool.place("cross_key_1")
    largest = np.abs(memory.read(plane, 0)[:, : LENGTHS[0]]).max(1)
    np.testing.assert_allclose(127 * scales["cross_key_1"][0, :, 0], largest, rtol=1e-5)
    more = cache_scales(cache_peaks(exact, shown, 1))
    assert all((more[name] >= 0.999 * scale).all() for name, scale in scales.items())


def test_a_row_does_not_depend_on_the_others(narrow: Bundle, shown: list[Feed]) -> None:
    together, _ = steps(runtime(narrow), shown[:ROWS], StepRequest(VOCABULARY))
    for row in range(ROWS):
        alone = runtime(narrow)
        alone.encode([shown[row]["source_ids"][0].tolist()], 0)
        for step in range(STEPS):
            scores = alone.step([StepRequest(VOCABULARY)])
            np.testing.assert_allclose(_by_id(*scores.top(0)), together[step, row], atol=1e-5)
            alone.tokens[0, 0] = 4 + (7 * step + row) % (VOCABULARY - 4)
            alone.positions[0] += 1


def test_rows_move_with_their_integers(narrow: Bundle, shown: list[Feed]) -> None:
    one = runtime(narrow)
    steps(one, shown[:ROWS], StepRequest(1))
    assert isinstance(one.pool.self_cache, HostMemory)
    before = one.pool.self_cache.array[:, 5, :, :STEPS].copy()
    assert before.any()
    one.move_row(5, 1)
    np.testing.assert_array_equal(one.pool.self_cache.array[:, 1, :, :STEPS], before)


def test_a_row_takes_a_quarter_of_the_memory(exact: Bundle, narrow: Bundle) -> None:
    for bundle in (exact, narrow):
        assert row_bytes(bundle.manifest, 4) * ROWS == runtime(bundle).cache_bytes
    last = 2 * narrow.manifest.shape.decoder_layers * narrow.manifest.shape.d_model * 4
    assert 4 * (row_bytes(narrow.manifest, 4) - last) == row_bytes(exact.manifest, 4) - last


def test_the_encoder_moves_integers(narrow: Bundle) -> None:
    graph = load_models(narrow.path)[ENCODER].graph
    made = [node for node in graph.node if node.op_type == "QuantizeLinear"]
    assert len(made) == 1, "keys and values of all layers at once"


def test_whether_they_pay_is_measured(
    exact: Bundle, narrow: Bundle, shown: list[Feed], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {exact.path: 2.0, narrow.path: 1.0}
    now = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    top = Runtime.top

    def timed(self: Runtime, rows: int, candidates: int) -> object:
        now[0] += seconds[narrow.path if self.pool.self_cache.dtype == np.int8 else exact.path]
        return top(self, rows, candidates)

    monkeypatch.setattr(Runtime, "top", timed)
    assert are_faster(exact, narrow, shown[:3], 1)
    seconds[narrow.path] = 1.95
    assert not are_faster(exact, narrow, shown[:3], 1), "they cost more than they bring"


def changed(bundle: Bundle, folder: Path, cache: str | None = None, layers: int | None = None) -> Bundle:
    """A copy whose manifest says something else."""
    shutil.copytree(bundle.path, folder)
    path = folder / MANIFEST_FILE
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["cache"] = cache or manifest["cache"]
    manifest["shape"]["decoder_layers"] = layers or manifest["shape"]["decoder_layers"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    return load_bundle(folder)


def test_caches_that_are_not_what_the_manifest_says_are_refused(exact: Bundle, narrow: Bundle, tmp_path: Path) -> None:
    for bundle, cache, kind in ((exact, "int8", "float"), (narrow, "float", "int8")):
        wrong = changed(bundle, tmp_path / cache, cache)
        with pytest.raises(BundleError, match=rf"graphs are tensor\({kind}\), but the manifest says {cache}"):
            Sessions(wrong, CPU, 1)
    with pytest.raises(BundleError, match="caches of 2 layers; expected 3"):
        Sessions(changed(exact, tmp_path / "layers", layers=3), CPU, 1)


def test_graphs_that_do_not_go_together_are_refused(exact: Bundle, narrow: Bundle) -> None:
    floats, integers = Sessions(exact, CPU, 1), Sessions(narrow, CPU, 1)
    with pytest.raises(BundleError, match=r"have caches of different types: tensor\(float\), tensor\(int8\)"):
        check_caches(narrow, floats.encoder, integers.decoder)


def test_integers_that_fail_the_check_give_way_to_floats(
    exact: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def check(work: BuildInput, bundle: Bundle, device: Device) -> ParityReport:
        checked.append(bundle.manifest.cache)
        if bundle.manifest.cache == "int8":
            raise CheckFailedError("the check failed", ParityReport({}, []))
        return ParityReport({"reference": "", "tolerance": 1, "largest_difference": 0, "scorer": {}, "choices": {}}, [])

    monkeypatch.setattr("dragoman_export.build._check", check)
    monkeypatch.setattr("dragoman_export.precision.quantization_search.are_faster", lambda *_: True)
    said: list[str] = []
    run = load_run(exact.path.parent / "run")
    options = ExportOptions("x", precision="int8", max_quality_loss=1000)
    bundle, _ = build(BuildInput(run, {"dev": run.dev_pairs()}, [], tmp_path, options, said.append))
    assert checked == ["float", "int8", "float"]
    assert bundle.manifest.cache == "float"
    assert any("back to floats" in line for line in said)
    asked = replace(options, cache="int8")
    work = BuildInput(
        run, {"dev": run.dev_pairs()}, run.dev_pairs()[:1], _empty(tmp_path / "asked"), asked, said.append
    )
    with pytest.raises(CheckFailedError) as raised:
        build(work)
    assert str(raised.value) == f"the check failed{short_data_note(work, exact)} (--cache float keeps floats)"


@pytest.mark.parametrize(
    ("source", "target", "told"),
    [
        (None, None, [("source", "", 9), ("target", "", 8)]),
        ("w5", "w5 w6 w7 w8", [("source", " and 2 in training", 9), ("target", " and 5 in training", 8)]),
        # As long as it gets, but still more than dev has.
        ("w5 " * 8, "w5 " * 7, [("source", " and 9 in training", 9), ("target", " and 8 in training", 8)]),
    ],
)
def test_integers_that_fail_say_how_short_the_texts_were(
    source: str | None, target: str | None, told: list[tuple[str, str, int]], exact: Bundle, tmp_path: Path
) -> None:
    run = load_run(exact.path.parent / "run")
    longest = [] if source is None or target is None else [Pair(source, target, tmp_path, 1)]
    work = BuildInput(run, {"dev": run.dev_pairs()}, longest, tmp_path, ExportOptions("x"), print)
    sentences = [
        f"the longest {side} has 4 tokens in dev{training}, and the limit is {limit}" for side, training, limit in told
    ]
    why = "scales that were found on short texts may not fit longer ones"
    assert short_data_note(work, exact) == f"; {'; '.join(sentences)}: {why}"


def test_integers_that_fail_on_long_texts_are_not_excused(exact: Bundle, tmp_path: Path) -> None:
    pairs = [Pair("w5 " * 8, "w5 " * 7, tmp_path, 1)]
    work = BuildInput(load_run(exact.path.parent / "run"), {"dev": pairs}, [], tmp_path, ExportOptions("x"), print)
    assert short_data_note(work, exact) == ""


def test_scales_are_found_on_the_longest_of_training_too(
    exact: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[int] = []

    def find(bundle: Bundle, feeds: Sequence[Feed], threads: int) -> dict[str, Floats]:
        shown.extend(feed["source_ids"].size for feed in feeds)
        return cache_peaks(bundle, feeds, threads)

    monkeypatch.setattr("dragoman_export.precision.quantization_search.cache_peaks", find)
    run = load_run(exact.path.parent / "run")
    options = ExportOptions("x", precision="int8", cache="int8", max_quality_loss=1000)
    longest = [Pair("w5 w6 w7 w8 w9 w10 w11 w12", "w5", tmp_path, 1)]
    build(BuildInput(run, {"dev": run.dev_pairs()}, longest, tmp_path, options, lambda _: None))
    assert shown == [4] * 8 + [9]


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder
