"""The assembled Transformer: every combination of its parts trains, masks hold, weights are shared as asked."""

from itertools import product
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from dragoman_training.model import ModelConfig, Transformer
from dragoman_training.model.dropout import Dropout
from dragoman_training.model.positions import sinusoids

torch.set_num_threads(1)

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
    config = ModelConfig(**{**SHAPE, "dropout": 0.0, **changes})
    return Transformer(config, VOCABULARY, VOCABULARY, pad=0)


@pytest.mark.parametrize(
    ("activation", "norm", "positions", "share"),
    list(product(("relu", "gelu", "swiglu"), ("pre", "post"), ("sinusoidal", "learned"), ("none", "output", "all"))),
)
def test_every_combination_learns(activation: str, norm: str, positions: str, share: str) -> None:
    model = build(activation=activation, norm=norm, positions=positions, share_embeddings=share, dropout=0.1)
    assert_learns(model)


def assert_learns(model: Transformer) -> None:
    """Every parameter has a gradient, and the loss falls on a batch that is copied."""
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


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_source_padding_changes_nothing(norm: str) -> None:
    model = build(norm=norm).eval()
    source, target = torch.tensor([[5, 6, 7, 3]]), torch.tensor([[2, 5, 6]])
    longer = torch.tensor([[4, 5, 6, 7, 8, 9, 10, 3]])
    batch = torch.cat([F.pad(source, (0, 4)), longer])
    together = model(batch, target.expand(2, -1))
    torch.testing.assert_close(together[:1], model(source, target))
    torch.testing.assert_close(together[1:], model(longer, target))
    for weights in model.attention(batch, target.expand(2, -1)):
        assert (weights[0, :, :, 4:] == 0).all()


def test_target_is_causal() -> None:
    model = build().eval()
    source = torch.tensor([[5, 6, 7, 3]])
    one, other = torch.tensor([[2, 5, 6, 7]]), torch.tensor([[2, 5, 9, 10]])
    torch.testing.assert_close(model(source, one)[:, :2], model(source, other)[:, :2])
    assert not torch.allclose(model(source, one)[:, 2:], model(source, other)[:, 2:])


def test_attention_weights_are_distributions() -> None:
    weights = build().eval().attention(torch.tensor([[5, 6, 3]]), torch.tensor([[2, 5]]))
    assert [w.shape for w in weights] == [(1, 2, 2, 3)] * 2
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.ones(1, 2, 2))


def test_sharing() -> None:
    separate, output, everything = (build(share_embeddings=s) for s in ("none", "output", "all"))
    assert separate.decoder.projection.weight is not separate.decoder.embedding.tokens.weight
    assert output.decoder.projection.weight is output.decoder.embedding.tokens.weight
    assert output.encoder.embedding.tokens.weight is not output.decoder.embedding.tokens.weight
    assert everything.encoder.embedding.tokens.weight is everything.decoder.projection.weight
    with pytest.raises(ValueError, match="one joint vocabulary"):
        Transformer(everything.config, 10, 11, pad=0)


def test_sinusoids_are_the_papers() -> None:
    table = sinusoids(50, 16)
    torch.testing.assert_close(table[0], torch.tensor([0.0, 1.0] * 8))
    torch.testing.assert_close(table[7, 4], torch.tensor(7 / 10_000 ** (4 / 16)).sin())
    torch.testing.assert_close(table[7, 5], torch.tensor(7 / 10_000 ** (4 / 16)).cos())


def test_dropout_keeps_the_mean_and_follows_the_seed() -> None:
    dropout = Dropout(0.25)
    torch.manual_seed(3)
    first = dropout(torch.ones(100_000))
    torch.manual_seed(3)
    assert torch.equal(first, dropout(torch.ones(100_000)))
    assert not torch.equal(first, dropout(torch.ones(100_000)))
    assert (first == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert first.mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(dropout.eval()(torch.ones(10)), torch.ones(10))
