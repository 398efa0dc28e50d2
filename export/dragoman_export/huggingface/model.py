"""Reads a Hugging Face model from a directory into our Transformer."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.directory import CONFIG, check_directory, read_object
from dragoman_export.huggingface.families import Family, find_family
from dragoman_export.huggingface.library import reason, silence
from dragoman_export.huggingface.weight_files import WeightFiles
from dragoman_export.huggingface.weight_names import NAMES, STACKS, Stack
from dragoman_training.model import Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.feed_forward import GATED
from dragoman_training.model.layers import DecoderLayer, EncoderLayer, Residual
from dragoman_training.model.positions import Embedding, RelativePositions


def read_config(folder: Path) -> Any:
    """Reads config.json of a directory, with the defaults of its class.

    Raises:
        ExportError: It is missing, damaged, or of a type that `transformers` itself does not have.
    """
    check_directory(folder)
    silence()
    from transformers.models.auto import AutoConfig

    path = folder / CONFIG
    document = read_object(path)
    if document.get("auto_map"):
        raise ExportError(f"{path}: auto_map requires the model's own code, which is never run")
    if document.get("quantization_config"):
        raise ExportError(f"{path}: quantization_config: quantized checkpoints can't be imported; take the original")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the library raises various types
        raise ExportError(f"{path}: cannot be read as a configuration ({reason(error)})") from None


@torch.no_grad()
def read_model(folder: Path, config: Any) -> Transformer:
    """Reads the model of a directory, in 32-bit floats.

    Args:
        folder: The directory.
        config: The configuration from `read_config`.

    Raises:
        ExportError: The family is not supported, or weights are missing, unexpected, or do not fit the configuration.
    """
    family = find_family(config)
    return _ModelReader(family, WeightFiles(folder), _pad(config, family)).read()


def _pad(config: Any, family: Family) -> int:
    pad, tokens = config.pad_token_id, min(family.vocabularies)
    if not isinstance(pad, int) or not 0 <= pad < tokens:
        found = "missing" if pad is None else pad
        raise ExportError(f"config.json: pad_token_id is {found}; expected a token id from 0 to {tokens - 1}")
    return pad


class _ModelReader:
    """Fills a model with weights.

    Args:
        family: Family of the model.
        weights: Weights by name.
        pad: Id of the padding token.
    """

    def __init__(self, family: Family, weights: WeightFiles, pad: int) -> None:
        self.weights, self.names = weights, NAMES[family.names]
        self.family = self._with_untied_head(family)
        self.config = self.family.config
        self.pad = pad

    def read(self) -> Transformer:
        """Returns the model in evaluation mode."""
        model = self._empty()
        self._fill_tables(model)
        for name, stack in zip(STACKS, (model.encoder, model.decoder), strict=True):
            self._fill_embedding(name, cast(Embedding, stack.embedding))
            for i, relative in enumerate(cast(Iterable[RelativePositions], stack.relative)):
                self._copy(relative.table.weight, self.names.relative.format(stack=name, layer=i))
            for i, layer in enumerate(cast(Iterable[EncoderLayer | DecoderLayer], stack.layers)):
                self._fill_layer(name, i, layer)
            self._fill_module(cast(nn.Module, stack.norm), self.names.last_norm.format(stack=name))
        model.decoder.logit_bias = self._logits_bias()
        self.weights.ignore(*self.names.ignored)
        if unused := self.weights.unused():
            names = ", ".join(unused[:5]) + (f" and {len(unused) - 5} more" if len(unused) > 5 else "")
            raise ExportError(f"the weights hold tensors that such a model does not have: {names}")
        return model.eval()

    def _empty(self) -> Transformer:
        """Returns the model without weights."""
        for stack, layers in zip(STACKS, (self.config.encoder_layers, self.config.decoder_layers), strict=True):
            last = self.names.norms[stack][0].format(stack=stack, layer=layers - 1)
            if f"{last}.weight" not in self.weights:  # before so many layers are made
                raise ExportError(f"the weights lack {last}.weight, but config.json makes {layers} {stack} layers")
        try:
            return Transformer(self.config, *self.family.vocabularies, self.pad)
        except RuntimeError as error:  # an allocation failed
            raise ExportError(f"config.json: a model of such sizes can't be made ({reason(error)})") from None

    def _with_untied_head(self, family: Family) -> Family:
        """Returns the family with a separate output projection if T5's file has one: its configuration does not say."""
        if family.names != "t5":
            return family
        table = next((name for name in self.names.shared[:-1] if name in self.weights), None)
        [head] = self.names.head
        if table is None or head not in self.weights or self.weights.same(table, head):
            return family
        return replace(family, config=family.config.model_copy(update={"share_embeddings": "inputs"}))

    def _fill_tables(self, model: Transformer) -> None:
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

    def _fill_embedding(self, stack: Stack, embedding: Embedding) -> None:
        if embedding.norm_input != "none":
            self._fill_module(embedding.norm, self.names.embedding_norm.format(stack=stack))
        table = embedding.positions
        if table is None:
            return
        name, skipped = self.names.positions.format(stack=stack), self.family.skipped_positions
        if self.config.positions == "learned" or name in self.weights:  # else the model computed them by formula
            rows = self.weights.take(name, shape=(self.config.max_source_length + skipped, table.size(1)))
            table.copy_(rows[skipped : skipped + len(table)])

    def _fill_layer(self, stack: Stack, index: int, layer: EncoderLayer | DecoderLayer) -> None:
        def complete(names: Sequence[str]) -> list[str]:
            return [name.format(stack=stack, layer=index) for name in names]

        self._fill_attention(layer.self_attention, complete(self.names.attention))
        if isinstance(layer, DecoderLayer):
            self._fill_attention(layer.cross_attention, complete(self.names.cross_attention))
        for residual, name in zip(layer.residuals, complete(self.names.norms[stack]), strict=True):
            self._fill_module(cast(Residual, residual).norm, name)
        gated = self.config.activation in GATED
        first = self.names.gated[stack] if gated else [self.names.feed_forward[stack]]
        self._fill_concatenated(layer.feed_forward.expand, complete(first))
        self._fill_module(layer.feed_forward.contract, *complete([self.names.contract[stack]]))

    def _fill_attention(self, attention: MultiHeadAttention, names: Sequence[str]) -> None:
        query, key, value, output = names
        self._fill_module(attention.query, query)
        self._fill_concatenated(attention.key_value, [key, value])
        self._fill_module(attention.output, output)

    def _fill_concatenated(self, linear: nn.Linear, names: list[str]) -> None:
        """Fills a linear map that holds the outputs of several, one after the other."""
        for part, parameter in linear.named_parameters():
            for rows, name in zip(parameter.chunk(len(names)), names, strict=True):
                self._copy(rows, f"{name}.{part}")

    def _fill_module(self, module: nn.Module, name: str) -> None:
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
