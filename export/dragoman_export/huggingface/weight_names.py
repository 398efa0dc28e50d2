"""Weight names of each family of published models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

STACKS = ("encoder", "decoder")
Stack = str  # one of STACKS


@dataclass(frozen=True)
class WeightNames:
    """The weight names of a group of families; {stack} and {layer} are filled in.

    Names of linear maps and norms lack ".weight" and ".bias". Names of weights that a family does not have are empty.

    Attributes:
        shared: Names of the table that source, target and perhaps the output share, the output's last.
        head: Names of the output projection.
        tokens: Token table of a stack.
        last_norm: Norm at the end of a stack.
        norms: Norms of a layer by stack, one for each sub-layer, in order.
        attention, cross_attention: Projections of queries, keys, values, and the output.
        feed_forward: First linear map by stack.
        gated: Gate and value by stack, in place of the first map in gated models.
        contract: Second linear map by stack.
        logits_bias: Bias of the logits.
        positions: Position table of a stack.
        relative: Table of relative positions of a stack or layer.
        embedding_norm: Norm after the embedding of a stack.
        ignored: Tensors in the files that mean nothing.
    """

    shared: Sequence[str]
    head: Sequence[str]
    tokens: str
    last_norm: str
    norms: Mapping[Stack, Sequence[str]]
    attention: Sequence[str]
    cross_attention: Sequence[str]
    feed_forward: Mapping[Stack, str]
    gated: Mapping[Stack, Sequence[str]]
    contract: Mapping[Stack, str]
    logits_bias: str = ""
    positions: str = ""
    relative: str = ""
    embedding_norm: str = ""
    ignored: Sequence[str] = ()


_LAYER = "model.{stack}.layers.{layer}."
_BLOCK = "{stack}.block.{layer}.layer."
_LAST = {"encoder": "1.", "decoder": "2."}  # index of the feed-forward sub-layer of T5

NAMES: Mapping[str, WeightNames] = {  # by Family.names
    "bart": WeightNames(
        shared=(
            "model.shared.weight",
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
            "lm_head.weight",
            "model.decoder.output_projection.weight",
        ),
        head=("lm_head.weight", "model.decoder.output_projection.weight"),
        tokens="model.{stack}.embed_tokens.weight",
        last_norm="model.{stack}.layer_norm",
        norms={
            "encoder": (f"{_LAYER}self_attn_layer_norm", f"{_LAYER}final_layer_norm"),
            "decoder": (
                f"{_LAYER}self_attn_layer_norm",
                f"{_LAYER}encoder_attn_layer_norm",
                f"{_LAYER}final_layer_norm",
            ),
        },
        attention=[f"{_LAYER}self_attn.{part}_proj" for part in ("q", "k", "v", "out")],
        cross_attention=[f"{_LAYER}encoder_attn.{part}_proj" for part in ("q", "k", "v", "out")],
        feed_forward=dict.fromkeys(STACKS, f"{_LAYER}fc1"),
        gated={},
        contract=dict.fromkeys(STACKS, f"{_LAYER}fc2"),
        logits_bias="final_logits_bias",
        positions="model.{stack}.embed_positions.weight",
        embedding_norm="model.{stack}.layernorm_embedding",
        ignored=(
            "encoder.version",
            "decoder.version",
            "model.encoder.version",
            "model.decoder.version",
            "model.encoder.embed_positions.weights",
            "model.decoder.embed_positions.weights",
        ),
    ),
    "t5": WeightNames(
        shared=("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"),
        head=("lm_head.weight",),
        tokens="{stack}.embed_tokens.weight",
        last_norm="{stack}.final_layer_norm",
        norms={
            "encoder": [f"{_BLOCK}{place}.layer_norm" for place in range(2)],
            "decoder": [f"{_BLOCK}{place}.layer_norm" for place in range(3)],
        },
        attention=[f"{_BLOCK}0.SelfAttention.{part}" for part in "qkvo"],
        cross_attention=[f"{_BLOCK}1.EncDecAttention.{part}" for part in "qkvo"],
        feed_forward={stack: f"{_BLOCK}{place}DenseReluDense.wi" for stack, place in _LAST.items()},
        gated={
            stack: [f"{_BLOCK}{place}DenseReluDense.{part}" for part in ("wi_0", "wi_1")]
            for stack, place in _LAST.items()
        },
        contract={stack: f"{_BLOCK}{place}DenseReluDense.wo" for stack, place in _LAST.items()},
        relative=f"{_BLOCK}0.SelfAttention.relative_attention_bias.weight",
        ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    ),
}
