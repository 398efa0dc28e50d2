"""Parts of the model that are not trained."""

from collections.abc import Iterable

from torch import nn

from dragoman_training.model import Transformer
from dragoman_training.recipe import Part


def freeze(model: Transformer, parts: Iterable[Part]) -> None:
    """Freezes parts of a model.

    A matrix that two parts share is frozen with either: embeddings are often the output layer, too.
    """
    for part in parts:
        for module in _modules(model, part):
            module.requires_grad_(False)
        if part == "output" and model.decoder.output_bias is not None:
            model.decoder.output_bias.requires_grad_(False)


def count_parameters(model: Transformer) -> dict[str, int]:
    """Returns the number of weights of each part that differ; a shared matrix counts where it is named first."""
    counts: dict[str, int] = {}
    seen: set[int] = set()
    bias = model.decoder.output_bias
    parts: tuple[Part, ...] = ("embeddings", "encoder", "decoder", "output")
    for part in parts:
        new = {id(p): p.numel() for module in _modules(model, part) for p in module.parameters() if id(p) not in seen}
        seen |= new.keys()
        counts[part] = sum(new.values()) + (bias.numel() if part == "output" and bias is not None else 0)
    return counts


def _modules(model: Transformer, part: Part) -> list[nn.Module]:
    encoder, decoder = model.encoder, model.decoder
    modules: dict[Part, list[nn.Module]] = {
        "embeddings": [encoder.embedding, decoder.embedding],
        "encoder": [encoder.layers, encoder.relative, encoder.norm],
        "decoder": [decoder.layers, decoder.relative, decoder.norm],
        "output": [decoder.projection],
    }
    return modules[part]
