"""The model: attention against its worked example, each switch against the library that has it, masks and sharing."""

from itertools import product
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention, T5LayerNorm

from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.attention import MultiHeadAttention, scaled_dot_product_attention
from dragoman_training.model.dropout import Dropout
from dragoman_training.model.feed_forward import Activation, FeedForward
from dragoman_training.model.layers import build_norm
from dragoman_training.model.positions import RelativePositions, sinusoids

VOCABULARY = 11
SHAPE = {
    "d_model": 16,
    "heads": 2,
    "d_ff": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "max_source_length": 12,
    "max_target_length": 12,
}


def build(**changes: Any) -> Transformer:
    torch.manual_seed(1)
    return Transformer(ModelConfig(**{**SHAPE, "dropout": 0.0, **changes}), VOCABULARY, VOCABULARY, pad=0)


def assert_learns(model: Transformer) -> None:
    """Asserts that every parameter gets a gradient, and that the loss of copying one batch falls."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    source = torch.randint(4, VOCABULARY, (6, 5))
    target = torch.cat([torch.full((6, 1), 2), source[:, :-1]], 1)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(source, target).flatten(0, 1), source.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


# Attention


def worked_example() -> tuple[MultiHeadAttention, Tensor]:
    """docs/attention-worked-example.md: one head of width 4, W_Q = I, all of W_K 0.5 and of W_V 0.25; X [1, 5, 4]."""
    attention = MultiHeadAttention(4, 1, bias=False)
    with torch.no_grad():
        attention.query.weight.copy_(torch.eye(4))
        attention.key_value.weight.copy_(torch.cat([torch.full((4, 4), 0.5), torch.full((4, 4), 0.25)]))
        attention.output.weight.copy_(torch.eye(4))
    return attention, torch.cat([torch.full((1, 4), 0.5), torch.eye(4)])[None]


def test_attention_worked_example() -> None:
    attention, x = worked_example()
    output, weights = attention(x, return_weights=True)
    assert weights is not None
    # The scaled scores are 1 and 0.5 in the first row, 0.5 and 0.25 in the others.
    first = torch.tensor([1.0, 0.5, 0.5, 0.5, 0.5]).exp()
    others = torch.tensor([0.5, 0.25, 0.25, 0.25, 0.25]).exp()
    torch.testing.assert_close(weights[0, 0], torch.stack([first / first.sum()] + [others / others.sum()] * 4))
    # The page prints four digits.
    torch.testing.assert_close(weights[0, 0, 0, :2], torch.tensor([0.2919, 0.1770]), atol=1e-4, rtol=0)
    torch.testing.assert_close(weights[0, 0, 1, :2], torch.tensor([0.2430, 0.1892]), atol=1e-4, rtol=0)
    torch.testing.assert_close(output[0, 0], torch.full((4,), 0.3230), atol=1e-4, rtol=0)
    torch.testing.assert_close(output[0, 1:], torch.full((4, 4), 0.3108), atol=1e-4, rtol=0)
    fused, no_weights = attention(x)
    assert no_weights is None
    torch.testing.assert_close(fused, output)


@pytest.mark.parametrize("mask_kind", ["none", "causal", "padding"])
def test_fused_attention_equals_unfused(mask_kind: str) -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(3, 2, 5, 8) for _ in range(3))
    mask = torch.arange(5) < torch.tensor([5, 2, 1])[:, None, None, None] if mask_kind == "padding" else None
    causal = mask_kind == "causal"
    fused, _ = scaled_dot_product_attention(query, key, value, mask, causal=causal)
    unfused, weights = scaled_dot_product_attention(query, key, value, mask, causal=causal, return_weights=True)
    assert weights is not None
    torch.testing.assert_close(fused, unfused)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5))
    if causal:
        assert (weights.triu(1) == 0).all()
    if mask is not None:
        assert (weights[2, :, :, 1:] == 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_score_bias_fused_equals_unfused(causal: bool) -> None:
    attention = MultiHeadAttention(8, 2, 6, scaled=False)
    x, bias = torch.randn(3, 5, 8), torch.randn(2, 5, 5)
    mask = None if causal else torch.arange(5) < torch.tensor([5, 3, 4])[:, None, None, None]
    fused, _ = attention(x, mask=mask, bias=bias, causal=causal)
    unfused, weights = attention(x, mask=mask, bias=bias, causal=causal, return_weights=True)
    torch.testing.assert_close(fused, unfused)
    assert not torch.allclose(fused, attention(x, mask=mask, causal=causal)[0])
    if causal:
        assert not weights.triu(1).any()


def test_heads_must_divide_width() -> None:
    with pytest.raises(ValueError, match=r"d_model \(10\) must be divisible by heads \(4\)"):
        MultiHeadAttention(10, 4)


# Components against the libraries whose models have them


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20)])
def test_relative_buckets_equal_t5(bidirectional: bool, buckets: int, max_distance: int) -> None:
    relative = RelativePositions(2, buckets, max_distance, bidirectional=bidirectional)
    distance = torch.arange(-300, 301)
    expected = T5Attention._relative_position_bucket(distance, bidirectional, buckets, max_distance)
    assert torch.equal(relative.bucket(distance), expected)
    bias = relative(5, 7)
    assert bias.shape == (2, 5, 7)
    assert bias[1, 4, 2] == relative.table.weight[relative.bucket(torch.tensor(-2)), 1]


def test_sinusoids_equal_paper_marian_and_fairseq() -> None:
    table = sinusoids(50, 16)
    torch.testing.assert_close(table[0], torch.tensor([0.0, 1.0] * 8))
    torch.testing.assert_close(table[7, 4], torch.tensor(7 / 10_000 ** (4 / 16)).sin())
    torch.testing.assert_close(table[7, 5], torch.tensor(7 / 10_000 ** (4 / 16)).cos())
    marian = MarianSinusoidalPositionalEmbedding(50, 16)
    marian.weight.data = marian.create_weight()
    torch.testing.assert_close(sinusoids(50, 16, "sinusoidal_halves"), marian.weight.data)
    m2m = M2M100SinusoidalPositionalEmbedding(60, 16, padding_idx=1)
    torch.testing.assert_close(sinusoids(50, 16, "sinusoidal_fairseq"), m2m.weights[2:52], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "transformers_name", "gated"),
    [
        ("relu", "relu", False),
        ("gelu", "gelu", False),
        ("gelu_tanh", "gelu_new", False),
        ("silu", "swish", False),
        ("reglu", "relu", True),
        ("geglu", "gelu", True),
        ("geglu_tanh", "gelu_new", True),
        ("swiglu", "silu", True),
    ],
)
def test_activations_equal_transformers(name: Activation, transformers_name: str, gated: bool) -> None:
    layer = FeedForward(4, 6, name, bias=False)
    x = torch.randn(3, 4)
    first, *value = layer.expand(x).chunk(2 if gated else 1, -1)
    hidden = ACT2FN[transformers_name](first) * (value[0] if gated else 1)
    torch.testing.assert_close(layer(x), hidden @ layer.contract.weight.T)


def test_rms_norm_equals_t5() -> None:
    norm, expected = build_norm(8, "rms", 1e-6), T5LayerNorm(8, eps=1e-6)
    norm.weight.data = expected.weight.data = torch.randn(8)
    x = 3 + torch.randn(5, 8)
    torch.testing.assert_close(norm(x), expected(x))


def test_dropout_keeps_mean_and_follows_seed() -> None:
    dropout = Dropout(0.25)
    torch.manual_seed(3)
    first = dropout(torch.ones(100_000))
    torch.manual_seed(3)
    assert torch.equal(first, dropout(torch.ones(100_000)))
    assert not torch.equal(first, dropout(torch.ones(100_000)))
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert first.mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(dropout.eval()(torch.ones(10)), torch.ones(10))


# The assembled model


@pytest.mark.parametrize(
    "switches",
    [
        *(
            {"norm": norm, "positions": positions, "share_embeddings": share, "dropout": 0.1}
            for norm, positions, share in product(("pre", "post"), ("sinusoidal", "learned"), ("none", "output", "all"))
        ),
        *(
            {"activation": activation, "norm": norm, "dropout": 0.1}
            for activation, norm in product(("gelu", "swiglu"), ("pre", "post"))
        ),
        {"positions": "relative", "norm": "pre", "norm_kind": "rms", "bias": False, "embedding_scale": False},
        {"positions": "relative_per_layer", "scaled_attention": False, "activation": "geglu_tanh"},
        {"positions": "learned", "embedding_norm": "sum", "decoder_embedding_norm": "tokens"},
        {"positions": "sinusoidal_fairseq", "d_head": 6, "decoder_heads": 3, "decoder_d_ff": 8},
        {"share_embeddings": "inputs", "positions": "sinusoidal_halves"},
        {"share_embeddings": "all", "output_scale": True},
    ],
    ids=lambda switches: "-".join(map(str, switches.values())),
)
def test_every_switch_trains(switches: dict[str, Any]) -> None:
    assert_learns(build(**switches))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_source_padding_has_no_effect(norm: str) -> None:
    model = build(norm=norm).eval()
    source, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 5, 6]])
    longer = torch.tensor([[4, 5, 6, 7, 8, 9, 10, 3]])
    batch = torch.cat([F.pad(source, (0, 4)), longer])
    together = model(batch, target.expand(2, -1))
    torch.testing.assert_close(together[:1], model(source, target))
    torch.testing.assert_close(together[1:], model(longer, target))
    for weights in model.attention(batch, target.expand(2, -1)):
        assert (weights[0, :, :, 4:] == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 3))


def test_decoder_is_causal() -> None:
    model = build().eval()
    source = torch.tensor([[5, 6, 7, 3]])
    target, changed = torch.tensor([[2, 5, 6, 7]]), torch.tensor([[2, 5, 9, 10]])
    torch.testing.assert_close(model(source, target)[:, :2], model(source, changed)[:, :2])
    assert not torch.allclose(model(source, target)[:, 2:], model(source, changed)[:, 2:])


@pytest.mark.parametrize(
    ("share", "output_is_target", "source_is_target"),
    [("none", False, False), ("output", True, False), ("inputs", False, True), ("all", True, True)],
)
def test_shared_embeddings(share: str, output_is_target: bool, source_is_target: bool) -> None:
    model = build(share_embeddings=share)
    target_table = model.decoder.embedding.tokens.weight
    assert (model.decoder.projection.weight is target_table) == output_is_target
    assert (model.encoder.embedding.tokens.weight is target_table) == source_is_target
    if source_is_target:
        with pytest.raises(ValueError, match="one joint vocabulary"):
            Transformer(model.config, 10, 11, pad=0)


def test_relative_positions_encode_order() -> None:
    model = build(positions="relative").eval()
    source, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 5]])
    assert not torch.allclose(model(source, target), model(source.flip(1), target))
    assert len(model.encoder.relative) == len(model.decoder.relative) == 1
    assert len(build(positions="relative_per_layer").encoder.relative) == 2


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"decoder_heads": 3}, r"d_model \(16\) must be divisible by decoder_heads \(3\)"),
        ({"relative_buckets": 6}, r"relative_buckets \(6\) must be a multiple of 4"),
        ({"relative_max_distance": 16}, r"relative_max_distance \(16\) must be at least 17"),
    ],
)
def test_invalid_shapes_are_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**{**SHAPE, **wrong})
