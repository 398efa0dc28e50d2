"""The drawing itself, with Matplotlib. Lengths are in inches, letters in points."""

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.style import context
from matplotlib.transforms import Bbox

from dragoman.attention.colours import Palette
from dragoman.attention.panels import Panels

DPI = 200
# Pictures look alike whatever the user's settings are, and shapes of letters are part of the file: its reader may lack
# the fonts.
STYLE: list[Any] = ["default", {"svg.fonttype": "path", "svg.hashsalt": "dragoman", "pdf.fonttype": 42}]
_POINTS = 72
_MARGIN = 0.2
_LINE = 1.2  # from one line of text to the next, in heights of its letters
_WIDEST = 40.0  # all panels together


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The most that a cell and the side of a panel measure, the gap between panels, and the size of letters."""

    cell: float
    side: float
    gap: float
    letters: float

    @property
    def line(self) -> float:
        return _LINE * self.letters / _POINTS


_ONE = _Sizes(cell=0.3, side=13.0, gap=0.0, letters=9)
_GRID = _Sizes(cell=0.17, side=3.0, gap=0.12, letters=7)


@dataclass(frozen=True, slots=True)
class Plan:
    """All but the colours: the heat maps, the labels of their columns and rows, and the fonts to write them in."""

    panels: Panels
    source: list[str]
    target: list[str]
    families: tuple[str, ...]


def build(plan: Plan, palette: Palette) -> Figure:
    """The picture. Its colours run from 0 to the greatest share in it, in all panels alike."""
    with context(STYLE):
        return _build(plan, palette)


def _build(plan: Plan, palette: Palette) -> Figure:
    rows = plan.panels.rows
    sizes = _ONE if len(rows) * len(rows[0]) == 1 else _GRID
    width = _side(len(plan.source), len(rows[0]), sizes)
    height = _side(len(plan.target), len(rows), sizes)
    full_width = len(rows[0]) * (width + sizes.gap) - sizes.gap
    full_height = len(rows) * (height + sizes.gap) - sizes.gap
    figure = Figure(figsize=(full_width, full_height), dpi=DPI, facecolor=palette.ground)
    canvas = FigureCanvasAgg(figure)
    shades = ScalarMappable(
        Normalize(0, max((max(map(max, panel)) for row in rows for panel in row)) or 1),
        LinearSegmentedColormap.from_list("attention", palette.shades),
    )

    boxes: dict[Axes, Bbox] = {}
    for down, row in enumerate(rows):
        for across, weights in enumerate(row):
            left, top = across * (width + sizes.gap), full_height - down * (height + sizes.gap)
            axes = _axes(figure, boxes, Bbox.from_extents(left, top - height, left + width, top), palette)
            axes.imshow(weights, cmap=shades.cmap, norm=shades.norm, aspect="auto", interpolation="nearest")
            if min(width / len(plan.source), height / len(plan.target)) > 0.1:
                _part_cells(axes, palette)
            axes.set(xticks=[], yticks=[])
            if down == 0:
                _label(axes, "x", plan.source, width / len(plan.source), sizes, plan.families, palette)
            if across == 0:
                _label(axes, "y", plan.target, height / len(plan.target), sizes, plan.families, palette)
    ...
