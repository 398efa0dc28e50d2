"""Position-wise feed-forward network ("Attention Is All You Need", section 3.3; gated: Shazeer 2020)."""

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman_training.model.linear import Linear, autocast_dtype, is_cpu_training, relu_network

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "reglu", "geglu", "geglu_tanh", "swiglu"]

_gelu_tanh = partial(F.gelu, approximate="tanh")
_PLAIN: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _gelu_tanh,
    "silu": F.silu,
}
GATED: dict[Activation, Callable[[Tensor], Tensor]] = {
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": _gelu_tanh,
    "swiglu": F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, applied to each position.

    Plain activations: `relu`; `gelu`, x * Phi(x), and `gelu_tanh`, its tanh approximation (Hendrycks and Gimpel 2016,
    section 2); `silu`, x * sigmoid(x), also called swish.

    Gated activations, `reglu`, `geglu`, `geglu_tanh` and `swiglu` ("GLU Variants Improve Transformer", Shazeer 2020,
    equations 5 and 6): the first layer computes a gate and a value, each `d_ff` wide, and the hidden layer is
    activation(gate) * value.
    """

    def __init__(self, d_model: int, d_ff: int, activation: Activation, *, bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.expand = Linear(d_model, 2 * d_ff if activation in GATED else d_ff, bias=bias)
        self.contract = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [batch, length, d_model] to [batch, length, d_model]."""
        # In float32 this takes a tenth longer than PyTorch's own operations.
        if self.activation == "relu" and is_cpu_training(self, x) and autocast_dtype(x) == torch.bfloat16:
            return relu_network(x, self.expand, self.contract)
        hidden = self.expand(x)  # [batch, length, d_ff], or 2 * d_ff with a gate
        if self.activation in GATED:
            gate, hidden = hidden.chunk(2, -1)
            hidden = GATED[self.activation](gate) * hidden  # [batch, length, d_ff]
        else:
            hidden = _PLAIN[self.activation](hidden)
        return self.contract(hidden)  # type: ignore[no-any-return]
