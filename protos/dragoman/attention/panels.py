"""Which layers and heads are drawn, each alone or as a mean. Layers and heads are counted from 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Weights: TypeAlias = list[Sequence[float]]
"""Shares of attention, [target, source]: what one heat map shows."""


class AttentionWeights(Protocol):
    """Cross-attention of one target, such as dragoman.results.Attention."""

    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def target_tokens(self) -> int: ...
    @property
    def source_tokens(self) -> int: ...
    @property
    def weights(self) -> Sequence[float]:
        """[layers, heads, target_tokens, source_tokens], flat, the source running fastest."""
        ...


@dataclass(frozen=True, slots=True)
class Panels:
    """Heat maps in rows and columns. Names are empty where there is one row, or one column, only."""

    rows: list[list[Weights]]
    row_names: list[str]
    column_names: list[str]
    caption: str


def select(attention: AttentionWeights, *, layer: int | None, head: int | None, grid: bool) -> Panels:
    """Of the layers (down) and heads (across) that were chosen, with `grid` each one's heat map, else their mean.

    Raises:
        ValueError: there is no such layer or head, or the number of weights is not what the shape says.
    """
    shape = (attention.layers, attention.heads, attention.target_tokens, attention.source_tokens)
    if min(shape) < 1 or attention.layers * _head_size(attention) * attention.heads != len(attention.weights):
        raise ValueError(f"attention: {len(attention.weights)} weights do not have the shape {list(shape)}")
    layers = _chosen("layer", layer, attention.layers)
    heads = _chosen("head", head, attention.heads)
    several = [f"{len(each)} {name}s" for name, each in (("layer", layers), ("head", heads)) if len(each) > 1]
    parts = [f"{name} {each[0]}" for name, each in (("layer", layers), ("head", heads)) if len(each) == 1]
    if several:
        parts.append(("" if grid else "mean of ") + " × ".join(several))
    caption = "Cross-attention: " + ", ".join(parts)
    if not grid:
        return Panels([[_mean(attention, [(one, other) for one in layers for other in heads])]], [], [], caption)
    return Panels(
        rows=[[_mean(attention, [(one, other)]) for other in heads] for one in layers],
        row_names=[f"layer {each}" for each in layers] if len(layers) > 1 else [],
        column_names=[f"head {each}" for each in heads] if len(heads) > 1 else [],
        caption=caption,
    )


def _chosen(name: str, chosen: int | None, count: int) -> list[int]:
    if chosen is None:
        return list(range(1, count + 1))
    if not 1 <= chosen <= count:
        raise ValueError(f"{name}: there are {name}s 1 to {count}, but {chosen} was asked for")
    return [chosen]


def _head_size(attention: AttentionWeights) -> int:
    return attention.target_tokens * attention.source_tokens


def _mean(attention: AttentionWeights, places: list[tuple[int, int]]) -> Weights:
    """The mean over (layer, head) pairs."""
    size = _head_size(attention)
    starts = [((layer - 1) * attention.heads + head - 1) * size for layer, head in places]
    slices = [attention.weights[start : start + size] for start in starts]
    flat = slices[0] if len(slices) == 1 else [sum(shares) / len(slices) for shares in zip(*slices, strict=True)]
    return [flat[start : start + attention.source_tokens] for start in range(0, size, attention.source_tokens)]
