"""The same model in PyTorch, eager and compiled, and in CTranslate2."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_server.bundle.load import Bundle
from dragoman_server.runtime.device import Device, first_line
from dragoman_training.model import Transformer
from dragoman_training.model.attention import MultiHeadAttention
from dragoman_training.model.parts import decoder_layers
from tests.benchmark.gpu.steps import Load, median_seconds
from tests.support.ctranslate2_model import convert


@dataclass(frozen=True)
class Contender:
    """The step times of another system.

    Attributes:
        seconds: Seconds per step, by rows.
        problem: Why it failed; None if it did not.
    """

    name: str
    seconds: dict[int, float]
    problem: str | None = None


class TorchStep(nn.Module):
    """A decode step over a cache of fixed size, updated in place, which torch.compile can capture.

    Args:
        rows: Rows of the cache.
        source: Number of encoded source tokens; their values are random, since time does not depend on them.
    """

    def __init__(self, model: Transformer, rows: int, source: int) -> None:
        super().__init__()
        self.decoder, self.length = model.decoder, model.config.max_target_length
        weight = model.decoder.projection.weight
        shape = (rows, model.config.heads, self.length, model.config.d_model // model.config.heads)
        new = partial(torch.zeros, dtype=weight.dtype, device=weight.device)
        self.layers = decoder_layers(model)
        self.keys, self.values = ([new(shape) for _ in self.layers] for _ in range(2))
        memory = torch.randn((rows, source, model.config.d_model), dtype=weight.dtype, device=weight.device)
        self.cross = [layer.cross_attention.project_memory(memory) for layer in self.layers]

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Returns the most probable tokens [rows] for ids [rows] and positions [rows]."""
        rows = torch.arange(len(ids), device=ids.device)
        seen = (torch.arange(self.length, device=ids.device) <= positions[:, None])[:, None, None]
        x = self.decoder.embedding(ids[:, None], positions[:, None])
        for i, layer in enumerate(self.layers):
            x = layer.residuals[0](x, partial(self._to_target, layer.self_attention, i, rows, positions, seen))
            x = layer.residuals[1](x, partial(self._to_source, layer.cross_attention, i))
            x = layer.residuals[2](x, layer.feed_forward)
        logits = self.decoder.projection(self.decoder.norm(x))[:, 0].float()
        return logits.log_softmax(-1).topk(1).indices[:, 0]  # type: ignore[no-any-return]

    def _to_target(
        self, attention: MultiHeadAttention, i: int, rows: Tensor, positions: Tensor, seen: Tensor, y: Tensor
    ) -> Tensor:
        key, value = attention.project_memory(y)
        self.keys[i][rows, :, positions] = key[:, :, 0]
        self.values[i][rows, :, positions] = value[:, :, 0]
        query = attention.split_heads(attention.query(y))
        found = functional.scaled_dot_product_attention(query, self.keys[i], self.values[i], attn_mask=seen)
        return attention.output(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _to_source(self, attention: MultiHeadAttention, i: int, y: Tensor) -> Tensor:
        query = attention.split_heads(attention.query(y))
        found = functional.scaled_dot_product_attention(query, *self.cross[i])
        return attention.output(found.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


def contenders(
    model: Transformer, bundle: Bundle, device: Device, counts: Sequence[int], load: Load, scratch: Path
) -> Iterator[Contender]:
    """Measures the contenders one by one."""
    convert(model, bundle.source_tokenizer, bundle.target_tokenizer, scratch / "ctranslate2")
    model = model.to(str(device), torch.float32 if device.kind == "cpu" else torch.float16)
    yield _measured("PyTorch, eager", partial(_torch, model, device, load, compiled=False), counts)
    yield _measured("PyTorch, compiled", partial(_torch, model, device, load, compiled=True), counts)
    yield _measured("CTranslate2", partial(_ctranslate2, scratch / "ctranslate2", bundle, device, load), counts)


def _measured(name: str, measure: Any, counts: Sequence[int]) -> Contender:
    seconds: dict[int, float] = {}
    try:
        for rows in counts:
            seconds[rows] = measure(rows)
    except Exception as error:  # no kernel, no compiler or out of memory
        return Contender(name, seconds, f"{type(error).__name__}: {first_line(error)}")
    return Contender(name, seconds)


@torch.inference_mode()
def _torch(model: Transformer, device: Device, load: Load, rows: int, *, compiled: bool) -> float:
    torch._dynamo.reset()
    step: Any = TorchStep(model, rows, load.source)
    if compiled:
        step = torch.compile(step, mode="reduce-overhead")

    def steps() -> None:
        ids = torch.full((rows,), 1, device=str(device))
        positions = torch.zeros(rows, dtype=torch.long, device=str(device))
        for _ in range(load.steps):
            ids = step(ids, positions).clone()
            ids.tolist()  # a search has to read them
            positions += 1

    return median_seconds(steps, load.rounds) / load.steps


def _ctranslate2(path: Path, bundle: Bundle, device: Device, load: Load, rows: int) -> float:
    kind = "float32" if device.kind == "cpu" else "float16"
    translator = ctranslate2.Translator(str(path), device=device.kind, device_index=device.index, compute_type=kind)
    texts = [[bundle.source_tokenizer.id_to_token(4 + i) for i in range(load.source)]] * rows
    lengths = {"max_decoding_length": load.steps, "min_decoding_length": load.steps}

    def translate() -> None:
        translator.translate_batch(texts, beam_size=1, **lengths)

    return median_seconds(translate, load.rounds) / load.steps
