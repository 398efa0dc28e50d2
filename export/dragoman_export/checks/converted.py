"""Copies of a model that compute with other weights, made of the model's own a few rows at a time."""

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_training.model import Transformer

Conversion = Callable[[Tensor, int], Tensor]
"""Maps some rows of a weight, and a number for their place in the model, to the rows to compute with."""

MOST_NUMBERS = 1 << 20  # of a weight that are converted at a time


def converted(model: Transformer, convert: Conversion) -> Transformer:
    """Returns a copy that converts its weights whenever it computes. Large weights exist only once, in the model.

    Args:
        model: A model in evaluation mode.
        convert: The conversion, which must return the same for the same weights in the same place.
    """
    shared = {id(parameter): nn.Parameter(parameter.data, requires_grad=False) for parameter in model.parameters()}
    result = copy.deepcopy(model, cast(dict[int, object], shared))
    for place, module in enumerate(list(result.modules())):
        if not isinstance(module, nn.Linear | nn.Embedding):
            for name, parameter in module.named_parameters(recurse=False):
                setattr(module, name, nn.Parameter(convert(parameter.data, place), requires_grad=False))
    places = {module: place for place, module in enumerate(result.modules())}
    for name, module in list(result.named_modules(remove_duplicate=False)):  # stacks may share an embedding
        if isinstance(module, nn.Linear):
            result.set_submodule(name, _Linear(module, convert, places[module]))
        elif isinstance(module, nn.Embedding):
            result.set_submodule(name, _Embedding(module, convert, places[module]))
    return result


class _Linear(nn.Module):
    def __init__(self, linear: nn.Linear, convert: Conversion, place: int) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.convert, self.place = convert, place * 7919  # parts of a weight count on from here

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.split(self.weight, max(1, MOST_NUMBERS // self.weight.size(1)))
        parts = [functional.linear(x, self.convert(part, self.place + i)) for i, part in enumerate(rows)]
        y = torch.cat(parts, -1)
        return y if self.bias is None else y + self.convert(self.bias, self.place)


class _Embedding(nn.Module):
    def __init__(self, embedding: nn.Embedding, convert: Conversion, place: int) -> None:
        super().__init__()
        self.weight = embedding.weight
        self.convert, self.place = convert, place * 7919  # parts of a weight count on from here

    def forward(self, ids: Tensor) -> Tensor:
        return self.convert(functional.embedding(ids, self.weight), self.place)


def unchanged(weight: Tensor, _: int) -> Tensor:
    """Keeps a weight as it is. Products still take a few rows at a time, of which PyTorch makes copies."""
    return weight


def double(weight: Tensor, _: int) -> Tensor:
    """Converts to double precision."""
    return weight.double()


class Perturbation:
    """Moves each number up or down by its last digit.

    Args:
        seed: Perturbations of different seeds differ.
    """

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        epsilon = torch.finfo(torch.float32).eps
        up = torch.rand(2 * MOST_NUMBERS, generator=generator) < 0.5
        self.factors = torch.where(up, 1 + epsilon, 1 - epsilon)

    def __call__(self, weight: Tensor, place: int) -> Tensor:
        count = weight.numel()
        start = place * 104_729 % MOST_NUMBERS
        factors = self.factors[start : start + count]
        if len(factors) < count:  # many rows of a table that are looked up at once
            factors = self.factors.repeat(-(-count // len(self.factors)))[:count]
        return weight * factors.view(weight.shape)
