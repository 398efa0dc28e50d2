"""Exports of whole runs: what bundles hold for every kind of model and precision, and what a failed export leaves."""

import hashlib
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from dragoman_export.bundle import write
from dragoman_export.bundle.onnx_files import DECODER, Models
from dragoman_export.checks.parity import BATCHES
from dragoman_export.checks.report import CheckFailedError, ParityReport
from dragoman_export.errors import ExportError
from dragoman_export.export import ExportOptions, check, export_run
from dragoman_export.graphs.onnx_model import WEIGHTS_FILE
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import MANIFEST_FILE
from dragoman_training.evaluation.answers import answer
from dragoman_training.evaluation.evaluate import measure
from dragoman_training.run.load import load_run
from tests.support.random_model import small_run

pytestmark = pytest.mark.usefixtures("shared_graphs")

# As in T5 1.1: no bias, no scale but at the end, heads of their own width, and relative positions.
T5 = {
    "heads": 3,
    "d_head": 8,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "activation": "geglu_tanh",
    "bias": False,
    "scaled_attention": False,
    "norm_kind": "rms",
    "norm_epsilon": 1e-6,
    "positions": "relative",
    "relative_buckets": 8,
    "relative_max_distance": 6,
    "embedding_scale": False,
    "share_embeddings": "all",
    "output_scale": True,
}
# As in BART, and a decoder of another shape.
BART = {
    "norm": "post",
    "activation": "gelu",
    "positions": "learned",
    "embedding_scale": False,
    "embedding_norm": "sum",
    "decoder_embedding_norm": "tokens",
    "share_embeddings": "all",
    "decoder_heads": 4,
    "decoder_d_ff": 24,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    notice = run.parent / "LICENSE.md"
    notice.write_text("Take it.")
    options = ExportOptions(
        name="small",
        version="7",
        description="nothing to learn",
        license="MIT",
        notices=[notice],
        examples=["w5 w6"],
        carry_text=True,
        device="cpu",
    )
    export_run(run, run.parent / "bundle", options)
    return run.parent / "bundle"


def assert_passed(bundle: Path) -> None:
    """The check covered all batch sizes and source lengths, every step up to the maximum."""
    manifest = load_bundle(bundle).manifest
    document, limits = manifest.parity, manifest.limits
    sources = sorted({1, 2, 5, limits.max_source_tokens})
    assert [(case["rows"], case["source"]) for case in document["cases"]] == [(b, s) for b in BATCHES for s in sources]
    for case in document["cases"]:
        assert case["compared"] == case["rows"] * limits.max_target_tokens * manifest.shape.target_vocabulary
        assert case["difference"] <= document["tolerance"] == 1e-4
        assert 0 < case["rounding"] < 1e-4
    assert all(difference <= 1e-4 for difference in document["scorer"].values())
    assert document["greedy"]["equal"] == document["greedy"]["sources"] > 0
    assert not document["not_checked"]


def test_bundle_holds_files_provenance_and_passed_check(bundle: Path, run: Path) -> None:
    assert_passed(bundle)
    manifest = load_bundle(bundle).manifest
    assert (manifest.name, manifest.version, manifest.license) == ("small", "7", "MIT")
    assert manifest.examples == ["w5 w6"]
    assert (manifest.carries_text, manifest.format_version) == (True, 6)
    assert manifest.attention == "ort"
    assert manifest.limits.max_source_tokens == 9
    assert manifest.limits.max_target_tokens == 8
    assert set(manifest.files) == {path.name for path in bundle.iterdir()} - {MANIFEST_FILE}
    assert (bundle / "LICENSE.md").read_text() == "Take it."
    assert manifest.tokenizers.source == manifest.tokenizers.target, "a shared tokenizer is stored once"
    training = manifest.training
    assert training["recipe"]["model"]["d_model"] == 32
    assert training["steps_averaged"] == [0]
    dev = hashlib.sha256((run / "dev.tsv").read_bytes()).hexdigest()
    assert training["files"] == {"train.tsv": None, "dev.tsv": dev}, "the training data no longer exists"
    assert training["operators"]["decoder.onnx"]["GroupQueryAttention"] == 4
    assert set(manifest.parity["milliseconds"]["step"]) == {"1", "8", "32"}
    assert bundle.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in bundle.parent.iterdir() if path.name.startswith(".")] == []
    assert str(run.parent) not in (bundle / MANIFEST_FILE).read_text()


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        ({"activation": "swiglu", "share_embeddings": "none", "decoder_layers": 1, "max_source_length": 5}, "ort"),
        (T5, "ort"),
        (T5 | {"positions": "relative_per_layer", "share_embeddings": "inputs", "output_scale": False}, "standard"),
        (BART | {"d_model": 36, "heads": 3, "activation": "relu"}, "standard"),
    ],
)
def test_every_kind_of_model_passes(changes: dict[str, Any], attention: Any, tmp_path: Path) -> None:
    small_run(tmp_path / "run", **changes)
    export_run(tmp_path / "run", tmp_path / "bundle", ExportOptions(name="x", attention=attention, device="cpu"))
    assert_passed(tmp_path / "bundle")


def test_fp16_reports_what_a_cpu_cannot_check(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "bundle", ExportOptions(name="x", precision="fp16", max_quality_loss=100, device="cpu"))
    manifest = load_bundle(tmp_path / "bundle").manifest
    document, loss = manifest.parity, manifest.loss
    assert "fp16 on a GPU" in document["not_checked"][0]
    assert 1e-5 < document["largest_difference"] < document["tolerance"]
    assert (tmp_path / "bundle" / WEIGHTS_FILE).stat().st_size < 0.6 * 4 * manifest.shape.parameters
    assert loss["megabytes"]["fp16"] < loss["megabytes"]["fp32"]
    assert loss["finite"]


def test_bf16_is_checked_by_emulated_graphs(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    export_run(run, place, ExportOptions(name="x", precision="bf16", max_quality_loss=100))
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"], "the emulated graphs are deleted"
    manifest = load_bundle(place).manifest
    document = manifest.parity
    assert "no CPU runs" in document["not_checked"][0]
    assert 1e-3 < document["largest_difference"] < document["tolerance"]
    assert document["milliseconds"] == manifest.loss["step_time"] == {}, "times of emulated graphs mean nothing"
    assert manifest.loss["megabytes"]["bf16"] < manifest.loss["megabytes"]["fp32"]
    assert manifest.loss["finite"]
    graph = onnx.load(place / "decoder.onnx", load_external_data=False).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    assert types["self_key_0"] == onnx.TensorProto.BFLOAT16, "the bundle has the graphs in bf16"
    assert not check(place, run, "auto").failures
    assert not check(place, None, "cpu").failures
    with pytest.raises(ExportError, match="device cuda: "):
        check(place, run, "cuda")


def test_too_much_loss_makes_no_bundle(run: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    options = ExportOptions(name="x", precision="int8", max_quality_loss=-1000, device="cpu")
    right = nearly_right(run, tmp_path / "run")
    with pytest.raises(ExportError, match="with up to 4 of the most sensitive weights in fp32") as raised:
        export_run(right, tmp_path / "bundle", options, lines.append)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    tries = [line for line in lines if "weights wider" in line]
    assert [line.split(" with ")[1].split()[0] for line in tries] == ["0", "1", "2", "4"]
    least = min((line.split()[-2] for line in tries), key=float)
    assert f"loses {least} points of quality or more" in str(raised.value), "the least of all tries"


def nearly_right(run: Path, copy: Path) -> Path:
    """A run whose references in dev are nearly what its random weights answer."""
    shutil.copytree(run, copy)
    known = load_run(run)
    sources = [pair.source for pair in known.dev_pairs()]
    answers = answer(known.model, known.tokenizers, sources)
    almost = {source: text.rsplit(" ", 1)[0] for source, text in answers.items()}  # and a token below the limit
    (copy / "dev.tsv").write_text("".join(f"{source}\t{text}\n" for source, text in almost.items()))
    return copy


def test_integers_for_a_gpu_are_refused_before_any_work(run: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(ExportError, match="device cuda: the model is int8, which is for CPUs"):
        export_run(run, tmp_path / "bundle", ExportOptions(name="x", precision="int8", device="cuda"), lines.append)
    assert lines == []
    assert list(tmp_path.iterdir()) == []


def test_failed_export_leaves_nothing_and_an_older_bundle_unchanged(
    bundle: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "bundles" / "small"
    shutil.copytree(bundle, place)
    before = {path: path.read_bytes() for path in place.iterdir()}

    def trace_wrongly(*arguments: Any, sound: Any = write.trace_graphs) -> Models:
        graphs: Models = sound(*arguments)
        [gain] = [each for each in graphs[DECODER].graph.initializer if each.name == "decoder.norm.weight"]
        gain.CopyFrom(graphs[DECODER].new_tensor(gain.name, graphs[DECODER].values(gain) * np.float32(1.01)))
        return graphs

    monkeypatch.setattr(write, "trace_graphs", trace_wrongly)
    with pytest.raises(CheckFailedError, match="so no bundle was made: cached step and PyTorch") as raised:
        export_run(run, place, ExportOptions(name="small", overwrite=True, device="cpu"))
    assert isinstance(raised.value.report, ParityReport)
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    assert list(place.parent.iterdir()) == [place]


def test_overwrite_replaces_the_whole_bundle(bundle: Path, run: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundles" / "small"
    place.mkdir(parents=True)
    for name in (MANIFEST_FILE, "LICENSE.md"):
        shutil.copy(bundle / name, place)
    export_run(run, place, ExportOptions(name="newer", overwrite=True, device="cpu"))
    assert load_bundle(place).manifest.name == "newer"
    assert not (place / "LICENSE.md").exists()
    assert list(place.parent.iterdir()) == [place]


def test_terminated_export_leaves_nothing_behind(run: Path, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("dragoman-export")
    process = subprocess.Popen([program, run, tmp_path / "bundle", "--device", "cpu"], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, "the export did not begin"
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


SWALLOW_SIGNAL = """
import os, signal
from dragoman_export import cli, export

def swallow(*arguments, read_run=export.read_run):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:  # as tracers do
        pass
    return read_run(*arguments)

export.read_run = swallow
cli.main()
"""


def test_export_ends_although_a_library_swallows_the_signals_exception(run: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-c", SWALLOW_SIGNAL, run, tmp_path / "bundle", "--device", "cpu"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_trained_run_is_exported_with_its_quality_and_two_tokenizers(tiny_run: Path, tiny_bundle: Path) -> None:
    manifest = load_bundle(tiny_bundle).manifest
    trained = load_run(tiny_run)
    expected = measure(
        trained.model,
        trained.tokenizers,
        trained.dev_pairs(),
        trained.recipe.evaluation.metrics,
    ).scores
    assert manifest.quality["dev exact match (%)"] == pytest.approx(expected["exact_match"].value, abs=0.5)
    assert manifest.quality["dev word error rate (%)"] == pytest.approx(expected["word_error_rate"].value, abs=0.5)
    assert manifest.quality["test exact match (%)"] > 80
    assert all(manifest.training["files"].values()), "SHA-256 of the files it was trained on"
    assert len(manifest.examples) == 6
    assert manifest.tokenizers.source != manifest.tokenizers.target
    assert manifest.shape.source_vocabulary != manifest.shape.target_vocabulary
