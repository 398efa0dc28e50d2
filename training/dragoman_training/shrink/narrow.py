"""Computes the weights of a model with fewer heads, feed-forward units and dimensions than a trained one.

Dimensions: the residual stream of a pre-norm Transformer can be rotated without any change of what the model computes,
once the norms' scales and means are part of the matrices around them (SliceGPT, Ashkboos et al. 2024). Rotated to
its principal components, its last dimensions say little and are cut off. Here the two stacks share one rotation, since
they may share their embeddings, and LayerNorm stays LayerNorm: the components take the place of a subspace that is
orthogonal to (1, ..., 1), where the mean is zero. The rotation within that subspace is free, and is chosen so that the
positions' sinusoids come close to those that a model of the smaller width has anyway.

Heads and units: the least important ones are cut off, and the matrix after them is fitted by least squares, so that
the others do their work as far as they can.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from dragoman_training.model.config import ModelConfig
from dragoman_training.model.feed_forward import GATED
from dragoman_training.model.positions import sinusoids
from dragoman_training.shrink.activity import Activity

RIDGE = 1e-4  # of least squares, as a share of the mean square: how much weights resist a change


@dataclass(frozen=True)
class Narrowed:
    """The weights of a smaller model.

    Attributes:
        weights: By name of the parameter.
        kept: Share of the residual streams' variance in the dimensions that are left, on average over the norms.
    """

    weights: dict[str, Tensor]
    kept: float


def narrow(weights: dict[str, Tensor], before: ModelConfig, after: ModelConfig, activity: Activity) -> Narrowed:
    """Computes the weights of a smaller model.

    Args:
        weights: Weights of the trained model.
        before, after: Architectures of both, with the same layers and widths of heads.
        activity: What the trained model computes.
    """
    return _Narrowing({name: value.double() for name, value in weights.items()}, before, after, activity).run()


class _Narrowing:
    def __init__(self, weights: dict[str, Tensor], before: ModelConfig, after: ModelConfig, activity: Activity) -> None:
        self.weights, self.before, self.after, self.activity = weights, before, after, activity
        self.scale = (after.d_model / before.d_model) ** 0.5  # of the stream, which keeps the mean of its squares
        self.found: dict[str, Tensor] = {}
        self.rotation = self._rotation()  # [after, before]: from one stream to the other, but for the scale

    def run(self) -> Narrowed:
        for stack in ("encoder", "decoder"):
            self._embedding(f"{stack}.embedding")
        for layer in range(self.after.encoder_layers):
            norms = [f"encoder.layers.{layer}.residuals.{place}.norm" for place in range(2)]
            self._attention(f"encoder.layers.{layer}.self_attention", norms[0], norms[0])
            self._feed_forward(f"encoder.layers.{layer}.feed_forward", norms[1])
        for layer in range(self.after.decoder_layers):
            norms = [f"decoder.layers.{layer}.residuals.{place}.norm" for place in range(3)]
            self._attention(f"decoder.layers.{layer}.self_attention", norms[0], norms[0])
            self._attention(f"decoder.layers.{layer}.cross_attention", norms[1], "encoder.norm")
            self._feed_forward(f"decoder.layers.{layer}.feed_forward", norms[2])
        self._output_layer()
        for norm in self.activity.streams:
            self._plain_norm(norm)
        shares = [self._share(norm) for norm in self.activity.streams]
        weights = {name: self.found[name].float() for name in self.weights}
        return Narrowed(weights, sum(shares) / len(shares))

    def _rotation(self) -> Tensor:
        before, after = self.before.d_model, self.after.d_model
        streams = self.activity.streams.values()
        total = torch.stack([moments / moments.trace() for moments in streams]).sum(0)  # [before, before]
        centred = self.before.norm_kind == "layer"
        components = torch.linalg.eigh(total)[1].flip(-1)[:, : after - centred]  # [before, rank]
        places = torch.eye(after, dtype=total.dtype)  # [after, rank]: where the components go
        if centred:
            places[:, 0] = 1
            places = torch.linalg.qr(places)[0][:, 1:]
        form = self.before.positions
        if form != "learned" and form != "relative" and form != "relative_per_layer":
            theirs, ours = (sinusoids(self.activity.longest, width, form).double() for width in (before, after))
            left, _, right = torch.linalg.svd(components.T @ theirs.T @ ours @ places)  # Schönemann 1966
            components = components @ left @ right
        rotation: Tensor = places @ components.T
        return rotation

    def _share(self, norm: str) -> float:
        """Returns the share of the squares of a norm's inputs that the rotation keeps."""
        moments = self.activity.streams[norm]
        return float((self.rotation @ moments @ self.rotation.T).trace() / moments.trace())

    def _reading(self, weight: Tensor, norm: str) -> Tensor:
        """Makes weights [out, before] after a norm read the smaller model's norm, which has no weights."""
        lift = self._share(norm) ** 0.5 / self.scale
        narrowed: Tensor = weight * self.weights[f"{norm}.weight"] @ self.rotation.T * lift
        return narrowed

    def _shift(self, weight: Tensor, norm: str) -> Tensor:
        """Returns what the bias of a norm adds to the outputs of weights [out, before]."""
        bias = self.weights.get(f"{norm}.bias")
        return weight.new_zeros(len(weight)) if bias is None else weight @ bias

    def _input(self, name: str, norm: str, kept: Tensor) -> None:
        """Narrows a linear layer after a norm, and leaves only some of its outputs."""
        weight = self.weights[f"{name}.weight"]
        self.found[f"{name}.weight"] = self._reading(weight, norm)[kept]
        if (bias := self.weights.get(f"{name}.bias")) is not None:
            self.found[f"{name}.bias"] = (bias + self._shift(weight, norm))[kept]

    def _end(self, name: str, kept: Tensor) -> None:
        """Narrows the linear layer that ends a sub-layer, whose inputs are now those that are kept."""
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        whole = weight if bias is None else torch.cat([weight, bias[:, None]], 1)  # [before, inputs (+ 1)]
        moments = self.activity.units[name].moments[: whole.size(1), : whole.size(1)]
        if bias is not None:
            kept = torch.cat([kept, kept.new_tensor([weight.size(1)])])
        own = moments[kept][:, kept]
        ridge = RIDGE * own.diagonal().mean()
        target = moments[kept] @ whole.T + ridge * whole[:, kept].T  # [kept, before]
        fitted = torch.linalg.solve(own + ridge * torch.eye(len(own), dtype=own.dtype), target).T  # [before, kept]
        narrowed = self.scale * self.rotation @ fitted
        if bias is not None:
            narrowed, self.found[f"{name}.bias"] = narrowed[:, :-1], narrowed[:, -1]
        self.found[f"{name}.weight"] = narrowed

    def _attention(self, name: str, norm: str, memory_norm: str) -> None:
        d_head = self.before.encoder_layer.d_head
        heads = self._most_important(f"{name}.output", self.after.heads)
        units = (heads[:, None] * d_head + torch.arange(d_head)).flatten()
        values = units + self.weights[f"{name}.query.weight"].size(0)
        self._input(f"{name}.query", norm, units)
        self._input(f"{name}.key_value", memory_norm, torch.cat([units, values]))
        self._end(f"{name}.output", units)

    def _feed_forward(self, name: str, norm: str) -> None:
        units = self._most_important(f"{name}.contract", self.after.d_ff)
        width = self.weights[f"{name}.contract.weight"].size(1)
        gated = self.before.activation in GATED
        self._input(f"{name}.expand", norm, torch.cat([units, units + width]) if gated else units)
        self._end(f"{name}.contract", units)

    def _most_important(self, name: str, count: int) -> Tensor:
        return self.activity.units[name].importance.argsort(descending=True)[:count].sort()[0]

    def _embedding(self, name: str) -> None:
        """Narrows tokens and learned positions; sinusoids are those of the new width."""
        self.found[f"{name}.tokens.weight"] = (
            self._table_scale * self.weights[f"{name}.tokens.weight"] @ self.rotation.T
        )
        if (positions := self.weights.get(f"{name}.positions")) is not None:
            self.found[f"{name}.positions"] = self.scale * positions @ self.rotation.T

    @property
    def _table_scale(self) -> float:
        """The scale of token tables: with embedding_scale, a smaller width scales the embeddings itself."""
        return 1.0 if self.before.embedding_scale else self.scale

    def _output_layer(self) -> None:
        """Narrows the output layer, which reads the decoder's last norm."""
        norm, name = "decoder.norm", "decoder.projection.weight"
        weight, table = self.weights[f"{norm}.weight"], self.weights[name]
        if self.before.share_embeddings in ("output", "all"):
            # The table can't take the norm's weights in, since the embedding needs it as it is. Those of the rotated
            # norm would be a matrix; its diagonal comes closest.
            squares = self.rotation.square()  # [after, before]
            lift = self._share(norm) ** 0.5 / self.scale / self._table_scale
            self.found[f"{norm}.weight"] = squares @ weight / squares.sum(1) * lift
            self.found[name] = self.found["decoder.embedding.tokens.weight"]
        else:
            self.found[name] = self._reading(table, norm)
        if f"{norm}.bias" in self.weights:
            # Along (1, ..., 1) the norm has nothing but its bias to give, and embeddings have nothing to say.
            constant = self._shift(table, norm)[:, None] / self.after.d_model  # [vocabulary, 1]
            self.found[f"{norm}.bias"] = constant.new_ones(self.after.d_model)
            for tied in self._tables() if self.before.share_embeddings in ("output", "all") else [name]:
                self.found[tied] = self.found[tied] + constant
        if (output_bias := self.weights.get("decoder.output_bias")) is not None:
            self.found["decoder.output_bias"] = output_bias

    def _tables(self) -> list[str]:
        """Returns the names of the tables that are the output layer."""
        encoder = ["encoder.embedding.tokens.weight"] if self.before.share_embeddings == "all" else []
        return ["decoder.projection.weight", "decoder.embedding.tokens.weight", *encoder]

    def _plain_norm(self, name: str) -> None:
        """Sets what a norm lacks: its weights and bias are part of the matrices that read it."""
        for part, value in (("weight", 1.0), ("bias", 0.0)):
            if f"{name}.{part}" in self.weights and f"{name}.{part}" not in self.found:
                self.found[f"{name}.{part}"] = torch.full((self.after.d_model,), value)
