"""Measures what a model computes on sample pairs: its residual streams, and which of its units matter."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dragoman_training.data.batches import Batch, BatchSampler, EncodedPair, PairList
from dragoman_training.data.tokenizers import SpecialIds
from dragoman_training.model import Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.loss import IGNORED, Loss, cross_entropy

Hook = Callable[[nn.Module, tuple[Tensor]], None]
OUTPUTS = ("output", "contract")  # the linear layers that end an attention block and a feed-forward network


@dataclass
class Units:
    """The inputs of a linear layer that ends a sub-layer: outputs of heads, or hidden units.

    Attributes:
        moments: Sum over tokens of z z^T, where z is the input followed by a 1 [inputs + 1, inputs + 1], float64.
        importance: Sum over tokens of |z dL/dz| for each unit or head: by how much the loss would change, to first
            order, if it were zero (Molchanov et al. 2019, "Importance estimation for neural network pruning") [units].
    """

    moments: Tensor
    importance: Tensor


@dataclass
class Activity:
    """What a model computed on sample pairs.

    Attributes:
        streams: By the name of a norm, the sum over tokens of x x^T, where x is its input, normalized
            [d_model, d_model], float64.
        units: By the name of a linear layer that ends a sub-layer.
        longest: Positions of the longest source or target.
    """

    streams: dict[str, Tensor] = field(default_factory=dict)
    units: dict[str, Units] = field(default_factory=dict)
    longest: int = 0


def measure_activity(
    model: Transformer, pairs: Sequence[EncodedPair], batch_tokens: int, special: SpecialIds
) -> Activity:
    """Runs a model forward and backward over pairs.

    Args:
        model: Model in eval mode, with pre-norm.
        pairs: Sample pairs, a few thousand tokens at least.
    """
    activity = Activity()
    with ExitStack() as stack:
        recorder = _Recorder(model, activity)
        for name, module in model.named_modules():
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                stack.callback(module.register_forward_pre_hook(recorder.norm_hook(name)).remove)
            elif name.rpartition(".")[2] in OUTPUTS:
                stack.callback(module.register_forward_pre_hook(recorder.unit_hook(name)).remove)
        for planned in BatchSampler(PairList(pairs), batch_tokens, 0, special).block(epoch=0):
            recorder.run(planned.read())
    return activity


class _Recorder:
    """Adds what hooks see of one batch after the other to an Activity."""

    def __init__(self, model: Transformer, activity: Activity) -> None:
        self._model, self._activity = model, activity
        self._real: dict[str, Tensor] = {}  # by stack, which positions are not padding [batch, length]

    def run(self, batch: Batch) -> None:
        self._real = {"encoder": batch.source != self._model.pad, "decoder": batch.target_output != IGNORED}
        self._activity.longest = max(self._activity.longest, batch.source.size(1), batch.target_input.size(1))
        with torch.enable_grad():
            hidden = self._model.decoder.hidden(batch.target_input, *self._model.encode(batch.source))[0]
            hidden, weight = self._model.decoder.output_layer(hidden)
            cross_entropy(hidden, weight, batch.target_output, Loss()).backward()  # type: ignore[no-untyped-call]
        self._model.zero_grad()

    def norm_hook(self, name: str) -> Hook:
        """Returns a hook of a norm, which adds the normalized inputs to `streams`."""

        def record(norm: nn.Module, arguments: tuple[Tensor]) -> None:
            x = arguments[0].detach()[self._mask(name)]  # [tokens, d_model]
            normalize = F.layer_norm if isinstance(norm, nn.LayerNorm) else F.rms_norm
            x = normalize(x, x.shape[-1:])
            streams = self._activity.streams
            streams[name] = streams.get(name, 0) + (x.T @ x).double()

        return record

    def unit_hook(self, name: str) -> Hook:
        """Returns a hook of a linear layer that ends a sub-layer, which adds its inputs to `units`."""
        parent = self._model.get_submodule(name.rpartition(".")[0])
        width = parent.d_head if isinstance(parent, MultiHeadAttention) else 1

        def record(_: nn.Module, arguments: tuple[Tensor]) -> None:
            z, mask = arguments[0], self._mask(name)
            rows = F.pad(z.detach()[mask], (0, 1), value=1.0)  # [tokens, inputs + 1]
            if name not in self._activity.units:
                moments, importance = rows.new_zeros(2 * rows.shape[-1:]), rows.new_zeros(z.size(-1) // width)
                self._activity.units[name] = Units(moments.double(), importance.double())
            units = self._activity.units[name]
            units.moments += rows.T @ rows

            def add_importance(gradient: Tensor) -> None:
                effect = (z.detach() * gradient)[mask].unflatten(-1, (-1, width)).sum(-1)  # type: ignore[no-untyped-call]
                units.importance += effect.abs().sum(0)

            z.register_hook(add_importance)  # type: ignore[no-untyped-call]

        return record

    def _mask(self, name: str) -> Tensor:
        return self._real[name.partition(".")[0]]
