"""Export of whole runs: what stands in a bundle, and that no wrong one passes."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from typer.testing import CliRunner

from dragoman_export.bundle.onnx_files import WEIGHTS_FILE
from dragoman_export.bundle.write import write_files, write_manifest
from dragoman_export.checks.greedy_parity import is_tie
from dragoman_export.checks.offline_decoding import decode_greedily
from dragoman_export.checks.parity import BATCHES, check_bundle, check_scorer
from dragoman_export.checks.references import PERTURBED_MODELS, ScorerGraph, TorchReference
from dragoman_export.checks.report import CheckFailedError, ParityReport
from dragoman_export.checks.tolerance import allowed_difference, largest_difference
from dragoman_export.cli import app
from dragoman_export.errors import ExportError
from dragoman_export.export import ExportOptions, check, export_run
from dragoman_export.graphs import fold_model
from dragoman_export.graphs.folding import FoldedModel
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import MANIFEST_FILE, SpecialTokens
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.evaluation.evaluate import measure
from dragoman_training.evaluation.greedy import answer
from dragoman_training.model import Transformer
from dragoman_training.run.checkpoint import load_state, save_state
from dragoman_training.run.load import load_run
from tests.support.random_model import small_run

# As in T5 1.1: no bias, no scale but at the end, heads of a width of their own, and positions that are distances.
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


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """PyTorch's threads wait by spinning, which beside other tests on the same cores costs more than they bring."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("run") / "run", activation="gelu")


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    """Not to be changed; `damaged` makes copies."""
    notice = run.parent / "LICENSE.md"
    notice.write_text("Take it.")
    options = ExportOptions(
        name="small",
        version="7",
        description="nothing to learn",
        license="MIT",
        notices=[notice],
        examples=["w5 w6"],
        device="cpu",
    )
    export_run(run, run.parent / "bundle", options)
    return run.parent / "bundle"


def parity(bundle: Path) -> dict[str, Any]:
    return load_bundle(bundle).manifest.parity


def assert_passed(bundle: Path) -> None:
    document = parity(bundle)
    shape = load_bundle(bundle).manifest.limits
    sources = sorted({1, 2, 5, shape.max_source_tokens})
    assert [(case["rows"], case["source"]) for case in document["cases"]] == [(b, s) for b in BATCHES for s in sources]
    vocabulary = load_bundle(bundle).manifest.shape.target_vocabulary
    for case in document["cases"]:
        assert case["compared"] == case["rows"] * shape.max_target_tokens * vocabulary, "every step to the maximum"
        assert case["difference"] <= document["tolerance"] == 1e-4
        assert 0 < case["rounding"] < 1e-4
    assert all(difference <= 1e-4 for difference in document["scorer"].values())
    assert document["greedy"]["equal"] == document["greedy"]["sources"] > 0
    assert not document["not_checked"]


def test_bundle_is_whole(bundle: Path, run: Path) -> None:
    manifest = load_bundle(bundle).manifest
    assert (manifest.name, manifest.version, manifest.license) == ("small", "7", "MIT")
    assert manifest.examples == ["w5 w6"]
    assert manifest.attention == "ort"
    assert manifest.limits.max_source_tokens == 9
    assert manifest.limits.max_target_tokens == 8
    assert set(manifest.files) == {path.name for path in bundle.iterdir()} - {MANIFEST_FILE}
    assert (bundle / "LICENSE.md").read_text() == "Take it."
    assert manifest.tokenizers.source == manifest.tokenizers.target, "two alike tokenizers stand once"
    training = manifest.training
    assert training["recipe"]["model"]["d_model"] == 32
    assert training["steps_averaged"] == [0]
    dev = hashlib.sha256((run / "dev.tsv").read_bytes()).hexdigest()
    assert training["files"] == {"train.tsv": None, "dev.tsv": dev}, "the training data is gone"
    assert training["operators"]["decoder.onnx"]["GroupQueryAttention"] == 4
    assert set(manifest.parity["milliseconds"]["step"]) == {"1", "8", "32"}
    assert bundle.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in bundle.parent.iterdir() if path.name.startswith(".")] == []
    assert str(run.parent) not in (bundle / MANIFEST_FILE).read_text()


def test_parity_covers_all_batches_and_sources_to_the_maximum(bundle: Path) -> None:
    assert_passed(bundle)


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        ({"norm": "post", "positions": "learned", "share_embeddings": "all", "decoder_layers": 1}, "standard"),
        ({"activation": "swiglu", "share_embeddings": "none", "decoder_layers": 1, "max_source_length": 5}, "ort"),
        ({"d_model": 36, "heads": 3, "activation": "relu", "encoder_layers": 2}, "standard"),
        (T5, "ort"),
        (T5 | {"positions": "relative_per_layer", "share_embeddings": "inputs", "output_scale": False}, "standard"),
        (BART, "ort"),
    ],
)
def test_every_kind_of_model_passes(changes: dict[str, Any], attention: Any, tmp_path: Path) -> None:
    small_run(tmp_path / "run", **changes)
    export_run(tmp_path / "run", tmp_path / "bundle", ExportOptions(name="x", attention=attention, device="cpu"))
    assert_passed(tmp_path / "bundle")


def test_half_precision_says_what_the_cpu_can_not_tell(run: Path, tmp_path: Path) -> None:
    export_run(run, tmp_path / "bundle", ExportOptions(name="x", precision="fp16", max_quality_loss=100, device="cpu"))
    document = parity(tmp_path / "bundle")
    assert "fp16 on a GPU" in document["not_checked"][0]
    assert 1e-5 < document["largest_difference"] < document["tolerance"]
    size = (tmp_path / "bundle" / WEIGHTS_FILE).stat().st_size
    assert size < 0.6 * 4 * load_bundle(tmp_path / "bundle").manifest.shape.parameters
    loss = load_bundle(tmp_path / "bundle").manifest.loss
    assert loss["megabytes"]["fp16"] < loss["megabytes"]["fp32"]
    assert loss["finite"]


def test_bf16_is_checked_by_graphs_that_round(run: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    export_run(run, place, ExportOptions(name="x", precision="bf16", max_quality_loss=100))
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"], "what stood in for them is gone"
    manifest = load_bundle(place).manifest
    document = manifest.parity
    assert "no CPU runs" in document["not_checked"][0]
    assert 1e-3 < document["largest_difference"] < document["tolerance"]
    assert document["milliseconds"] == manifest.loss["step_time"] == {}, "of what stands in for them they tell nothing"
    assert manifest.loss["megabytes"]["bf16"] < manifest.loss["megabytes"]["fp32"]
    assert manifest.loss["finite"]
    graph = onnx.load(place / "decoder.onnx", load_external_data=False).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    assert types["self_key_0"] == onnx.TensorProto.BFLOAT16, "the bundle has the graphs in bf16"
    assert not check(place, run, "auto").failures
    assert not check(place, None, "cpu").failures
    with pytest.raises(ExportError, match="device cuda: "):
        check(place, run, "cuda")


@pytest.fixture(scope="module", params=[("int8", "float"), ("int8", "int8"), ("int4", "auto")], ids="-".join)
def narrow(request: pytest.FixtureRequest, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of integers; random weights give answers to near ties, of which many change."""
    place = tmp_path_factory.mktemp("narrow") / "bundle"
    precision, cache = request.param
    export_run(run, place, ExportOptions("x", precision=precision, cache=cache, max_quality_loss=100, device="cpu"))
    assert load_bundle(place).manifest.cache == ("int8" if cache == "int8" else "float")
    return place


def test_integers_say_what_they_cost_and_bring(narrow: Path, run: Path) -> None:
    manifest = load_bundle(narrow).manifest
    loss, precision = manifest.loss, manifest.precision
    assert loss["data"] == "dev"
    assert loss["sources"] == 8
    assert {f"dev {name}": values[precision] for name, values in loss["quality"].items()} == manifest.quality
    assert all(values.keys() == {"fp32", precision} for values in loss["quality"].values())
    assert loss["megabytes"][precision] < 0.75 * loss["megabytes"]["fp32"], "most of so small a bundle is no weights"
    assert loss["finite"]
    assert abs(loss["mean_log_probability"]["fp32"] - loss["mean_log_probability"][precision]) < 0.2
    assert set(loss["step_time"]) == {"1", "8", "32", "64"}
    assert loss["wider"] == {}
    operators = manifest.training["operators"]
    assert "Gemm" not in operators["encoder.onnx"]
    assert operators["decoder.onnx"]["Gemm"] == 1, "of the short list, whose rows are gathered"
    document = manifest.parity
    assert document["fp32"]["largest_difference"] <= 1e-4, "the graphs were checked before"
    assert document["reference"] == "scorer.onnx"
    assert document["largest_difference"] <= document["tolerance"]
    assert not check(narrow, run, "cpu").failures
    assert not check(narrow, None, "cpu").failures


def test_integers_are_checked_too(narrow: Path, tmp_path: Path) -> None:
    broken = damaged(narrow, tmp_path, edit("decoder.onnx", look_at_the_whole_source_buffer))
    assert "cached step and scorer.onnx" in failures(broken, None)


def test_more_loss_than_may_be_makes_no_bundle(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    options = ExportOptions(name="x", precision="int8", max_quality_loss=-1000, device="cpu")
    right = nearly_right(run, tmp_path / "run")
    with pytest.raises(ExportError, match="with up to 4 of the most sensitive weights in fp32") as raised:
        export_run(right, tmp_path / "bundle", options, said.append)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    tries = [line for line in said if "weights wider" in line]
    assert [line.split(" with ")[1].split()[0] for line in tries] == ["0", "1", "2", "4"]
    least = min((line.split()[-2] for line in tries), key=float)
    assert f"loses {least} points of quality or more" in str(raised.value), "of all that was tried"


def nearly_right(run: Path, copy: Path) -> Path:
    """A run whose random weights know the answers to dev: those are nearly what they write."""
    shutil.copytree(run, copy)
    known = load_run(run)
    sources = [pair.source for pair in known.dev_pairs()]
    answers = answer(known.model, known.source_tokenizer, known.target_tokenizer, sources)
    almost = {source: text.rsplit(" ", 1)[0] for source, text in answers.items()}  # and a token below the limit
    (copy / "dev.tsv").write_text("".join(f"{source}\t{text}\n" for source, text in almost.items()))
    return copy


def test_integers_for_a_gpu_are_refused_before_any_work(run: Path, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ExportError, match="device cuda: the model is int8, which is for CPUs"):
        export_run(run, tmp_path / "bundle", ExportOptions(name="x", precision="int8", device="cuda"), said.append)
    assert said == []
    assert list(tmp_path.iterdir()) == []


def damaged(bundle: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    """A changed copy whose manifest agrees with the change, so that only the check can find it."""
    copy = folder / "bundle"
    shutil.copytree(bundle, copy)
    change(copy)
    manifest = json.loads((copy / MANIFEST_FILE).read_text())
    for name, file in manifest["files"].items():
        content = (copy / name).read_bytes()
        file |= {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    (copy / MANIFEST_FILE).write_text(json.dumps(manifest))
    return copy


def edit(name: str, change: Callable[[onnx.GraphProto], None]) -> Callable[[Path], None]:
    """A change of one graph."""

    def apply(bundle: Path) -> None:
        model = onnx.load(bundle / name, load_external_data=False)
        change(model.graph)
        (bundle / name).write_bytes(model.SerializeToString())

    return apply


def attentions(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Self, cross, self, cross."""
    return [node for node in graph.node if node.op_type == "GroupQueryAttention"]


def swap_key_and_value_of_source_end(graph: onnx.GraphProto) -> None:
    node = attentions(graph)[1]
    node.input[1], node.input[2] = node.input[2], node.input[1]


def write_at_the_start(graph: onnx.GraphProto) -> None:
    own = attentions(graph)[0]
    nowhere = onnx.helper.make_node("Sub", [own.input[5], own.input[5]], ["nowhere"])
    own.input[5] = "nowhere"
    graph.node.insert(0, nowhere)


def look_at_the_whole_source_buffer(graph: onnx.GraphProto) -> None:
    cross = attentions(graph)[1]
    capacity = onnx.helper.make_node("Sub", ["cross_capacity", "one"], ["last_of_all"])
    zero = onnx.helper.make_node("Sub", [cross.input[5], cross.input[5]], ["no"])
    everywhere = onnx.helper.make_node("Add", ["no", "last_of_all"], ["everywhere"])
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), "one"))
    place = list(graph.node).index(cross)
    for i, node in enumerate((capacity, zero, everywhere)):
        graph.node.insert(place + i, node)
    next(n for n in graph.node if n.output[0] == cross.output[0]).input[5] = "everywhere"


def worst_first(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "TopK")
    node.attribute.append(onnx.helper.make_attribute("largest", 0))


def look_ahead(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in [a for a in node.attribute if a.name == "is_causal"]:
            node.attribute.remove(attribute)


def change_weights(factor: float) -> Callable[[Path], None]:
    def apply(bundle: Path) -> None:
        weights = np.fromfile(bundle / WEIGHTS_FILE, np.float32)
        start = weights.size // 2
        weights[start : start + 2048] *= np.float32(factor)
        weights.tofile(bundle / WEIGHTS_FILE)

    return apply


def failures(bundle: Path, model: Transformer | None) -> str:
    loaded = load_bundle(bundle)
    report = check_bundle(loaded, model, ["w5 w6 w7", "w8", "w9 w10"], CPU)
    return "\n".join(report.failures)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (change_weights(1.01), "cached step and PyTorch"),
        (change_weights(float("nan")), "differ by inf"),
        (edit("decoder.onnx", swap_key_and_value_of_source_end), "the cross buffer changed"),
        (edit("decoder.onnx", write_at_the_start), "a position of the self cache changed"),
        (edit("decoder.onnx", look_at_the_whole_source_buffer), "cached step and PyTorch"),
        (edit("decoder.onnx", worst_first), "greedy answers of graphs and PyTorch differ for"),
        (edit("scorer.onnx", look_ahead), "log_probabilities of the scorer and PyTorch differ"),
    ],
)
def test_broken_graph_fails_the_check(
    change: Callable[[Path], None], sentence: str, bundle: Path, run: Path, tmp_path: Path
) -> None:
    assert sentence in failures(damaged(bundle, tmp_path, change), load_run(run).model)


def test_graph_that_can_not_be_run_is_named_in_a_sentence(bundle: Path, run: Path, tmp_path: Path) -> None:
    def beyond_the_cache(graph: onnx.GraphProto) -> None:
        attentions(graph)[0].input[5] = "self_capacity"

    broken = damaged(bundle, tmp_path, edit("decoder.onnx", beyond_the_cache))
    with pytest.raises(ExportError, match=f"{broken}: the graphs do not run as the manifest says: "):
        failures(broken, load_run(run).model)


def test_more_is_allowed_only_where_the_model_itself_rounds_more() -> None:
    assert allowed_difference(1e-4, 3e-6) == 1e-4
    assert allowed_difference(1e-4, 2e-4) == pytest.approx(6e-4)
    assert allowed_difference(1e-4, float("nan")) == allowed_difference(1e-4, float("inf")) == 1e-4, (
        "a model that overflows proves nothing"
    )


class Rounds:
    """Stands for the scorer, and for PyTorch's models, each of which is wrong by a number of its own."""

    def __init__(self, *singles: float) -> None:
        self.precise, self.single_precision_models = 0.0, singles

    def scores(self, *given: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        wrong = given[0] if len(given) == 3 else self.single_precision_models[0]
        return np.full((1, 2), wrong, np.float32), np.zeros((1, 1), np.float32)


@pytest.mark.parametrize(
    ("difference", "refusal"),
    [
        (3.5e-4, None),
        (
            9.5e-4,
            "log_probabilities of the scorer and PyTorch differ by 0.00095; expected at most 0.0009, 3 times",
        ),
    ],
)
def test_one_pass_that_rounds_luckily_does_not_judge_the_scorer(
    difference: float, refusal: str | None, bundle: Path
) -> None:
    manifest = load_bundle(bundle).manifest
    scorer, trained = Rounds(difference), Rounds(3.2e-5, 3e-4, 1e-4)
    failures: list[str] = []
    check_scorer(manifest, cast(ScorerGraph, scorer), cast(TorchReference, trained), 1e-4, failures)
    said = [failure.partition(" the 0.0003 that rounding")[0] for failure in failures]
    assert said == ([] if refusal is None else [refusal])


@pytest.mark.parametrize(("rounding", "tie"), [(1e-6, False), (3e-4, True), (float("inf"), False)])
def test_answers_part_at_a_tie_where_rounding_may_settle_it(rounding: float, tie: bool) -> None:
    likely = np.log(np.array([0.1, 0.1, 0.1, 0.1, 0.30015, 0.29985]))  # 0.001 nats between the last two
    trained: Any = SimpleNamespace(
        tokens=SpecialTokens(pad=0, unknown=1, begin=2, end=3),
        log_probabilities=lambda _, targets: np.broadcast_to(likely, (1, targets.shape[1], likely.size)),
        rounding=lambda *_: rounding,
    )
    assert is_tie(trained, [5, 3], [5, 4], [5, 5, 5], 1e-4) == tie


@pytest.fixture(scope="module")
def chaotic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and beside it a bundle that was not checked, of a model that makes much of little: of rounding, too."""
    shape = {"decoder_layers": 1, "max_source_length": 20, "max_target_length": 20}
    run = small_run(tmp_path_factory.mktemp("chaotic") / "run", **shape)
    state = load_state(run / "model.pt")
    for name, weights in state["model"].items():
        if weights.dim() == 2 and "embedding" not in name and "output" not in name:
            weights *= 30
    save_state(run / "model.pt", state)
    bundle = run.parent / "bundle"
    bundle.mkdir()
    write_manifest(write_files(load_run(run), bundle, ExportOptions("x"), ["w5"]), bundle)
    return run


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda _: None, ""),
        (change_weights(1.01), "cached step and PyTorch"),
        (edit("decoder.onnx", look_at_the_whole_source_buffer), "cached step and PyTorch"),
        (edit("scorer.onnx", look_ahead), "log_probabilities of the scorer and PyTorch"),
    ],
)
def test_model_that_rounding_changes_much_passes_and_broken_graphs_of_it_fail(
    change: Callable[[Path], None], sentence: str, chaotic: Path, tmp_path: Path
) -> None:
    bundle = load_bundle(damaged(chaotic.parent / "bundle", tmp_path, change))
    report = check_bundle(bundle, load_run(chaotic).model, ["w5 w6 w7", "w8", "w9 w10"], CPU)
    assert report.document["largest_rounding"] > 1e-4 / 3, "the tolerance alone would not do"
    assert bool(report.failures) == bool(sentence), report.failures
    assert sentence in "\n".join(report.failures)


def test_rounding_is_seen_where_a_single_pass_shows_little(run: Path) -> None:
    """Attention that is almost a choice turns the last digit of a weight into much more."""
    model = load_run(run).model
    reference = TorchReference(model, SpecialTokens(pad=0, unknown=1, begin=2, end=3))
    passes = reference.single_precision_models
    assert passes[0] is model
    moved = next(passes[1].parameters())
    assert 0 < ((moved - next(model.parameters())).abs() / moved.abs().clamp(min=1e-9)).max() < 3e-7
    sources, targets = [[5, 6, 7, 3]], np.array([[5, 6, 7]])
    exact = reference.log_probabilities(sources, targets)
    single = largest_difference(reference.forward(model, sources, targets), exact)
    others = [largest_difference(reference.forward(each, sources, targets), exact) for each in passes[1:]]
    assert reference.rounding(sources, targets, exact) == max(single, *others) > 0
    first = [next(each.parameters()) for each in passes[1:]]
    assert len(first) == PERTURBED_MODELS
    assert not torch.equal(first[0], first[1]), "each is moved in its own way"


def test_sources_beyond_the_limit_are_not_a_comparison(bundle: Path, run: Path) -> None:
    report = check_bundle(load_bundle(bundle), load_run(run).model, ["w5 " * 9], CPU)
    assert report.failures == ["none of the 1 sources to compare greedy answers on is within the limit of 9 tokens"]


def test_bundle_checked_alone_passes(bundle: Path) -> None:
    report = check(bundle, None, "cpu")
    assert not report.failures
    assert report.document["reference"] == "scorer.onnx"
    assert report.document["largest_difference"] <= 1e-4
    assert "--run RUN" in report.document["not_checked"][0]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (edit("decoder.onnx", look_at_the_whole_source_buffer), "cached step and scorer.onnx"),
        (change_weights(-3), "greedy answers are not those of the manifest"),
    ],
)
def test_bundle_checked_alone_can_fail(
    change: Callable[[Path], None], sentence: str, bundle: Path, tmp_path: Path
) -> None:
    assert sentence in failures(damaged(bundle, tmp_path, change), None)


def test_command_line_checks_a_bundle_with_and_without_its_run(bundle: Path, run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["--check", str(bundle), "--run", str(run), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "largest difference" in result.output
    assert "not checked" not in result.output
    broken = damaged(bundle, tmp_path, change_weights(-3))
    result = CliRunner().invoke(app, ["--check", str(broken), "--device", "cpu"])
    assert result.exit_code == 1
    assert f"error: {broken} failed the check: " in result.stderr
    (broken / "scorer.onnx").unlink()
    result = CliRunner().invoke(app, ["--check", str(broken)])
    assert result.exit_code == 1
    assert "scorer.onnx is missing" in result.stderr


def in_place_of(name: str, content: Callable[[Path], bytes]) -> Callable[[Path], None]:
    """Another file under a name that the manifest lists."""

    def apply(bundle: Path) -> None:
        (bundle / name).write_bytes(content(bundle))

    return apply


def one_output_less(graph: onnx.GraphProto) -> None:
    graph.output.pop()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            in_place_of("decoder.onnx", lambda bundle: (bundle / "encoder.onnx").read_bytes()),
            "decoder.onnx has no input",
        ),
        (
            in_place_of("encoder.onnx", lambda bundle: (bundle / "scorer.onnx").read_bytes()),
            "encoder.onnx has an input",
        ),
        (
            in_place_of("scorer.onnx", lambda bundle: (bundle / "encoder.onnx").read_bytes()),
            "scorer.onnx has no input target_ids",
        ),
        (in_place_of("scorer.onnx", lambda _: b"no graph"), "scorer.onnx"),
        (in_place_of("decoder.onnx", lambda _: b""), "decoder.onnx"),
        (in_place_of(WEIGHTS_FILE, lambda bundle: (bundle / WEIGHTS_FILE).read_bytes()[:-4096]), ".onnx"),
        (in_place_of("source_tokenizer.json", lambda _: b"{}"), "source_tokenizer.json is not a tokenizer"),
        (edit("decoder.onnx", one_output_less), "decoder.onnx has no output"),
    ],
)
def test_check_of_a_bundle_whose_files_are_not_those_of_its_manifest(
    change: Callable[[Path], None], sentence: str, bundle: Path, run: Path, tmp_path: Path
) -> None:
    broken = damaged(bundle, tmp_path, change)
    for against in ([], ["--run", str(run)]):
        result = CliRunner().invoke(app, ["--check", str(broken), "--device", "cpu", *against])
        assert result.exit_code == 1
        assert isinstance(result.exception, SystemExit), result.exception
        [line] = [each for each in result.stderr.splitlines() if each.startswith("error: ")]
        assert sentence in line
        assert len(result.stderr.splitlines()) == 1, result.stderr


@pytest.mark.parametrize(
    ("part", "key", "value", "sentence"),
    [
        ("shape", "heads", 8, "{bundle}: the graphs do not run as the manifest says: ValueError: "),
        ("shape", "heads", 10**15, "cpu ran out of memory while checking {bundle}: "),
        ("shape", "d_head", 8, "{bundle}: the graphs do not run as the manifest says: ValueError: "),
        ("shape", "decoder_layers", 3, "{bundle}/decoder.onnx has caches of 2 layers; expected 3"),
        ("limits", "max_source_tokens", 500, "{bundle}: the graphs do not run as the manifest says: InvalidArgument: "),
        (None, "attention", "standard", "{bundle}: the graphs do not run as the manifest says: "),
        ("graphs", "scorer", {"file": "scorer.onnx", "inputs": [], "outputs": []}, "{bundle}/scorer.onnx has an input"),
        ("parity", "greedy", 5, "{bundle}/manifest.json: parity.greedy: "),
        ("parity", "greedy", {"answers": [["w5"]]}, "{bundle}/manifest.json: parity.greedy.answers.0.1: "),
        ("parity", "largest_rounding", "much", "{bundle}/manifest.json: parity.largest_rounding: "),
    ],
)
def test_check_of_a_bundle_whose_manifest_says_something_else(
    part: str | None, key: str, value: object, sentence: str, bundle: Path, tmp_path: Path
) -> None:
    def say_so(copy: Path) -> None:
        manifest = json.loads((copy / MANIFEST_FILE).read_text())
        (manifest[part] if part else manifest)[key] = value
        (copy / MANIFEST_FILE).write_text(json.dumps(manifest))

    broken = damaged(bundle, tmp_path, say_so)
    result = CliRunner().invoke(app, ["--check", str(broken), "--device", "cpu"])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert result.stderr.startswith("error: " + sentence.format(bundle=broken))
    assert result.stderr.count("\n") == 1


def test_run_that_the_bundle_was_not_made_of_is_refused(bundle: Path, run: Path, tmp_path: Path) -> None:
    other = small_run(tmp_path / "other", d_ff=128)
    with pytest.raises(ExportError, match="shapes of the models differ"):
        check(bundle, other, "cpu")
    later = tmp_path / "later"
    shutil.copytree(run, later)
    save_state(later / "model.pt", {"model": load_run(run).model.state_dict(), "steps": [1, 2]})
    with pytest.raises(ExportError, match=r"steps \[0\], but .* has those at \[1, 2\]"):
        check(bundle, later, "cpu")


def test_failed_export_leaves_nothing_and_an_older_bundle_as_it_was(
    bundle: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "bundles" / "small"
    shutil.copytree(bundle, place)
    before = {path: path.read_bytes() for path in place.iterdir()}

    def wrongly_folded(model: Transformer) -> FoldedModel:
        copy = fold_model(model)
        with torch.no_grad():
            next(copy.decoder.norm.parameters()).mul_(1.01)
        return copy

    monkeypatch.setattr("dragoman_export.bundle.write.fold_model", wrongly_folded)
    with pytest.raises(CheckFailedError, match="so no bundle was made: cached step and PyTorch") as raised:
        export_run(run, place, ExportOptions(name="small", overwrite=True, device="cpu"))
    assert isinstance(raised.value.report, ParityReport)
    assert {path: path.read_bytes() for path in place.iterdir()} == before
    assert list(place.parent.iterdir()) == [place]


def test_overwrite_replaces_all_of_an_older_bundle(bundle: Path, run: Path, tmp_path: Path) -> None:
    place = tmp_path / "bundles" / "small"
    shutil.copytree(bundle, place)
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


DEAF = """
import os, signal
from dragoman_export import cli, export

def deaf(*arguments, load_run=export.load_run):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except BaseException:  # as tracers have it
        pass
    return load_run(*arguments)

export.load_run = deaf
cli.main()
"""


def test_export_ends_though_a_library_swallows_what_the_signal_raised(run: Path, tmp_path: Path) -> None:
    command: list[str | Path] = [sys.executable, "-c", DEAF, run, tmp_path / "bundle", "--device", "cpu"]
    assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_quality_is_what_the_trained_model_has(tiny_run: Path, tiny_bundle: Path) -> None:
    manifest = load_bundle(tiny_bundle).manifest
    trained = load_run(tiny_run)
    expected = measure(
        trained.model,
        trained.source_tokenizer,
        trained.target_tokenizer,
        trained.dev_pairs(),
        trained.recipe.evaluation.metrics,
    )
    assert manifest.quality["dev exact match (%)"] == pytest.approx(expected["exact_match"].value, abs=0.5)
    assert manifest.quality["dev word error rate (%)"] == pytest.approx(expected["word_error_rate"].value, abs=0.5)
    assert manifest.quality["test exact match (%)"] > 80
    assert all(manifest.training["files"].values()), "sha256 of the files it was trained on"
    assert len(manifest.examples) == 6


def test_greedy_answers_do_not_depend_on_the_company(tiny_bundle: Path) -> None:
    bundle = load_bundle(tiny_bundle)
    texts = [str(n) for n in (7, 42, 310, 4207, 9999, 12, 5, 606, 88, 1)]
    sources = [encoding.ids for encoding in bundle.source_tokenizer.encode_batch(texts)]
    sessions = Sessions(bundle, CPU, 1)
    together = decode_greedily(Runtime(sessions, 4), sources)
    alone = [decode_greedily(Runtime(sessions, 1), [source])[0] for source in sources]
    assert together == alone
    assert bundle.target_tokenizer.decode(together[1]) == "forty two"


def test_run_of_another_vocabulary_has_two_tokenizers(tiny_bundle: Path) -> None:
    manifest = load_bundle(tiny_bundle).manifest
    assert manifest.tokenizers.source != manifest.tokenizers.target
    assert manifest.shape.source_vocabulary != manifest.shape.target_vocabulary
