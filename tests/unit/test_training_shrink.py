"""Smaller models of trained ones: what is computed without loss, what is left out, and what is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.tokenizers import OWN_IDS, PAD_ID
from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.run.load import load_run
from dragoman_training.shrink.activity import measure_activity
from dragoman_training.shrink.command import main
from dragoman_training.shrink.layers import drop_layers
from dragoman_training.shrink.narrow import narrow
from tests.support.random_model import SMALL, VOCABULARY, random_model, small_run
from tests.support.training import run_training, small_recipe

BASE = SMALL | {"heads": 4, "d_ff": 48, "encoder_layers": 2, "share_embeddings": "none", "dropout": 0.0}


@pytest.fixture
def pairs() -> list[EncodedPair]:
    torch.manual_seed(3)
    rows = torch.randint(5, VOCABULARY, (200, 2, 7)).tolist()
    return [EncodedPair(source[: 2 + i % 6], target[: 1 + i % 7]) for i, (source, target) in enumerate(rows)]


def model_of(**changes: object) -> Transformer:
    """Returns a random model in which no weight has the value that it would start training with."""
    model = random_model(ModelConfig.model_validate(BASE | changes), VOCABULARY, seed=1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model


def narrowed(model: Transformer, pairs: Sequence[EncodedPair], **sizes: Any) -> Transformer:
    """Returns a smaller model."""
    before = model.config
    after = before.model_copy(update={"d_head": before.encoder_layer.d_head, **sizes})
    found = narrow(model.state_dict(), before, after, measure_activity(model, pairs, 500, OWN_IDS))
    small = Transformer(after, VOCABULARY, VOCABULARY, PAD_ID)
    small.load_state_dict(found.weights)
    return small.eval()


@torch.no_grad()
def assert_same(one: Transformer, other: Transformer, tolerance: float = 1e-3) -> None:
    source, target = torch.randint(5, VOCABULARY, (2, 4, 6))
    source[0, 4:] = PAD_ID
    torch.testing.assert_close(one(source, target), other(source, target), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_kind": "rms"},
        {"norm_kind": "rms", "bias": False},
        {"positions": "learned"},
        {"positions": "sinusoidal_halves", "embedding_scale": False},
        {"activation": "swiglu", "output_bias": True},
        {"share_embeddings": "inputs", "scaled_attention": False, "d_head": 5},
    ],
    ids=str,
)
def test_at_the_same_size_nothing_is_lost(changes: dict[str, Any], pairs: list[EncodedPair]) -> None:
    model = model_of(**changes)
    same = narrowed(model, pairs)
    assert_same(same, model)
    torch.testing.assert_close(
        same.state_dict()["encoder.norm.weight"], torch.ones(32)
    )  # the matrices have taken it in


@torch.no_grad()
def test_a_shared_output_layer_keeps_its_norm(pairs: list[EncodedPair]) -> None:
    model = model_of(share_embeddings="all")
    model.get_parameter("decoder.norm.weight").fill_(0.7)  # with equal weights nothing is lost
    same = narrowed(model, pairs)
    assert_same(same, model)
    assert same.decoder.projection.weight is same.encoder.embedding.tokens.weight


@torch.no_grad()
def test_dimensions_that_are_not_used_cost_nothing(pairs: list[EncodedPair]) -> None:
    # A stream without sinusoids that stays in 19 of 32 dimensions, in a rotated basis.
    model = model_of(positions="learned")
    torch.manual_seed(5)
    basis = torch.linalg.qr(torch.cat([torch.ones(32, 1), torch.randn(32, 19)], 1))[0][:, 1:]
    onto = basis @ basis.T
    for name, weight in model.named_parameters():
        if name.endswith(("embedding.tokens.weight", "embedding.positions")):
            weight.copy_(weight @ onto)
        elif name.endswith(("output.weight", "output.bias", "contract.weight", "contract.bias")):
            weight.copy_(onto @ weight)
    assert_same(narrowed(model, pairs, d_model=20), model)


@torch.no_grad()
def test_heads_and_units_without_effect_are_left_out(pairs: list[EncodedPair]) -> None:
    model = model_of()
    for name, weight in model.named_parameters():
        if name.endswith("attention.output.weight"):
            weight[:, 8:16] = 0  # the second of four heads
        elif name.endswith("contract.weight"):
            weight[:, ::2] = 0
    small = narrowed(model, pairs, heads=3, d_ff=24)
    assert_same(small, model)
    name = "encoder.layers.0.feed_forward.expand.weight"
    assert small.get_parameter(name).shape == (24, 32)
    assert_same(narrowed(model, pairs, d_ff=24), model)
    assert model.get_parameter(name).shape == (48, 32)  # the model itself stays


@torch.no_grad()
def test_units_that_are_left_do_the_work_of_the_others(pairs: list[EncodedPair]) -> None:
    model = model_of()
    for name, weight in model.named_parameters():
        if ".expand." in name:
            weight[24:] = weight[:24]  # the same units twice
        elif name.endswith(".contract.weight"):
            weight[:, 24:] *= 0.03  # those that matter less
    assert_same(narrowed(model, pairs, d_ff=24), model)


@pytest.mark.parametrize("gated", [False, True])
def test_what_is_left_out_matters_little(gated: bool, pairs: list[EncodedPair]) -> None:
    model = model_of(activation="geglu" if gated else "relu")
    source, target = torch.randint(5, VOCABULARY, (2, 50, 6))
    small = narrowed(model, pairs, heads=3, d_ff=36, d_model=28)
    with torch.no_grad():
        expected, found = model(source, target).log_softmax(-1), small(source, target).log_softmax(-1)
        torch.manual_seed(1)
        other = Transformer(small.config, VOCABULARY, VOCABULARY, PAD_ID)(source, target).log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean()
    assert divergence < 0.6 * (expected.exp() * (expected - other)).sum(-1).mean()


def test_the_command_writes_a_run_to_start_from(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    run_training(small_recipe("model.encoder_layers=2", "model.decoder_layers=2", "model.d_model=32"), teacher)
    out = tmp_path / "runs" / "small"
    sizes = ["--d-model", "16", "--d-ff", "12", "--encoder-layers", "1", "--decoder-layers", "1"]
    assert main([str(teacher), str(out), *sizes]) == 0
    small = load_run(out)
    model = small.recipe.model
    assert (model.d_model, model.heads, model.d_head, model.d_ff) == (16, 1, None, 12)
    assert (model.encoder_layers, model.decoder_layers) == (1, 1)
    assert small.provenance["finished"]
    report = json.loads((out / "report.json").read_text())["shrunk"]
    assert report["run"] == "teacher"
    assert [len(report["encoder_layers"]), len(report["decoder_layers"])] == [1, 1]
    assert 0 < report["kept_of_streams"] < 1
    assert report["loss"]["before"] > 0
    assert (out / "dev.tsv").read_bytes() == (teacher / "dev.tsv").read_bytes()
    changes = ["model.d_model=16", "model.heads=1", "model.d_ff=12"]
    _, printed = run_training(small_recipe(*changes), tmp_path / "student", init_from=out)
    assert "starting from the weights and tokenizers" in printed


@torch.no_grad()
def test_the_layers_that_are_missed_least_are_left_out() -> None:
    model = model_of(encoder_layers=3, decoder_layers=3)
    for name, weight in model.named_parameters():
        if name.startswith(("encoder.layers.1.", "decoder.layers.0.")) and (".output." in name or ".contract." in name):
            weight.zero_()  # these layers do nothing
    source, target = torch.randint(5, VOCABULARY, (2, 4, 6))
    expected = model(source, target)

    def loss() -> float:
        return float((model(source, target) - expected).abs().max())

    lines: list[str] = []
    assert drop_layers(model, 2, 2, loss, lines.append) == ([0, 2], [1, 2])
    assert lines == ["encoder layer 1 left out: loss 0.000", "decoder layer 0 left out: loss 0.000"]
    encoder, decoder = drop_layers(model, 1, 1, loss, lines.append)
    assert (len(model.encoder.layers), len(encoder), len(model.decoder.layers), len(decoder)) == (1, 1, 1, 1)
    assert loss() > 0


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        ({"norm": "post"}, [], "model.norm is post; only models with pre can be made smaller"),
        ({"positions": "relative"}, [], "model.positions is relative; only absolute ones"),
        ({"embedding_norm": "sum"}, [], "model.embedding_norm is sum; only models with none"),
        ({"bias": False}, [], "model.bias is false; with LayerNorm, only models with biases"),
        ({}, ["--d-model", "64"], "--d-model: expected 1 to 32, as in"),
        ({}, ["--d-model", "15"], "the smaller model: Value error, d_model (15) must be even"),
        ({}, ["--encoder-layers", "0"], "--encoder-layers: expected 1 to 2"),
        ({}, ["--pairs", "none.tsv"], "none.tsv: cannot be read"),
    ],
)
def test_what_cannot_be_shrunk_is_refused(
    changes: dict[str, Any], arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = small_run(tmp_path / "run", **changes)
    assert main([str(run), str(tmp_path / "out"), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_is_not_replaced_and_needs_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, empty = small_run(tmp_path / "run"), tmp_path / "empty.tsv"
    empty.write_text("")
    for arguments, message in (
        ([run], "already exists"),
        ([tmp_path / "out", "--pairs", empty], "empty.tsv: expected pairs, source<TAB>target, that fit the model"),
        ([tmp_path / "out"], "has no dev set; name a file of source<TAB>target lines with --pairs"),
    ):
        if message.startswith("has no"):
            (run / "dev.tsv").unlink()
        assert main([str(run), *map(str, arguments)]) == 1
        assert message in capsys.readouterr().err
