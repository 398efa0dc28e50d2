"""The parity check: it passes sound bundles and finds every kind of damage, with and without the trained model."""

import copy
import re
import shutil
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

from dragoman_export.bundle.write import write_files, write_manifest
from dragoman_export.checks.converted import Perturbation, converted, double
from dragoman_export.checks.greedy_parity import is_tie
from dragoman_export.checks.offline_decoding import decode_greedily
from dragoman_export.checks.parity import check_bundle, check_scorer, expect_scores
from dragoman_export.checks.references import PERTURBED_MODELS, ScorerGraph, TorchReference
from dragoman_export.checks.tolerance import allowed_difference, largest_difference
from dragoman_export.cli import app
from dragoman_export.errors import ExportError
from dragoman_export.export import ExportOptions, check, export_run
from dragoman_export.graphs.onnx_model import WEIGHTS_FILE
from dragoman_export.run_data import read_run
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.run.checkpoint import load_state, save_state
from dragoman_training.run.load import load_run
from tests.support.bundles import Change, altered_copy, edit_graph, edit_manifest
from tests.support.random_model import small_run

pytestmark = pytest.mark.usefixtures("shared_graphs")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture(scope="module")
def bundle(run: Path) -> Path:
    export_run(run, run.parent / "bundle", ExportOptions(name="small", device="cpu"))
    return run.parent / "bundle"


@pytest.fixture(scope="module", params=[("int8", "float"), ("int8", "int8"), ("int4", "auto")], ids="-".join)
def quantized(request: pytest.FixtureRequest, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized bundle. Random weights give answers at near ties, many of which change."""
    place = tmp_path_factory.mktemp("quantized") / "bundle"
    precision, cache = request.param
    export_run(run, place, ExportOptions("x", precision=precision, cache=cache, max_quality_loss=100, device="cpu"))
    assert load_bundle(place).manifest.cache == ("int8" if cache == "int8" else "float")
    return place


@pytest.fixture(scope="module")
def chaotic_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model that amplifies rounding, and beside it an unchecked bundle."""
    shape = {"decoder_layers": 1, "max_source_length": 20, "max_target_length": 20}
    run = small_run(tmp_path_factory.mktemp("chaotic") / "run", **shape)
    state = load_state(run / "model.pt")
    for name, weights in state["model"].items():
        if weights.dim() == 2 and "embedding" not in name and "output" not in name:
            weights *= 30
    save_state(run / "model.pt", state)
    bundle = run.parent / "bundle"
    bundle.mkdir()
    write_manifest(write_files(read_run(run, print), bundle, ExportOptions("x"), ["w5"]), bundle)
    return run


def failures(bundle: Path, model: Transformer | None) -> str:
    report = check_bundle(load_bundle(bundle), model, ["w5 w6 w7", "w8", "w9 w10"], CPU)
    return "\n".join(report.failures)


def attentions(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Self, cross, self, cross."""
    return [node for node in graph.node if node.op_type == "GroupQueryAttention"]


def swap_key_and_value_of_source_end(graph: onnx.GraphProto) -> None:
    node = attentions(graph)[1]
    node.input[1], node.input[2] = node.input[2], node.input[1]


def write_at_the_start(graph: onnx.GraphProto) -> None:
    own = attentions(graph)[0]
    zero = onnx.helper.make_node("Sub", [own.input[5], own.input[5]], ["zero_positions"])
    own.input[5] = "zero_positions"
    graph.node.insert(0, zero)


def attend_to_the_whole_source_buffer(graph: onnx.GraphProto) -> None:
    cross = attentions(graph)[1]
    capacity = onnx.helper.make_node("Sub", ["cross_capacity", "one"], ["last_position"])
    zero = onnx.helper.make_node("Sub", [cross.input[5], cross.input[5]], ["zero_positions"])
    everywhere = onnx.helper.make_node("Add", ["zero_positions", "last_position"], ["everywhere"])
    graph.initializer.append(numpy_helper.from_array(np.array(1, np.int32), "one"))
    place = list(graph.node).index(cross)
    for i, node in enumerate((capacity, zero, everywhere)):
        graph.node.insert(place + i, node)
    next(n for n in graph.node if n.output[0] == cross.output[0]).input[5] = "everywhere"


def write_beyond_the_cache(graph: onnx.GraphProto) -> None:
    attentions(graph)[0].input[5] = "self_capacity"


def sort_worst_first(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "TopK")
    node.attribute.append(onnx.helper.make_attribute("largest", 0))


def attend_ahead(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in [a for a in node.attribute if a.name == "is_causal"]:
            node.attribute.remove(attribute)


def scale_weights(factor: float) -> Change:
    def change(bundle: Path) -> None:
        weights = np.fromfile(bundle / WEIGHTS_FILE, np.float32)
        start = weights.size // 2
        weights[start : start + 2048] *= np.float32(factor)
        weights.tofile(bundle / WEIGHTS_FILE)

    return change


WHOLE_SOURCE = edit_graph("decoder.onnx", attend_to_the_whole_source_buffer)
AHEAD = edit_graph("scorer.onnx", attend_ahead)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (scale_weights(1.01), "cached step and PyTorch"),
        (scale_weights(float("nan")), "differ by inf"),
        (edit_graph("decoder.onnx", swap_key_and_value_of_source_end), "the cross buffer changed"),
        (edit_graph("decoder.onnx", write_at_the_start), "a position of the self cache changed"),
        (WHOLE_SOURCE, "cached step and PyTorch"),
        (edit_graph("decoder.onnx", sort_worst_first), "greedy answers of graphs and PyTorch differ for"),
        (AHEAD, "log_probabilities of the scorer and PyTorch differ"),
    ],
)
def test_damaged_bundle_fails_the_check(change: Change, sentence: str, bundle: Path, run: Path, tmp_path: Path) -> None:
    assert sentence in failures(altered_copy(bundle, tmp_path / "bundle", change), load_run(run).model)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda _: None, ""),
        (scale_weights(1.01), "cached step and PyTorch"),
        (WHOLE_SOURCE, "cached step and PyTorch"),
        (AHEAD, "log_probabilities of the scorer and PyTorch"),
    ],
)
def test_model_that_amplifies_rounding_passes_and_damage_to_it_fails(
    change: Change, sentence: str, chaotic_run: Path, tmp_path: Path
) -> None:
    bundle = load_bundle(altered_copy(chaotic_run.parent / "bundle", tmp_path / "bundle", change))
    report = check_bundle(bundle, load_run(chaotic_run).model, ["w5 w6 w7", "w8", "w9 w10"], CPU)
    assert report.document["largest_rounding"] > 1e-4 / 10, "the tolerance alone would not be enough"
    assert bool(report.failures) == bool(sentence), report.failures
    assert sentence in "\n".join(report.failures)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda _: None, ""),
        (WHOLE_SOURCE, "cached step and scorer.onnx"),
        (scale_weights(-3), "greedy answers are not those of the manifest"),
    ],
)
def test_check_without_the_model_compares_step_and_scorer(
    change: Change, sentence: str, bundle: Path, tmp_path: Path
) -> None:
    report = check(altered_copy(bundle, tmp_path / "bundle", change), None, "cpu")
    assert report.document["reference"] == "scorer.onnx"
    assert "--run RUN" in report.document["not_checked"][0]
    assert bool(report.failures) == bool(sentence), report.failures
    assert sentence in "\n".join(report.failures)
    assert sentence or report.document["largest_difference"] <= 1e-4


def test_quantized_bundles_report_their_cost_and_are_checked_too(quantized: Path, run: Path, tmp_path: Path) -> None:
    manifest = load_bundle(quantized).manifest
    loss, precision = manifest.loss, manifest.precision
    assert loss["data"] == "dev"
    assert loss["sources"] == 8
    assert {f"dev {name}": values[precision] for name, values in loss["quality"].items()} == manifest.quality
    assert all(values.keys() == {"fp32", precision} for values in loss["quality"].values())
    assert loss["megabytes"][precision] < 0.75 * loss["megabytes"]["fp32"], "little of so small a bundle is weights"
    assert loss["finite"]
    assert abs(loss["mean_log_probability"]["fp32"] - loss["mean_log_probability"][precision]) < 0.2
    assert set(loss["step_time"]) == {"1", "8", "32", "64"}
    assert loss["wider"] == {}
    operators = manifest.training["operators"]
    assert "Gemm" not in operators["encoder.onnx"]
    shortlists = 0 if precision == "int8" else 1  # products in fp32; int8 multiplies integers there, too
    assert operators["decoder.onnx"].get("Gemm", 0) == shortlists
    document = manifest.parity
    assert document["fp32"]["largest_difference"] <= 1e-4, "the graphs were checked in fp32 first"
    assert document["reference"] == "scorer.onnx"
    assert document["largest_difference"] <= document["tolerance"]
    assert not check(quantized, run, "cpu").failures
    assert not check(quantized, None, "cpu").failures
    broken = altered_copy(quantized, tmp_path / "bundle", WHOLE_SOURCE)
    assert "cached step and scorer.onnx" in failures(broken, None)


def test_greedy_answers_need_a_source_within_the_limit(bundle: Path, run: Path) -> None:
    report = check_bundle(load_bundle(bundle), load_run(run).model, ["w5 " * 9], CPU)
    assert report.failures == ["none of the sources to compare greedy answers on is within the limit of 9 tokens"]


def test_run_that_the_bundle_was_not_made_of_is_refused(bundle: Path, run: Path, tmp_path: Path) -> None:
    other = small_run(tmp_path / "other", d_ff=128)
    with pytest.raises(ExportError, match="shapes of the models differ"):
        check(bundle, other, "cpu")
    later = tmp_path / "later"
    shutil.copytree(run, later)
    save_state(later / "model.pt", {"model": load_run(run).model.state_dict(), "steps": [1, 2]})
    with pytest.raises(ExportError, match=r"steps \[0\], but .* has those at \[1, 2\]"):
        check(bundle, later, "cpu")


def test_command_line_checks_a_bundle_against_its_run(bundle: Path, run: Path) -> None:
    result = CliRunner().invoke(app, ["--check", str(bundle), "--run", str(run), "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "largest difference" in result.output
    assert "not checked" not in result.output


def put(name: str, content: Callable[[Path], bytes]) -> Change:
    def change(bundle: Path) -> None:
        (bundle / name).write_bytes(content(bundle))

    return change


def set_field(*path: str, value: object) -> Change:
    def edit(document: dict[str, Any]) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return edit_manifest(edit)


DO_NOT_RUN = "{bundle}: the graphs do not run as the manifest says: "


@pytest.mark.parametrize(
    ("change", "sentence", "arguments"),
    [
        (change, sentence, arguments)
        for change, sentence in (
            (put("decoder.onnx", lambda bundle: (bundle / "encoder.onnx").read_bytes()), ".*decoder.onnx has no input"),
            (put("encoder.onnx", lambda bundle: (bundle / "scorer.onnx").read_bytes()), ".*encoder.onnx has an input"),
            (put("scorer.onnx", lambda bundle: (bundle / "encoder.onnx").read_bytes()), ".*has no input target_ids"),
            (put("scorer.onnx", lambda _: b"no graph"), ".*scorer.onnx"),
            (put("decoder.onnx", lambda _: b""), ".*decoder.onnx"),
            (put(WEIGHTS_FILE, lambda bundle: (bundle / WEIGHTS_FILE).read_bytes()[:-4096]), r".*\.onnx"),
            (put("source_tokenizer.json", lambda _: b"{}"), ".*source_tokenizer.json is not a tokenizer"),
            (edit_graph("decoder.onnx", lambda graph: graph.output.pop()), ".*decoder.onnx has no output"),
        )
        for arguments in ([], ["--run"])
    ]
    + [
        (edit_graph("decoder.onnx", write_beyond_the_cache), DO_NOT_RUN, ["--run"]),
        (scale_weights(-3), "{bundle} failed the check: ", []),
        (lambda bundle: (bundle / "scorer.onnx").unlink(), ".*scorer.onnx is missing", []),
        (set_field("shape", "heads", value=8), f"{DO_NOT_RUN}ValueError: ", []),
        (set_field("shape", "heads", value=10**15), "cpu ran out of memory while checking {bundle}: ", []),
        (set_field("shape", "d_head", value=8), f"{DO_NOT_RUN}ValueError: ", []),
        (set_field("shape", "decoder_layers", value=3), "{bundle}/decoder.onnx has caches of 2 layers; expected 3", []),
        (set_field("limits", "max_source_tokens", value=500), f"{DO_NOT_RUN}InvalidArgument: ", []),
        (set_field("attention", value="standard"), DO_NOT_RUN, []),
        (
            set_field("graphs", "scorer", value={"file": "scorer.onnx", "inputs": [], "outputs": []}),
            "{bundle}/scorer.onnx has an input",
            [],
        ),
        (set_field("parity", "greedy", value=5), "{bundle}/manifest.json: parity.greedy: ", []),
        (
            set_field("parity", "greedy", value={"answers": [["w5"]]}),
            "{bundle}/manifest.json: parity.greedy.answers.0.1: ",
            [],
        ),
        (
            set_field("parity", "largest_rounding", value="much"),
            "{bundle}/manifest.json: parity.largest_rounding: ",
            [],
        ),
    ],
)
def test_command_line_reports_a_damaged_bundle_in_one_sentence(
    change: Change, sentence: str, arguments: list[str], bundle: Path, run: Path, tmp_path: Path
) -> None:
    broken = altered_copy(bundle, tmp_path / "bundle", change)
    run_arguments = ["--run", str(run)] if arguments else []
    result = CliRunner().invoke(app, ["--check", str(broken), "--device", "cpu", *run_arguments])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit), result.exception
    assert re.match(f"error: {sentence.format(bundle=broken)}", result.stderr), result.stderr
    assert result.stderr.count("\n") == 1


def test_more_is_allowed_only_if_the_model_itself_rounds_more() -> None:
    assert allowed_difference(1e-4, 3e-6) == 1e-4
    assert allowed_difference(1e-4, 2e-4) == pytest.approx(2e-3)
    for overflow in (float("nan"), float("inf")):
        assert allowed_difference(1e-4, overflow) == 1e-4


class ConstantScorer:
    """Replaces the scorer, or PyTorch's models, of which each is wrong by a constant."""

    def __init__(self, *errors: float) -> None:
        self.precise, self.single_precision_models = 0.0, errors

    def scores(self, *arguments: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        error = arguments[0] if len(arguments) == 3 else self.single_precision_models[0]
        return np.full((1, 2), error, np.float32), np.zeros((1, 1), np.float32)


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (9.5e-4, []),
        (3.5e-3, ["log_probabilities of the scorer and PyTorch differ by 0.0035; expected at most 0.003, 10 times"]),
    ],
)
def test_scorer_is_judged_by_the_worst_of_several_passes(difference: float, expected: list[str], bundle: Path) -> None:
    scorer, trained = ConstantScorer(difference), ConstantScorer(3.2e-5, 3e-4, 1e-4)
    found: list[str] = []
    scores = expect_scores(load_bundle(bundle).manifest, cast(TorchReference, trained))
    check_scorer(cast(ScorerGraph, scorer), scores, 1e-4, found)
    assert [failure.partition(" the 0.0003 that rounding")[0] for failure in found] == expected


@pytest.mark.parametrize(("rounding", "tie"), [(1e-6, False), (3e-4, True), (float("inf"), False)])
def test_answers_may_differ_at_a_tie_within_the_rounding(rounding: float, tie: bool) -> None:
    values = np.log(np.array([0.1, 0.1, 0.1, 0.1, 0.30015, 0.29985]))  # 0.001 nats between the last two
    trained: Any = SimpleNamespace(
        tokens=SpecialTokens(pad=0, unknown=1, begin=2, end=3),
        log_probabilities=lambda _, targets: np.broadcast_to(values, (1, targets.shape[1], values.size)),
        rounding=lambda *_: rounding,
    )
    assert is_tie(trained, [5, 3], [5, 4], [5, 5, 5], 1e-4) == tie


def test_rounding_is_the_worst_of_perturbed_models(run: Path) -> None:
    model = load_run(run).model
    reference = TorchReference(model, SpecialTokens(pad=0, unknown=1, begin=2, end=3))
    models = reference.single_precision_models
    assert models[0] is reference.trained
    assert len(models) == 1 + PERTURBED_MODELS
    sources, targets = [[5, 6, 7, 3]], np.array([[5, 6, 7]])
    exact = reference.log_probabilities(sources, targets)
    differences = [largest_difference(reference.forward(each, sources, targets), exact) for each in models]
    assert reference.rounding(sources, targets, exact) == max(differences) > 0


def test_converted_models_compute_with_converted_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows at a time, as for large models."""
    monkeypatch.setattr("dragoman_export.checks.converted.MOST_NUMBERS", 100)
    shape = {"d_model": 32, "heads": 2, "d_ff": 48, "encoder_layers": 1, "decoder_layers": 1, "share_embeddings": "all"}
    config = ModelConfig.model_validate(shape | {"max_source_length": 5, "max_target_length": 4})
    model = Transformer(config, 11, 11, 0).eval()
    inputs = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 5, 6]])
    expected = copy.deepcopy(model).double()(*inputs)
    precise = converted(model, double)
    assert torch.allclose(precise(*inputs), expected, rtol=1e-12, atol=1e-12)
    assert all(
        weight.data_ptr() in {w.data_ptr() for w in model.parameters()}
        for weight in precise.parameters()
        if weight.ndim > 1
    )
    perturbation = Perturbation(0)
    moved, again = (perturbation(torch.ones(7, 13), 5) for _ in range(2))
    assert torch.equal(moved, again)
    assert set((moved - 1).flatten().tolist()) == {2**-23, -(2**-23)}
    assert not torch.equal(moved, perturbation(torch.ones(7, 13), 6)), "other places are moved otherwise"
    assert not torch.equal(moved, Perturbation(1)(torch.ones(7, 13), 5))


def test_greedy_answers_do_not_depend_on_other_rows(tiny_bundle: Path) -> None:
    bundle = load_bundle(tiny_bundle)
    texts = [str(n) for n in (7, 42, 310, 4207, 9999, 12, 5, 606, 88, 1)]
    sources = [encoding.ids for encoding in bundle.source_tokenizer.encode_batch(texts)]
    sessions = Sessions(bundle, CPU, 1)
    together = decode_greedily(Runtime(sessions, 4), sources)
    alone = [decode_greedily(Runtime(sessions, 1), [source])[0] for source in sources]
    assert together == alone
    assert bundle.target_tokenizer.decode(together[1]) == "forty two"


def test_many_rows_of_a_large_vocabulary_have_shorter_targets(
    bundle: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_bundle(bundle)
    most, vocabulary = loaded.manifest.limits.max_target_tokens, loaded.manifest.shape.target_vocabulary
    monkeypatch.setattr("dragoman_export.checks.affordable.MOST_LOGITS", most * vocabulary)
    report = check_bundle(loaded, load_run(run).model, ["w5 w6 w7"], CPU)
    assert not report.failures
    assert {case.compared for case in report.cases if case.rows == 1} == {most * vocabulary}
    assert {case.compared for case in report.cases if case.rows == 3} == {3 * (most // 3) * vocabulary}
