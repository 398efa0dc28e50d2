"""Position-wise feed-forward network ("Attention Is All You Need", section 3.3; gates from Shazeer 2020)."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from dragoman_training.model.linear import Linear

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
    """Two linear maps with a non-linearity between, the same at every position.

    `gelu` is x * Phi(x), `gelu_tanh` its approximation by tanh (Hendrycks and Gimpel 2016, section 2), `silu` is
    x * sigmoid(x), also called swish. With one of the names in -glu the first map yields a gate and a value, each
    `d_ff` wide, and the hidden layer is activation(gate) * value ("GLU Variants Improve Transformer", equations 5 and
    6): `reglu`, `geglu`, `geglu_tanh`, `swiglu`.
    """

    def __init__(self, d_model: int, d_ff: int, activation: Activation, *, bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.expand = Linear(d_model, 2 * d_ff if activation in GATED else d_ff, bias=bias)
        self.contract = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, d_model] -> [batch, length, d_model]."""
        hidden = self.expand(x)
        if self.activation in GATED:
            gate, hidden = hidden.chunk(2, -1)
            hidden = GATED[self.activation](gate) * hidden
        else:
            hidden = _PLAIN[self.activation](hidden)
        return self.contract(hidden)  # type: ignore[no-any-return]
