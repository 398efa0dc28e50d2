"""Which layers and heads are drawn, each alone or as a mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dragoman.results import Attention

Weights: TypeAlias = Sequence[Sequence[float]]
"""Shares of attention, [target][source]: what one heat map shows."""


@dataclass(frozen=True, slots=True)
class Panels:
    """Heat maps in rows and columns. The names are empty where there is one row, or one column, only."""

    rows: list[list[Weights]]
    row_names: list[str]
    column_names: list[str]
    caption: str


def select(attention: Attention, *, layer: int | None, head: int | None, grid: bool) -> Panels:
    """Of the layers (down) and heads (across) that were chosen, with `grid` each one's heat map, else their mean.

    Raises:
        ValueError: there is no such layer or head, or nothing to draw.
    """
    if 0 in attention.shape:
        raise ValueError(f"attention: there is nothing to draw in the shape {attention.shape}")
    layers = _chosen("layer", layer, attention.layers)
    heads = _chosen("head", head, attention.heads)
    parts = [f"{name} {each[0]}" for name, each in (("layer", layers), ("head", heads)) if len(each) == 1]
    several = [f"{len(each)} {name}s" for name, each in (("layer", layers), ("head", heads)) if len(each) > 1]
    if several:
        parts.append(("" if grid else "mean of ") + " × ".join(several))
    caption = "Cross-attention: " + ", ".join(parts)
    if not grid:
        return Panels([[attention.mean(layer, head)]], [], [], caption)
    return Panels(
        rows=[[attention.matrix(one, other) for other in heads] for one in layers],
        row_names=[f"layer {each}" for each in layers] if len(layers) > 1 else [],
        column_names=[f"head {each}" for each in heads] if len(heads) > 1 else [],
        caption=caption,
    )


def _chosen(name: str, chosen: int | None, count: int) -> range:
    if chosen is None:
        return range(count)
    if not -count <= chosen < count:
        raise ValueError(f"{name}: there is no {chosen}; the {name}s are 0 to {count - 1}, or -1 for the last")
    return range(count)[chosen:][:1]
