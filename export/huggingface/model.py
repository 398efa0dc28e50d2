"""A directory of Hugging Face becomes a Transformer of ours."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from export.errors import ExportError
from export.huggingface.families import Family, family
from export.huggingface.weights import Weights
from training.model import Transformer
from training.model.attention import MultiHeadAttention
from training.model.layers import DecoderLayer, EncoderLayer, Residual
from training.model.positions import Embedding, RelativePositions

STACKS = ("encoder", "decoder")
Stack = str  # one of STACKS


class Naming(Protocol):
    """How a family of classes names its weights; of linear maps and norms without ".weight" and ".bias".

    Attributes:
        shared: names of one table that source, target and perhaps the output share.
        head: of the output projection.
        logits_bias: of what is added to logits.
        ignored: what files may hold beside, to no effect.
    """

    shared: Sequence[str]
    head: Sequence[str]
    logits_bias: str
    ignored: Sequence[str]

    def tokens(self, stack: Stack) -> str: ...
    def positions(self, stack: Stack) -> str: ...
    def relative(self, stack: Stack, layer: int) -> str: ...
    def embedding_norm(self, stack: Stack) -> str: ...
    def last_norm(self, stack: Stack) -> str: ...
    def norm(self, stack: Stack, layer: int, place: int) -> str: ...
    def attention(self, stack: Stack, layer: int, *, cross: bool) -> tuple[str, str, str, str]:
        """Projections of queries, keys, values, and the output."""

    def feed_forward(self, stack: Stack, layer: int, *, gated: bool) -> tuple[list[str], str]:
        """First maps (the gate and the value where it is gated), and the second."""


class BartNaming:
    """BART and its descendants."""

    shared: Sequence[str] = (
        "model.shared.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
        "model.decoder.output_projection.weight",
    )
    head: Sequence[str] = ("lm_head.weight", "model.decoder.output_projection.weight")
    logits_bias = "final_logits_bias"
    ignored: Sequence[str] = (
        "encoder.version",
        "decoder.version",
        "model.encoder.version",
        "model.decoder.version",
        "model.encoder.embed_positions.weights",
        "model.decoder.embed_positions.weights",
    )

    def tokens(self, stack: Stack) -> str:
        return f"model.{stack}.embed_tokens.weight"

    def positions(self, stack: Stack) -> str:
        return f"model.{stack}.embed_positions.weight"

    def relative(self, stack: Stack, layer: int) -> str:
        raise NotImplementedError

    def embedding_norm(self, stack: Stack) -> str:
        return f"model.{stack}.layernorm_embedding"

    def last_norm(self, stack: Stack) -> str:
        return f"model.{stack}.layer_norm"

    def norm(self, stack: Stack, layer: int, place: int) -> str:
        attentions = ["self_attn_layer_norm"] + (["encoder_attn_layer_norm"] if stack == "decoder" else [])
        return f"model.{stack}.layers.{layer}.{[*attentions, 'final_layer_norm'][place]}"

    def attention(self, stack: Stack, layer: int, *, cross: bool) -> tuple[str, str, str, str]:
        start = f"model.{stack}.layers.{layer}.{'encoder' if cross else 'self'}_attn"
        return f"{start}.q_proj", f"{start}.k_proj", f"{start}.v_proj", f"{start}.out_proj"

    def feed_forward(self, stack: Stack, layer: int, *, gated: bool) -> tuple[list[str], str]:
        start = f"model.{stack}.layers.{layer}"
        return [f"{start}.fc1"], f"{start}.fc2"


class T5Naming:
    """T5, mT5 and UMT5."""

    shared: Sequence[str] = (
        "shared.weight",
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "lm_head.weight",
    )
    head: Sequence[str] = ("lm_head.weight",)
    logits_bias = ""
    ignored: Sequence[str] = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",)

    def tokens(self, stack: Stack) -> str:
        return f"{stack}.embed_tokens.weight"

    def positions(self, stack: Stack) -> str:
        raise NotImplementedError

    def relative(self, stack: Stack, layer: int) -> str:
        return f"{stack}.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"

    def embedding_norm(self, stack: Stack) -> str:
        raise NotImplementedError

    def last_norm(self, stack: Stack) -> str:
        return f"{stack}.final_layer_norm"

    def norm(self, stack: Stack, layer: int, place: int) -> str:
        return f"{stack}.block.{layer}.layer.{place}.layer_norm"

    def attention(self, stack: Stack, layer: int, *, cross: bool) -> tuple[str, str, str, str]:
        start = f"{stack}.block.{layer}.layer.{'1.EncDecAttention' if cross else '0.SelfAttention'}"
        return f"{start}.q", f"{start}.k", f"{start}.v", f"{start}.o"

    def feed_forward(self, stack: Stack, layer: int, *, gated: bool) -> tuple[list[str], str]:
        start = f"{stack}.block.{layer}.layer.{2 if stack == 'decoder' else 1}.DenseReluDense"
        return [f"{start}.wi_0", f"{start}.wi_1"] if gated else [f"{start}.wi"], f"{start}.wo"


NAMINGS: dict[str, Naming] = {"bart": BartNaming(), "t5": T5Naming()}  # by Family.naming


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
                self._copy(relative.table.weight, self.names.relative(name, i))
            for i, layer in enumerate(cast(Iterable[EncoderLayer | DecoderLayer], stack.layers)):
                self._layer(name, i, layer)
            self._module(cast(nn.Module, stack.norm), self.names.last_norm(name))  # none has no parameters
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
            self._copy(source, self.names.tokens("encoder"))
            if shared == "output":
                self._copy(target, self.names.tokens("decoder"), *self.names.head)
            else:
                self._copy(target, self.names.tokens("decoder"))
                self._copy(head, *self.names.head)

    def _embedding(self, stack: Stack, embedding: Embedding) -> None:
        if embedding.norm_of != "none":
            self._module(embedding.norm, self.names.embedding_norm(stack))
        own = embedding.positions
        if own is None:
            return
        name, skipped = self.names.positions(stack), self.family.skipped_positions
        if self.config.positions == "learned" or name in self.weights:  # else they are those of the formula
            rows = self.weights.take(name, shape=(self.config.max_source_length + skipped, own.size(1)))
            own.copy_(rows[skipped : skipped + len(own)])

    def _layer(self, stack: Stack, index: int, layer: EncoderLayer | DecoderLayer) -> None:
        self._attention(layer.self_attention, self.names.attention(stack, index, cross=False))
        if isinstance(layer, DecoderLayer):
            self._attention(layer.cross_attention, self.names.attention(stack, index, cross=True))
        for place, residual in enumerate(layer.residuals):
            self._module(cast(Residual, residual).norm, self.names.norm(stack, index, place))
        feed = layer.feed_forward
        first, second = self.names.feed_forward(
            stack, index, gated=self.config.activation.endswith(("glu", "glu_tanh"))
        )
        self._stacked(feed.expand, first)
        self._module(feed.contract, second)

    def _attention(self, attention: MultiHeadAttention, names: tuple[str, str, str, str]) -> None:
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
