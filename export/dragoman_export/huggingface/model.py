"""A directory of Hugging Face becomes a Transformer of ours."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.families import Family, family
from dragoman_export.huggingface.weight_files import Weights
from dragoman_training.model import Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.feed_forward import GATED
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, Residual
from dragoman_training.model.positions import Embedding, RelativePositions

STACKS = ("encoder", "decoder")
Stack = str  # one of STACKS


@dataclass(frozen=True)
class Naming:
    """How a family of classes names its weights, with {stack} and {layer} to be filled in.

    Linear maps and norms go without ".weight" and ".bias"; what a family does not have is empty.

    Attributes:
        shared: names of one table that source, target and perhaps the output share, the output's last.
        head: of the output projection.
        logits_bias: of what is added to logits.
        tokens, positions, relative: of tables.
        norms: by stack, one for each sub-layer of a layer, in order.
        attention, cross_attention: projections of queries, keys, values, and the output.
        feed_forward: by stack, the first map (or its gate and value, where it is gated).
        contract: by stack, the second.
        ignored: what files may hold beside, to no effect.
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
_LAST = {"encoder": "1.", "decoder": "2."}  # the feed-forward sub-layer of T5

NAMINGS: Mapping[str, Naming] = {  # by Family.naming
    "bart": Naming(
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
    "t5": Naming(
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


def read_config(folder: Path) -> Any:
    """config.json of a directory, with the defaults of its class.

    Raises:
        ExportError: it is missing, damaged, or of a kind that `transformers` does not know by itself.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import PreTrainedConfig
    from transformers.models.auto import AutoConfig

    path = folder / "config.json"
    if not path.is_file():
        raise ExportError(f"{folder}: no model of Hugging Face here; config.json is missing")
    try:
        document, _ = PreTrainedConfig.get_config_dict(folder, local_files_only=True)
        if document.get("auto_map"):
            raise ExportError(f"{path}: auto_map asks for code of the model's own, which is not run")
        if document.get("quantization_config"):
            raise ExportError(
                f"{path}: quantization_config: quantised checkpoints can't be imported; take the original"
            )
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except ExportError:
        raise
    except Exception as error:  # of whatever kind the library likes
        raise ExportError(f"{path}: cannot be read as a configuration ({_first_line(error)})") from None


@torch.no_grad()
def read_model(folder: Path, config: Any) -> Transformer:
    """The model of a directory, in 32-bit floats.

    Args:
        config: from `read_config`.

    Raises:
        ExportError: the family is not supported, or weights are missing, left over, or not those of the configuration.
    """
    weights = Weights(folder)
    return Reader(family(config), weights, config.pad_token_id).read()


class Reader:
    """Fills a model with weights.

    Args:
        pad: id of the padding token.
    """

    def __init__(self, found: Family, weights: Weights, pad: int) -> None:
        self.weights, self.names = weights, NAMINGS[found.naming]
        self.family = self._with_head(found)
        self.config = self.family.config
        self.pad = pad

    def read(self) -> Transformer:
        """The model, in evaluation mode."""
        model = Transformer(self.config, *self.family.vocabularies, self.pad)
        self._tables(model)
        for name, stack in zip(STACKS, (model.encoder, model.decoder), strict=True):
            self._embedding(name, cast(Embedding, stack.embedding))
            for i, relative in enumerate(cast(Iterable[RelativePositions], stack.relative)):
                self._copy(relative.table.weight, self.names.relative.format(stack=name, layer=i))
            for i, layer in enumerate(cast(Iterable[EncoderLayer | DecoderLayer], stack.layers)):
                self._layer(name, i, layer)
            self._module(cast(nn.Module, stack.norm), self.names.last_norm.format(stack=name))  # none has no parameters
        model.decoder.logit_bias = self._logits_bias()
        self.weights.ignore(*self.names.ignored)
        if left := self.weights.left():
            names = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
            raise ExportError(f"the weights hold what such a model does not have: {names}")
        return model.eval()

    def _with_head(self, found: Family) -> Family:
        """T5's file decides whether the output projection is a table of its own."""
        if found.naming != "t5":
            return found
        table = next((name for name in self.names.shared[:-1] if name in self.weights), None)
        [head] = self.names.head
        if table is None or head not in self.weights or self.weights.same(table, head):
            return found
        return replace(found, config=found.config.model_copy(update={"share_embeddings": "inputs"}))

    def _tables(self, model: Transformer) -> None:
        source, target = model.encoder.embedding.tokens.weight, model.decoder.embedding.tokens.weight
        shared, head = self.config.share_embeddings, model.decoder.projection.weight
        if shared == "all":
            self._copy(source, *self.names.shared)
        elif shared == "inputs":
            self._copy(source, *self.names.shared[:-1])
            self._copy(head, *self.names.head)
        else:
            self._copy(source, self.names.tokens.format(stack="encoder"))
            if shared == "output":
                self._copy(target, self.names.tokens.format(stack="decoder"), *self.names.head)
            else:
                self._copy(target, self.names.tokens.format(stack="decoder"))
                self._copy(head, *self.names.head)

    def _embedding(self, stack: Stack, embedding: Embedding) -> None:
        if embedding.norm_input != "none":
            self._module(embedding.norm, self.names.embedding_norm.format(stack=stack))
        own = embedding.positions
        if own is None:
            return
        name, skipped = self.names.positions.format(stack=stack), self.family.skipped_positions
        if self.config.positions == "learned" or name in self.weights:  # else they are those of the formula
            rows = self.weights.take(name, shape=(self.config.max_source_length + skipped, own.size(1)))
            own.copy_(rows[skipped : skipped + len(own)])

    def _layer(self, stack: Stack, index: int, layer: EncoderLayer | DecoderLayer) -> None:
        def named(names: Sequence[str]) -> list[str]:
            return [name.format(stack=stack, layer=index) for name in names]

        self._attention(layer.self_attention, named(self.names.attention))
        if isinstance(layer, DecoderLayer):
            self._attention(layer.cross_attention, named(self.names.cross_attention))
        for residual, name in zip(layer.residuals, named(self.names.norms[stack]), strict=True):
            self._module(cast(Residual, residual).norm, name)
        feed, gated = layer.feed_forward, self.config.activation in GATED
        first = self.names.gated[stack] if gated else [self.names.feed_forward[stack]]
        self._stacked(feed.expand, named(first))
        self._module(feed.contract, *named([self.names.contract[stack]]))

    def _attention(self, attention: MultiHeadAttention, names: Sequence[str]) -> None:
        query, key, value, output = names
        self._module(attention.query, query)
        self._stacked(attention.key_value, [key, value])
        self._module(attention.output, output)

    def _stacked(self, linear: nn.Linear, names: list[str]) -> None:
        """A linear map that holds the outputs of several, one after the other."""
        for part, parameter in linear.named_parameters():
            for rows, name in zip(parameter.chunk(len(names)), names, strict=True):
                self._copy(rows, f"{name}.{part}")

    def _module(self, module: nn.Module, name: str) -> None:
        for part, parameter in module.named_parameters():
            self._copy(parameter, f"{name}.{part}")

    def _copy(self, parameter: Tensor, *names: str) -> None:
        parameter.copy_(self.weights.take(*names, shape=tuple(parameter.shape)))

    def _logits_bias(self) -> Tensor | None:
        name = self.names.logits_bias
        if not self.family.logits_bias or name not in self.weights:
            return None
        bias = self.weights.take(name, shape=(1, self.family.vocabularies[1]))[0]
        return bias.clone() if bias.any() else None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
