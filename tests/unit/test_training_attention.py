"""Attention: the worked example of docs/attention-worked-example.md, masks, and the two ways to compute it."""

import pytest
import torch
from torch import Tensor

from dragoman_training.model.attention import MultiHeadAttention, scaled_dot_product_attention

torch.set_num_threads(1)


def worked_example() -> tuple[MultiHeadAttention, Tensor]:
    """One head of width 4 with W_Q = I, W_K = 0.5 and W_V = 0.25 everywhere, and the five rows of X."""
    attention = MultiHeadAttention(4, 1, bias=False)
    with torch.no_grad():
        attention.query.weight.copy_(torch.eye(4))
        attention.key_value.weight.copy_(torch.cat([torch.full((4, 4), 0.5), torch.full((4, 4), 0.25)]))
        attention.output.weight.copy_(torch.eye(4))
    return attention, torch.cat([torch.full((1, 4), 0.5), torch.eye(4)])[None]  # [1, 5, 4]


def test_worked_example() -> None:
    attention, x = worked_example()
    output, weights = attention(x, return_weights=True)
    assert weights is not None
    # The scores after scaling are 1 and 0.5 in the first row, 0.5 and 0.25 in the others.
    first = torch.tensor([1.0, 0.5, 0.5, 0.5, 0.5]).exp()
    others = torch.tensor([0.5, 0.25, 0.25, 0.25, 0.25]).exp()
    expected = torch.stack([first / first.sum()] + [others / others.sum()] * 4)
    torch.testing.assert_close(weights[0, 0], expected)
    # To four digits, as the page prints them.
    torch.testing.assert_close(weights[0, 0, 0, :2], torch.tensor([0.2919, 0.1770]), atol=1e-4, rtol=0)
    torch.testing.assert_close(weights[0, 0, 1, :2], torch.tensor([0.2430, 0.1892]), atol=1e-4, rtol=0)
    torch.testing.assert_close(output[0, 0], torch.full((4,), 0.3230), atol=1e-4, rtol=0)
    torch.testing.assert_close(output[0, 1:], torch.full((4, 4), 0.3108), atol=1e-4, rtol=0)


def test_worked_example_by_the_fused_kernel() -> None:
    attention, x = worked_example()
    output, weights = attention(x)
    assert weights is None
    torch.testing.assert_close(output, attention(x, return_weights=True)[0])


@pytest.mark.parametrize("mask_kind", ["none", "causal", "padding"])
def test_weights_and_fused_kernel_agree(mask_kind: str) -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(3, 2, 5, 8) for _ in range(3))
    mask = torch.arange(5) < torch.tensor([5, 2, 1])[:, None, None, None] if mask_kind == "padding" else None
    causal = mask_kind == "causal"
    fused, _ = scaled_dot_product_attention(query, key, value, mask, causal=causal)
    by_hand, weights = scaled_dot_product_attention(query, key, value, mask, causal=causal, return_weights=True)
    assert weights is not None
    torch.testing.assert_close(fused, by_hand)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 5))
    if causal:
        assert (weights.triu(1) == 0).all()
    if mask is not None:
        assert (weights[2, :, :, 1:] == 0).all()


def test_width_must_divide_into_heads() -> None:
    with pytest.raises(ValueError, match=r"d_model \(10\) must be divisible by heads \(4\)"):
        MultiHeadAttention(10, 4)
