"""The loss by parts against PyTorch's own, and linear maps as training computes them against nn.Linear's."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman_training.data.batches import IGNORED
from dragoman_training.model.linear import Linear
from dragoman_training.optimization import loss as module
from dragoman_training.optimization.loss import smoothed_cross_entropy

torch.set_num_threads(1)

VOCABULARY, WIDTH = 37, 16


def outputs(*, ignored: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states [3, 5, WIDTH], the output layer's matrix, and targets with padding."""
    torch.manual_seed(1)
    target = torch.randint(0, VOCABULARY, (3, 5))
    if ignored:
        target[1, 2:] = IGNORED
        target[2, 4:] = IGNORED
    hidden, weight = torch.randn(3, 5, WIDTH), torch.randn(VOCABULARY, WIDTH)
    return hidden.requires_grad_(), weight.requires_grad_(), target


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("low", [False, True])
def test_as_pytorch_computes_it(rows: int, smoothing: float, low: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", rows * VOCABULARY)
    hidden, weight, target = outputs()
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        ours = smoothed_cross_entropy(hidden, weight, target, smoothing) / 7
        logits = F.linear(hidden, weight).float().flatten(0, 1)
        options = {"label_smoothing": smoothing, "ignore_index": IGNORED}
        theirs = F.cross_entropy(logits, target.flatten(), reduction="sum", **options) / 7  # type: ignore[arg-type]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    gradients = [torch.autograd.grad(loss, (hidden, weight)) for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=2e-2 if low else 1e-4, atol=2e-2 if low else 1e-5)


def test_nothing_but_padding() -> None:
    hidden, weight, target = outputs()
    nothing = smoothed_cross_entropy(hidden, weight, torch.full_like(target, IGNORED), 0.1)
    assert nothing.item() == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(nothing, (hidden, weight)))


def test_a_loss_that_is_not_finite_is_told() -> None:
    hidden, weight, target = outputs()
    assert smoothed_cross_entropy(hidden * torch.inf, weight, target, 0.1).isnan()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("low", [False, True])
def test_linear_in_training(bias: bool, low: bool) -> None:
    torch.manual_seed(1)
    ours, theirs = Linear(24, 40, bias=bias), nn.Linear(24, 40, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 7, 24)
    results = []
    for layer in (ours, theirs):
        own = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            y = layer(own)
            (y.float() ** 2).sum().backward()
        gradients = [parameter.grad for parameter in layer.parameters()]
        assert all(gradient is not None and gradient.dtype == torch.float32 for gradient in gradients)
        results.append([y, own.grad, *gradients])
    torch.testing.assert_close(*results, rtol=2e-2 if low else 1e-4, atol=0.2 if low else 1e-4)


def test_linear_in_evaluation_is_pytorchs() -> None:
    layer = Linear(8, 8).eval()
    x = torch.randn(2, 8)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
