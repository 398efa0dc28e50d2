"""The model's switches, each held against the library in which published models have it."""

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers.activations import ACT2FN
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention, T5LayerNorm

from dragoman_training.model import ModelConfig
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.feed_forward import Activation, FeedForward
from dragoman_training.model.layers import build_norm
from dragoman_training.model.positions import RelativePositions, sinusoids
from tests.unit.test_training_model import SHAPE, assert_learns, build

torch.set_num_threads(1)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "reach"), [(32, 128), (8, 20)])
def test_buckets_are_those_of_t5(bidirectional: bool, buckets: int, reach: int) -> None:
    relative = RelativePositions(2, buckets, reach, bidirectional=bidirectional)
    distance = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional, buckets, reach)
    assert torch.equal(relative.bucket(distance), theirs)
    bias = relative(5, 7)
    assert bias.shape == (2, 5, 7)
    assert bias[1, 4, 2] == relative.table.weight[relative.bucket(torch.tensor(-2)), 1]


def test_sinusoids_are_those_of_marian_and_fairseq() -> None:
    marian = MarianSinusoidalPositionalEmbedding(50, 16)
    marian.weight.data = marian.create_weight()
    torch.testing.assert_close(sinusoids(50, 16, "sinusoidal_halves"), marian.weight.data)
    m2m = M2M100SinusoidalPositionalEmbedding(60, 16, padding_idx=1)
    torch.testing.assert_close(sinusoids(50, 16, "sinusoidal_fairseq"), m2m.weights[2:52], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("ours", "theirs", "gated"),
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
def test_activations(ours: Activation, theirs: str, gated: bool) -> None:
    layer = FeedForward(4, 6, ours, bias=False)
    x = torch.randn(3, 4)
    first, *value = layer.expand(x).chunk(2 if gated else 1, -1)
    hidden = ACT2FN[theirs](first) * (value[0] if gated else 1)
    torch.testing.assert_close(layer(x), hidden @ layer.contract.weight.T)


def test_root_mean_square_norm_is_that_of_t5() -> None:
    ours, theirs = build_norm(8, "rms", 1e-6), T5LayerNorm(8, eps=1e-6)
    weight = torch.randn(8)
    for norm in (ours, theirs):
        norm.weight.data = weight
    x = 3 + torch.randn(5, 8)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("causal", [False, True])
def test_a_bias_of_scores_is_the_same_fused_and_by_hand(causal: bool) -> None:
    attention = MultiHeadAttention(8, 2, 6, scaled=False)
    x, bias = torch.randn(3, 5, 8), torch.randn(2, 5, 5)
    mask = None if causal else torch.arange(5) < torch.tensor([5, 3, 4])[:, None, None, None]
    fused, _ = attention(x, mask=mask, bias=bias, causal=causal)
    by_hand, weights = attention(x, mask=mask, bias=bias, causal=causal, return_weights=True)
    torch.testing.assert_close(fused, by_hand)
    without = attention(x, mask=mask, causal=causal)[0]
    assert not torch.allclose(fused, without)
    if causal:
        assert not weights.triu(1).any()


@pytest.mark.parametrize(
    "switches",
    [
        {"positions": "relative", "norm": "pre", "norm_kind": "rms", "bias": False, "embedding_scale": False},
        {"positions": "relative_per_layer", "scaled_attention": False, "activation": "geglu_tanh"},
        {"positions": "learned", "embedding_norm": "sum", "decoder_embedding_norm": "tokens"},
        {"positions": "sinusoidal_fairseq", "d_head": 6, "decoder_heads": 3, "decoder_d_ff": 8},
        {"share_embeddings": "inputs", "positions": "sinusoidal_halves"},
        {"share_embeddings": "all", "output_scale": True},
    ],
    ids=lambda switches: "-".join(switches),
)
def test_every_switch_can_be_trained(switches: dict[str, Any]) -> None:
    assert_learns(build(**switches))


def test_relative_positions_know_the_order_and_nothing_of_the_place() -> None:
    model = build(positions="relative", share_embeddings="inputs").eval()
    assert model.encoder.embedding.tokens.weight is model.decoder.embedding.tokens.weight
    assert model.decoder.projection.weight is not model.decoder.embedding.tokens.weight
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
def test_shapes_that_make_no_sense(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelConfig(**{**SHAPE, **wrong})
