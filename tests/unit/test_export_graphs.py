"""The exported graphs: their interface and nodes, shared weights, half precision, folding, and the two-pass TopK."""

from collections import Counter
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from dragoman_export.bundle import write
from dragoman_export.bundle.onnx_files import DECODER, ENCODER, SCORER, Models, save_models
from dragoman_export.bundle.write import model_shape
from dragoman_export.graphs import DecoderStep, fold_model
from dragoman_export.graphs.folding import pad_vocabulary
from dragoman_export.graphs.interface import DTYPES, decoder_interface, keeps_weights
from dragoman_export.graphs.onnx_model import WEIGHTS_FILE, OnnxModel
from dragoman_export.graphs.packing import Packing
from dragoman_export.graphs.trace import count_operators, trace
from dragoman_export.graphs.two_pass_top_k import SMALLEST, block_width, padded_vocabulary, split_top_k
from dragoman_export.run_data import TOKENS
from dragoman_server.bundle.manifest import Attention, Precision, Shape
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.parts import position_table
from dragoman_training.run.load import Run, load_run
from tests.support.onnx_models import complete
from tests.support.random_model import small_run

pytestmark = pytest.mark.usefixtures("shared_graphs")

LAYERS = 2


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(small_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def ort_graphs(run: Run) -> Models:
    return traced(run, "fp32")


@pytest.fixture(scope="module")
def standard_graphs(run: Run) -> Models:
    return traced(run, "fp32", "standard")


def traced(run: Run, precision: Precision, attention: Attention = "ort") -> Models:
    """Returns graphs that other tests of exports need, too."""
    graphs: Models = write.trace_graphs(run.model, model_shape(run.model), TOKENS, attention, precision)
    return graphs


def trace_step(run: Run, attention: Attention, precision: Precision) -> OnnxModel:
    step = DecoderStep(fold_model(run.model).to(DTYPES[precision]), attention, keeps=keeps_weights(precision))
    return trace(step, decoder_interface(model_shape(run.model), precision, attention))


def copy_of(models: Models) -> Models:
    """Copies models, because `save_models` notes in them where it writes their weights."""
    return {name: model.copy() for name, model in models.items()}


def names(values: list[onnx.ValueInfoProto]) -> list[str]:
    return [value.name for value in values]


def test_inputs_and_outputs_have_the_order_the_server_binds(ort_graphs: Models, standard_graphs: Models) -> None:
    graph = ort_graphs[DECODER].graph
    head = ["rows", "scales", "k", "edit_ids", "edit_penalties", "edit_offsets"]
    short = ["short_list", "short_columns", "short_mask", *(f"short_{name}" for name in head)]
    kept = ["short_weights", "short_new", "short_places"]
    inputs = ["token_ids", "positions", "source_lengths", *head, *short, *kept, "attention_rows"]
    found = ["log_probabilities", "ids", "edited"]
    outputs = [*found, *(f"short_{name}" for name in found), "short_weights_out", "attention"]
    caches = [f"{buffer}_{part}_0" for buffer in ("self", "cross", "last") for part in ("key", "value")]
    first = [*inputs, "self_capacity", "cross_capacity", *caches]
    assert names(list(graph.input))[: len(first)] == first
    first = [*outputs, *(f"{name}_out" for name in caches[:4])]
    assert names(list(graph.output))[: len(first)] == first
    graph = standard_graphs[DECODER].graph
    first = [*inputs, *caches[:4]]
    assert names(list(graph.input))[: len(first)] == first
    written = [f"self_{part}_{i}_out" for i in range(LAYERS) for part in ("key", "value")]
    assert names(list(graph.output)) == [*outputs, *written]
    encoder = names(list(ort_graphs[ENCODER].graph.output))
    assert encoder[:4] == ["cross_key_0", "cross_value_0", "last_key_0", "last_value_0"]


def test_dimensions_that_vary_have_names_and_all_others_are_numbers(ort_graphs: Models) -> None:
    def shape(value: onnx.ValueInfoProto) -> list[str | int]:
        return [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]

    shapes = {
        value.name: shape(value) for value in [*ort_graphs[DECODER].graph.input, *ort_graphs[DECODER].graph.output]
    }
    assert shapes["token_ids"] == ["rows", 1]
    assert shapes["self_key_1"] == shapes["self_key_1_out"] == ["rows", 2, "self_positions", 16]
    assert shapes["cross_value_0"] == ["rows", 2, "cross_positions", 16]
    assert shapes["last_key_0"] == ["rows", 1, 32]
    assert shapes["ids"] == ["scored", "k"]
    assert shapes["edited"] == shapes["edit_offsets"] == ["scored", "edits"]
    assert shapes["short_ids"] == ["short", "short_k"]
    assert shapes["short_columns"] == shapes["short_mask"] == ["short", "own"]
    assert shapes["short_weights"] == shapes["short_weights_out"] == ["listed", 32]
    assert shapes["attention"] == ["attended", "cross_positions"]
    attention = ort_graphs[SCORER].graph.output[1]
    assert shape(attention) == ["rows", LAYERS, 2, "target", "source"]


def test_onnx_runtime_expects_the_shapes_that_are_declared(ort_graphs: Models) -> None:
    """ONNX Runtime warns on every run of a graph whose declared shapes differ from inferred ones."""
    for model in ort_graphs.values():
        declared = {
            value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            for value in model.graph.output
        }
        session = ort.InferenceSession(complete(model).SerializeToString(), providers=["CPUExecutionProvider"])
        assert {value.name: value.shape for value in session.get_outputs()} == declared


SUBLAYERS = Counter(Gelu=1, LayerNormalization=3, Add=3, Gemm=6)  # query, key and value in one; outputs; feed-forward
ENCODER_LAYER = Counter(Gelu=1, LayerNormalization=2, Add=2, Gemm=4, Attention=1, Gather=4, Reshape=2)
MEMORY_LAYER = Counter(Gather=2, Add=2)  # keys and values of a decoder layer
SCORER_LAYER = SUBLAYERS + MEMORY_LAYER + Counter(Attention=2, Split=1, Reshape=4, Concat=1, Unsqueeze=1)
STEP_LAYER: dict[Attention, Counter[str]] = {
    "ort": SUBLAYERS + Counter(GroupQueryAttention=2, Unsqueeze=2, Squeeze=2),
    "standard": SUBLAYERS + Counter(TensorScatter=2, Attention=2, Split=1, Reshape=4),
}
# What exists once: embeddings, packing, keys and values of all layers from one product, ...
ENCODER_REST = Counter(
    {"Add": 4, "Cast": 1, "CumSum": 1, "Gather": 2, "GatherElements": 2, "Gemm": 1, "Less": 1, "Min": 1, "Mul": 2}
    | {"LayerNormalization": 1, "NonZero": 1, "Range": 1, "Reshape": 4, "Shape": 1, "Squeeze": 2, "Sub": 2}
    | {"Transpose": 1, "Unsqueeze": 3}
)
LAST_POSITION = Counter(Sub=1, Gather=1, Split=1)
# ... and the head of a step: top tokens of the whole vocabulary and of shortlists, and attention to the source.
STEP_REST = Counter(
    {"Add": 4, "Cast": 1, "Div": 2, "Gather": 8, "GatherElements": 7, "Gemm": 2, "Greater": 2, "GreaterOrEqual": 1}
    | {"LayerNormalization": 1, "LogSoftmax": 2, "MatMul": 2, "Mul": 4, "Range": 1, "Reshape": 4, "ScatterElements": 2}
    | {"ScatterND": 1, "Shape": 1, "Softmax": 1, "Squeeze": 4, "Sub": 1, "TopK": 2, "Transpose": 1, "Where": 3}
)
STEP_FORM: dict[Attention, Counter[str]] = {"ort": Counter(Sub=1), "standard": Counter(Cast=2, Add=1)}
SCORER_REST = Counter(
    {"Add": 4, "Cast": 2, "Concat": 2, "CumSum": 1, "Equal": 1, "Gather": 6, "GatherElements": 3, "Gemm": 2}
    | {"Greater": 1, "GreaterOrEqual": 1, "LayerNormalization": 2, "Less": 1, "LogSoftmax": 1, "Min": 1, "Mul": 2}
    | {"NonZero": 1, "Pad": 1, "Range": 2, "Reshape": 8, "Shape": 3, "Slice": 1, "Softmax": 1, "Squeeze": 3, "Sub": 3}
    | {"Transpose": 1, "Unsqueeze": 4, "Where": 3}
)


def times(count: int, nodes: Counter[str]) -> Counter[str]:
    return Counter({operator: count * number for operator, number in nodes.items()})


def test_graphs_have_the_nodes_they_need_and_no_more(run: Run, ort_graphs: Models, standard_graphs: Models) -> None:
    """All nodes by operator. If an exporter writes them differently, inspect the graphs before changing the numbers."""
    model = run.recipe.model
    encoder, layers = times(model.encoder_layers, ENCODER_LAYER), model.decoder_layers
    whole_encoder = encoder + ENCODER_REST + times(layers, MEMORY_LAYER)
    assert count_operators(ort_graphs[ENCODER]) == whole_encoder + LAST_POSITION
    assert count_operators(ort_graphs[SCORER]) == encoder + SCORER_REST + times(layers, SCORER_LAYER)
    steps: dict[Attention, OnnxModel] = {"ort": ort_graphs[DECODER], "standard": standard_graphs[DECODER]}
    for form, step in steps.items():
        assert count_operators(step) == times(layers, STEP_LAYER[form]) + STEP_REST + STEP_FORM[form], form
    assert count_operators(standard_graphs[ENCODER]) == whole_encoder
    for graph in standard_graphs.values():
        assert {node.domain for node in graph.graph.node} == {""}, "only standard operators"


def test_graphs_hold_no_traces_of_the_machine(ort_graphs: Models) -> None:
    for model in ort_graphs.values():
        text = model.proto.SerializeToString()
        assert b".py" not in text
        assert b"site-packages" not in text
        assert b"torch.nn" not in text


def test_the_same_model_gives_the_same_files(run: Run, ort_graphs: Models, tmp_path: Path) -> None:
    again = trace_step(run, "ort", "fp32")
    for name, model in (("one", copy_of(ort_graphs)[DECODER]), ("two", again)):
        (tmp_path / name).mkdir()
        save_models({DECODER: model}, tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_three_graphs_share_one_copy_of_the_weights(run: Run, ort_graphs: Models, tmp_path: Path) -> None:
    models = copy_of(ort_graphs)
    save_models(models, tmp_path)
    parameters = sum(parameter.nbytes for parameter in run.model.parameters())
    stacks = run.model.encoder, run.model.decoder
    positions = sum(position_table(stack.embedding).nbytes for stack in stacks)
    size = (tmp_path / WEIGHTS_FILE).stat().st_size
    tensors = sum(1 for _ in run.model.parameters()) + 2
    assert size <= parameters + positions + 64 * tensors, "every tensor once, each on its cache line"
    for name in models:
        loaded = onnx.load(tmp_path / name)
        outside = [t for t in onnx.load(tmp_path / name, load_external_data=False).graph.initializer if t.external_data]
        assert outside
        for tensor in outside:
            assert {entry.key: entry.value for entry in tensor.external_data}["location"] == WEIGHTS_FILE
            assert tensor.data_type != TensorProto.INT64, (
                f"{tensor.name} may be a shape, which ONNX Runtime needs inside"
            )
        onnx.checker.check_model(loaded)


def half_step(run: Run, attention: Attention, precision: Precision) -> OnnxModel:
    if attention == "ort":
        return traced(run, precision)[DECODER]
    return trace_step(run, attention, precision)


@pytest.mark.parametrize(("attention", "precision"), [("ort", "fp16"), ("ort", "bf16"), ("standard", "bf16")])
def test_half_precision_keeps_softmax_and_norms_in_float(run: Run, attention: Attention, precision: Precision) -> None:
    graph = half_step(run, attention, precision).graph
    types = {value.name: value.type.tensor_type.elem_type for value in [*graph.input, *graph.output]}
    kind = onnx.TensorProto.FLOAT16 if precision == "fp16" else onnx.TensorProto.BFLOAT16
    assert types["self_key_0"] == types["cross_value_1"] == types["self_value_1_out"] == kind
    assert types["log_probabilities"] == onnx.TensorProto.FLOAT
    producers = {output: node for node in graph.node for output in node.output}
    for output in ("log_probabilities", "short_log_probabilities"):
        path = [output]
        while (node := producers[path[-1]]).op_type not in ("Cast", "Gemm"):
            path.append(node.input[0])
        assert node.op_type == "Cast", "everything after the logits is computed in float"
        assert [a.i for a in node.attribute if a.name == "to"] == [onnx.TensorProto.FLOAT]
    for node in graph.node:
        if node.op_type == "LayerNormalization":
            stash = [a.i for a in node.attribute if a.name == "stash_type"]
            assert stash in ([], [onnx.TensorProto.FLOAT]), "mean and variance are computed in float"
        if node.op_type == "Attention":
            assert [a.i for a in node.attribute if a.name == "softmax_precision"] == [onnx.TensorProto.FLOAT]


def test_bf16_encoder_runs_in_the_reference_evaluator(run: Run, ort_graphs: Models) -> None:
    """ONNX Runtime has no bf16 on CPUs; ONNX's own evaluator does."""
    encoder = traced(run, "bf16")[ENCODER]
    feed = {"source_ids": np.array([[4, 5, 6, 2], [7, 2, 0, 0]]), "source_lengths": np.array([4, 2], np.int32)}
    exact = ort.InferenceSession(complete(ort_graphs[ENCODER]).SerializeToString(), providers=["CPUExecutionProvider"])
    for found, expected in zip(
        ReferenceEvaluator(complete(encoder)).run(None, feed), exact.run(None, feed), strict=True
    ):
        assert str(found.dtype) == "bfloat16"
        np.testing.assert_allclose(found.astype(np.float32), expected, atol=0.1)


def test_attention_outputs_scores_that_cuda_supports(ort_graphs: Models) -> None:
    """On CUDA, ONNX Runtime 1.31 returns no weights, only the scores before the softmax (mode 0, the default)."""
    modes = [a.i for node in ort_graphs[SCORER].graph.node for a in node.attribute if a.name == "qk_matmul_output_mode"]
    assert set(modes) <= {0}


CONFIG = ModelConfig(
    d_model=32, heads=2, d_ff=48, encoder_layers=1, decoder_layers=1, max_source_length=5, max_target_length=4
)


@pytest.mark.parametrize("share", ["none", "output", "all"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_folding_changes_neither_the_model_nor_its_logits(
    share: Literal["none", "output", "all"], norm: Literal["pre", "post"]
) -> None:
    torch.manual_seed(0)
    model = Transformer(CONFIG.model_copy(update={"share_embeddings": share, "norm": norm}), 11, 11, 0).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copy = fold_model(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    ids = torch.tensor([[2, 7, 5]])
    places = torch.arange(3)
    assert torch.allclose(copy.encoder.embedding(ids, places), model.encoder.embedding(ids), atol=1e-6)
    assert torch.allclose(copy.decoder.embedding(ids, places), model.decoder.embedding(ids), atol=1e-6)
    tied = copy.decoder.projection.weight is copy.decoder.embedding.tokens.weight
    assert tied == (share != "none")
    x = torch.randn(3, 32)
    last = "decoder.norm" if norm == "pre" else "decoder.layers.0.residuals.2.norm"
    trained, exported = (m.decoder.projection(m.get_submodule(last)(x)) for m in (model, copy))
    assert torch.allclose(trained, exported, atol=1e-5)


def test_a_weight_that_is_also_an_embedding_keeps_its_layout(run: Run, ort_graphs: Models) -> None:
    weights = {t.name: ort_graphs[DECODER].values(t) for t in ort_graphs[DECODER].graph.initializer}
    shape: Shape = model_shape(run.model)
    tables = [w for w in weights.values() if w.shape == (shape.target_vocabulary, shape.d_model)]
    assert len(tables) == 1
    expected = run.model.decoder.embedding.tokens.weight.detach().numpy() * np.sqrt(shape.d_model)
    np.testing.assert_allclose(tables[0], expected, rtol=1e-6)


def test_packing_removes_and_restores_padding() -> None:
    lengths = torch.tensor([2, 4, 1])
    padded = torch.arange(12.0).reshape(3, 4, 1)
    packing = Packing(lengths, 4)
    packed = packing.pack(padded)
    assert packed.flatten().tolist() == packing.pack(padded[..., 0]).tolist() == [0, 1, 4, 5, 6, 7, 8]
    assert packing.positions.tolist() == [0, 1, 0, 1, 2, 3, 0]
    assert packing.last(packed).flatten().tolist() == [1, 7, 8]
    parts = packing.pad_parts(torch.cat([packed, -packed], 1), 2)
    heads = packing.pad_heads(torch.cat([packed, 2 * packed, -packed, -2 * packed], 1), 2, 2)  # [3, 2, 4, 1] each
    for sign, part, plane in zip((1, -1), parts, heads, strict=True):
        assert part.shape == padded.shape
        for row, length in enumerate(lengths.tolist()):
            assert torch.equal(part[row, :length], sign * padded[row, :length])
            assert torch.equal(plane[row, 0, :length], sign * padded[row, :length])
            assert torch.equal(plane[row, 1, :length], 2 * sign * padded[row, :length])


TOP_VOCABULARY = 4200
RANDOM = np.random.default_rng(0)


def top_k_graph(vocabulary: int) -> OnnxModel:
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["rows", vocabulary]), value("k", TensorProto.INT64, [1])]
    outputs = [
        value("log_probabilities", TensorProto.FLOAT, ["rows", "n"]),
        value("ids", TensorProto.INT64, ["rows", "n"]),
    ]
    node = helper.make_node("TopK", ["x", "k"], ["log_probabilities", "ids"], axis=-1)
    graph = helper.make_graph([node], "graph", inputs, outputs)
    return OnnxModel(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10))


@pytest.fixture(scope="module")
def two_passes() -> ort.InferenceSession:
    model = top_k_graph(TOP_VOCABULARY)
    split_top_k(model, TOP_VOCABULARY)
    assert count_operators(model)["ReduceMax"] == 1
    onnx.checker.check_model(complete(model))
    return ort.InferenceSession(complete(model).SerializeToString(), providers=["CPUExecutionProvider"])


def mostly_forbidden(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.where(RANDOM.random(x.shape) < 0.999, np.float32(-np.inf), x).astype(np.float32)


@pytest.mark.parametrize("k", [1, 5, 69, 70, 71, 600, TOP_VOCABULARY])
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("change", [None, np.round, mostly_forbidden, np.zeros_like])
def test_two_passes_find_the_same_in_the_same_order(
    two_passes: ort.InferenceSession, k: int, rows: int, change: object
) -> None:
    """Equal numbers included: the lowest id comes first."""
    x = RANDOM.standard_normal((rows, TOP_VOCABULARY)).astype(np.float32)
    if callable(change):
        x = change(x)
    values, ids = two_passes.run(None, {"x": x, "k": np.array([k])})
    expected = np.argsort(-x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(x, expected, 1))


@pytest.mark.parametrize(
    ("vocabulary", "width"), [(32_000, 160), (65_536, 256), (50_000, 200), (58_101, 181), (4_000, None), (65_537, None)]
)
def test_blocks_divide_the_vocabulary(vocabulary: int, width: int | None) -> None:
    assert block_width(vocabulary) == width


@pytest.mark.parametrize(
    ("vocabulary", "padded"), [(32_000, 32_000), (4_001, 4_001), (256_206, 256_512), (96_103, 96_256), (62_509, 62_720)]
)
def test_a_vocabulary_is_padded_until_blocks_divide_it(vocabulary: int, padded: int) -> None:
    assert padded_vocabulary(vocabulary) == padded
    assert block_width(padded) is not None or vocabulary < SMALLEST


def test_padding_of_the_vocabulary_is_never_chosen() -> None:
    torch.manual_seed(0)
    model = Transformer(CONFIG.model_copy(update={"share_embeddings": "all"}), 11, 11, 0).eval()
    model.decoder.forbid([3])
    folded = fold_model(model)
    pad_vocabulary(folded, 16)
    assert folded.encoder.embedding.tokens.weight is folded.decoder.projection.weight
    assert folded.decoder.embedding.tokens.weight is folded.decoder.projection.weight
    assert folded.decoder.logit_bias is not None
    assert folded.decoder.logit_bias.tolist() == [0.0] * 3 + [-np.inf] + [0.0] * 7 + [-np.inf] * 5
    x = torch.randn(2, 32)
    expected = fold_model(model).decoder.projection(x)
    assert torch.allclose(folded.decoder.projection(x)[:, :11], expected, atol=1e-5)
    assert model.decoder.projection.out_features == 11, "the model itself stays as it is"


def test_indivisible_vocabulary_keeps_one_pass() -> None:
    model = top_k_graph(65_537)
    before = complete(model).SerializeToString()
    split_top_k(model, 65_537)
    assert complete(model).SerializeToString() == before
