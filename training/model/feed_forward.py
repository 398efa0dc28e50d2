"""Position-wise feed-forward network ("Attention Is All You Need", section 3.3; SwiGLU from Shazeer 2020)."""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from training.model.linear import Linear

Activation = Literal["relu", "gelu", "swiglu"]


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between, the same at every position.

    With `swiglu` the first map yields a gate and a value, each `d_ff` wide, and the hidden layer is
    silu(gate) * value ("GLU Variants Improve Transformer", equation 6).
    """

    def __init__(self, d_model: int, d_ff: int, activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.expand = Linear(d_model, 2 * d_ff if activation == "swiglu" else d_ff)
        self.contract = Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, d_model] -> [batch, length, d_model]."""
        hidden = self.expand(x)
        if self.activation == "swiglu":
            gate, hidden = hidden.chunk(2, -1)
            hidden = F.silu(gate) * hidden
        elif self.activation == "gelu":
            hidden = F.gelu(hidden)
        else:
            hidden = F.relu(hidden)
        return self.contract(hidden)  # type: ignore[no-any-return]
