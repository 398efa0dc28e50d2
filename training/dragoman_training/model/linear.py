"""Linear layers that are fast on CPUs, in training and within `fast_products`.

PyTorch computes float32 matrix products with MKL, which is made for Intel's processors and reaches half the speed of
AMD's, and uses oneDNN only for bfloat16. Here oneDNN computes both on the processors of others. Under autocast an input
is rounded to bfloat16 once, and the rounded tensor is what is kept for the backward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def _prefers_onednn() -> bool:
    """Returns whether oneDNN computes float32 products on this machine.

    On an Intel processor with AVX-512, MKL takes 0.92 of its time for outputs and the gradients of inputs, and 0.67 for
    those of weights (medians of 12 shapes, 2 threads; tests/benchmark/training/products.py).
    """
    # NOTE: PyTorch does not guarantee this operator; versions without it use the ordinary product.
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not available or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    processors = Path("/proc/cpuinfo")
    intel = processors.exists() and "GenuineIntel" in processors.read_text()
    mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return not (intel and mkl)


ONEDNN = _prefers_onednn()

LEAST_STEP = 64  # between two numbers of rows of padded products

_fast: ContextVar[bool] = ContextVar("_fast", default=False)


@contextmanager
def fast_products() -> Iterator[None]:
    """Makes linear layers compute without gradients as fast as in training, by the same library."""
    token = _fast.set(True)
    try:
        with torch.no_grad():
            yield
    finally:
        _fast.reset(token)


class Linear(nn.Linear):
    """nn.Linear with the same parameter names."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., in] to [..., out]."""
        if torch.compiler.is_compiling():  # a compiler would also end its graph at the context variable
            return super().forward(x)
        if is_cpu_training(self, x):
            return linear(x, self.weight, self.bias)
        if _fast.get() and not torch.is_autocast_enabled(x.device.type):
            return matmul(x.reshape(-1, x.size(-1)), self.weight, self.bias).view(*x.shape[:-1], -1)
        return super().forward(x)


def is_cpu_training(module: nn.Module, x: Tensor) -> bool:
    """Returns whether this is a training step on a CPU, the case that the functions here are made for.

    Compiled layers go without them: a compiler sees more in PyTorch's own operators.
    """
    training = module.training and torch.is_grad_enabled() and x.device.type == "cpu"
    return training and not torch.compiler.is_compiling()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """F.linear with its gradient: x [..., in], weight [out, in], bias [out] -> [..., out]."""
    return _Linear.apply(x, weight, bias, autocast_dtype(x))  # type: ignore[no-any-return,no-untyped-call]


def relu_network(x: Tensor, expand: nn.Linear, contract: nn.Linear) -> Tensor:
    """contract(relu(expand(x))) with its gradient: x [..., in] -> [..., out].

    In bfloat16, one operation has less to keep for the backward pass and to pad than three.
    """
    parameters = expand.weight, expand.bias, contract.weight, contract.bias
    return _ReluNetwork.apply(x, *parameters)  # type: ignore[no-any-return,no-untyped-call]


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Returns the dtype that products of a tensor are computed in: that of autocast if enabled, else its own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """F.linear of x [rows, in], weight [out, in], bias [out] -> [rows, out]; strided inputs are not copied."""
    if ONEDNN and x.device.type == "cpu" and x.dtype == torch.float32 and len(x):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]
    return F.linear(x, weight, bias)


def padded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts [rows, width] to a dtype, with rows of zeros at the end in bfloat16 on a CPU.

    oneDNN compiles a product for each number of rows, which takes ten times as long as the product of a small model.
    With up to an eighth more rows, there are only eight numbers between one power of two and the next, so that what is
    compiled is used again.
    """
    if x.device.type != "cpu" or dtype != torch.bfloat16:
        return x.to(dtype)
    step = max(LEAST_STEP, 1 << len(x).bit_length() >> 4)
    count = -(-len(x) // step) * step
    if count == len(x):
        return x.to(dtype)
    rows = x.new_empty(count, x.size(1), dtype=dtype)
    rows[: len(x)] = x
    rows[len(x) :] = 0
    return rows


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        rows, matrix = padded(x.reshape(-1, x.size(-1)), dtype), weight.to(dtype)  # [padded rows, in], [out, in]
        ctx.save_for_backward(rows, matrix)
        ctx.dtypes = x.dtype, weight.dtype, bias.dtype if bias is not None else None
        return _shaped(matmul(rows, matrix, bias.to(dtype) if bias is not None else None), x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        rows, matrix = ctx.saved_tensors  # [padded rows, in], [out, in]
        x_dtype, weight_dtype, bias_dtype = ctx.dtypes
        gradient = padded(gradients[0].reshape(-1, matrix.size(0)), rows.dtype)  # [padded rows, out]
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        return (
            _shaped(matmul(gradient, matrix.t()), gradients[0]).to(x_dtype) if needs_x else None,
            matmul(gradient.t(), rows.t()).to(weight_dtype) if needs_weight else None,
            gradient.sum(0).to(bias_dtype) if needs_bias else None,
            None,
        )


class _ReluNetwork(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor | None) -> Tensor:
        dtype = autocast_dtype(x)
        ctx.dtypes = [None if one is None else one.dtype for one in (x, *parameters)]
        expand, expand_bias, contract, contract_bias = (None if one is None else one.to(dtype) for one in parameters)
        assert expand is not None
        assert contract is not None
        rows = padded(x.reshape(-1, x.size(-1)), dtype)  # [padded rows, d_model]
        hidden = matmul(rows, expand, expand_bias).relu_()  # [padded rows, d_ff]
        ctx.save_for_backward(rows, hidden, expand, contract)
        return _shaped(matmul(hidden, contract, contract_bias), x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, hidden, expand, contract = ctx.saved_tensors
        outer = padded(gradients[0].reshape(-1, contract.size(0)), rows.dtype)  # [padded rows, d_model]
        inner = matmul(outer, contract.t())  # [padded rows, d_ff]
        torch.ops.aten.threshold_backward.grad_input(inner, hidden, 0, grad_input=inner)
        needs = ctx.needs_input_grad
        found = (
            _shaped(matmul(inner, expand.t()), gradients[0]) if needs[0] else None,
            matmul(inner.t(), rows.t()) if needs[1] else None,
            inner.sum(0) if needs[2] else None,
            matmul(outer.t(), hidden.t()) if needs[3] else None,
            outer.sum(0) if needs[4] else None,
        )
        return tuple(None if one is None else one.to(dtype) for one, dtype in zip(found, ctx.dtypes, strict=True))


def _shaped(rows: Tensor, like: Tensor) -> Tensor:
    """Returns padded rows [padded rows, width] without the padding, in the shape of [..., any]."""
    count = like.numel() // like.size(-1)
    return rows[:count].view(*like.shape[:-1], -1)
