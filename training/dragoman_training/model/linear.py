"""Linear maps as they are computed while a model is trained on a CPU.

PyTorch's own products of 32-bit floats go through MKL, which on AMD's processors leaves half of their speed unused; it
uses oneDNN for bfloat16 alone. Here both go through oneDNN. With autocast an input is rounded to bfloat16 once, and the
rounded one is what is kept for the backward pass.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# NOTE: PyTorch makes no promise about this operator, so where a version lacks it, products go their usual way.
ONEDNN: bool = torch.backends.mkldnn.is_available() and hasattr(  # type: ignore[no-untyped-call]
    torch.ops.mkldnn, "_linear_pointwise"
)


class Linear(nn.Linear):
    """nn.Linear, with the same parameters under the same names."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out]."""
        return linear(x, self.weight, self.bias) if trains(self, x) else super().forward(x)


def trains(module: nn.Module, x: Tensor) -> bool:
    """Whether this is a step of training on a CPU, for which the ways of this module are meant."""
    return module.training and torch.is_grad_enabled() and x.device.type == "cpu"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear, with its gradient."""
    return _Linear.apply(x, weight, bias, autocast_type(x))  # type: ignore[no-any-return,no-untyped-call]


def autocast_type(x: Tensor) -> torch.dtype:
    """What products of a tensor are computed in: its own type, or that of autocast where it is on."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear of a matrix [rows, in] with [out, in]; strided ones are not copied."""
    if ONEDNN and x.device.type == "cpu" and x.dtype == torch.float32 and len(x):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]
    return F.linear(x, weight, bias)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kind: torch.dtype) -> Tensor:
        rows, matrix = x.reshape(-1, x.size(-1)).to(kind), weight.to(kind)
        ctx.save_for_backward(rows, matrix)
        ctx.types = x.dtype, weight.dtype, bias.dtype if bias is not None else None
        return product(rows, matrix, bias.to(kind) if bias is not None else None).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        rows, matrix = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.types
        gradient = gradients[0].reshape(-1, matrix.size(0)).to(rows.dtype)
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            product(gradient, matrix.t()).view(*gradients[0].shape[:-1], -1).to(of_x) if needs_x else None,
            product(gradient.t(), rows.t()).to(of_weight) if needs_weight else None,
            gradient.sum(0).to(of_bias) if needs_bias else None,
            None,
        )
