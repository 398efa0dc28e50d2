"""Draws attention with Matplotlib. Lengths are in inches, font sizes in points."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any, TypeAlias
from xml.etree import ElementTree

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.style import context
from matplotlib.ticker import MaxNLocator

from dragoman.results import Attention

DPI = 200
# The same look whatever the user's settings are. Glyphs are embedded as shapes, since the viewer may lack the fonts.
# NOTE: type 42 in a PDF would lose the glyphs of collections with PostScript outlines, such as Noto Sans CJK.
STYLE: list[Any] = ["default", {"svg.fonttype": "path", "svg.hashsalt": "dragoman", "pdf.fonttype": 3}]
_POINTS = 72
_MARGIN = 0.2
_MAX_WIDTH = 40.0  # of all panels together
# In font sizes: minimum distance between labels in a column, between labels at 45 degrees, and between labels in a row.
_LINE, _SLANTED_LINE, _SPACE = 1.15, 1.7, 0.3
_MIN_CELL_WITH_LINES = 0.12
_BAR_WIDTH, _BAR_HEIGHT, _BAR_GAP = 0.11, 1.8, 0.2
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
# Programs without media queries (Inkscape, librsvg) and those that ignore `display` show the light version.
_SVG_STYLE = "@media (prefers-color-scheme: dark) { #light { display: none } #dark { display: inline } }"


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours as "#rrggbb". Text and background differ by a contrast of at least 4.5, as WCAG requires for small text.

    Attributes:
        background: Background, always painted, so that the picture is readable on any page.
        text: Labels.
        muted: Axis names, ticks and frames.
        shades: Shades of the heat maps, from no attention to the maximum.
    """

    background: str
    text: str
    muted: str
    shades: tuple[str, ...]


# Shades of one hue (CIELAB, 272°) in equal steps of lightness, so that equal differences look equal, in greyscale
# too: from 97 down to 18, and from 13 up to 95.
LIGHT = Palette(
    background="#ffffff",
    text="#1b1f24",
    muted="#59636e",
    shades=(
        "#f3f7fe",
        "#cedbf2",
        "#a9c0e7",
        "#82a6db",
        "#558dcf",
        "#1d74bd",
        "#0d5c98",
        "#074473",
        "#032e50",
    ),
)
DARK = Palette(
    background="#0d1117",
    text="#e6edf3",
    muted="#9198a1",
    shades=(
        "#1b222c",
        "#1f3957",
        "#145186",
        "#116baf",
        "#3585d0",
        "#599fee",
        "#89bafd",
        "#bdd5fe",
        "#eaf1ff",
    ),
)


Weights: TypeAlias = Sequence[Sequence[float]]
"""Attention weights of one heat map, [target][source]."""


@dataclass(frozen=True, slots=True)
class Panels:
    """Heat maps in rows and columns.

    Attributes:
        rows: The weights of each heat map, by row and column.
        row_names: Names of the rows; empty if there is only one.
        column_names: Names of the columns; empty if there is only one.
        caption: Title of the picture.
    """

    rows: list[list[Weights]]
    row_names: list[str]
    column_names: list[str]
    caption: str


def select_panels(attention: Attention, *, layer: int | None, head: int | None, grid: bool) -> Panels:
    """Returns the heat maps of the selected layers (rows) and heads (columns), or without `grid` their mean.

    Raises:
        ValueError: There is no such layer or head, or nothing to draw.
    """
    if 0 in attention.shape:
        raise ValueError(f"attention: nothing to draw in the shape {attention.shape}")
    layers = _selected("layer", layer, attention.layers)
    heads = _selected("head", head, attention.heads)
    axes = (("layer", layers), ("head", heads))
    parts = [f"{name} {indices[0]}" for name, indices in axes if len(indices) == 1]
    several = [f"{len(indices)} {name}s" for name, indices in axes if len(indices) > 1]
    if several:
        parts.append(("" if grid else "mean of ") + " × ".join(several))
    caption = "Cross-attention: " + ", ".join(parts)
    if not grid:
        return Panels([[attention.mean(layer, head)]], [], [], caption)
    return Panels(
        rows=[[attention.matrix(row, column) for column in heads] for row in layers],
        row_names=[f"layer {index}" for index in layers] if len(layers) > 1 else [],
        column_names=[f"head {index}" for index in heads] if len(heads) > 1 else [],
        caption=caption,
    )


def _selected(name: str, index: int | None, count: int) -> range:
    if index is None:
        return range(count)
    if not -count <= index < count:
        raise ValueError(f"{name}: there is no {index}; the {name}s are 0 to {count - 1}, or -1 for the last")
    return range(count)[index:][:1]


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Sizes of a picture.

    Attributes:
        cell: Maximum side of a cell.
        side: Maximum side of a panel.
        gap: Gap between panels.
        letters: Font size.
    """

    cell: float
    side: float
    gap: float
    letters: float

    def pitch(self, tokens: int, panels: int) -> float:
        """Returns the side of a cell for `panels` panels of `tokens` tokens side by side."""
        side = min(self.side, _MAX_WIDTH / panels - self.gap)
        return min(self.cell, side / tokens)


_ONE = _Sizes(cell=0.3, side=13.0, gap=0.0, letters=9)
_GRID = _Sizes(cell=0.17, side=3.0, gap=0.12, letters=7)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything in a picture but its colours.

    Attributes:
        panels: The heat maps.
        source: Labels of the columns.
        target: Labels of the rows.
        families: Font families for the labels.
    """

    panels: Panels
    source: list[str]
    target: list[str]
    families: tuple[str, ...]


def build(plan: Plan, palette: Palette) -> Figure:
    """Returns the figure. In all panels the colours run from 0 to the largest weight of the picture."""
    with context(STYLE):
        return _Builder(plan, palette).figure


class _Builder:
    def __init__(self, plan: Plan, palette: Palette) -> None:
        self._plan, self._palette = plan, palette
        rows = plan.panels.rows
        down, across = len(rows), len(rows[0])
        self._single = down == across == 1
        self._sizes = sizes = _ONE if self._single else _GRID
        self._pitches = sizes.pitch(len(plan.source), across), sizes.pitch(len(plan.target), down)
        width, height = self._pitches[0] * len(plan.source), self._pitches[1] * len(plan.target)
        full_width, full_height = across * (width + sizes.gap) - sizes.gap, down * (height + sizes.gap) - sizes.gap
        largest = max(max(map(max, weights)) for row in rows for weights in row)
        self._range = Normalize(0, largest or 1)
        self._shades = LinearSegmentedColormap.from_list("attention", palette.shades)
        self._names: dict[str, Any] = {"color": palette.muted, "fontsize": sizes.letters}
        self.figure = Figure((full_width, full_height), dpi=DPI, facecolor=palette.background)
        canvas: Any = FigureCanvasAgg(self.figure)
        self._renderer = canvas.get_renderer()
        for y in range(down):
            for x in range(across):
                top = full_height - y * (height + sizes.gap)
                self._heat_map(x, y, self._axes(x * (width + sizes.gap), top - height, width, height))
        bar_height = min(_BAR_HEIGHT, max(full_height, _BAR_HEIGHT / 2))
        self._colour_bar(self._axes(full_width + _BAR_GAP, full_height - bar_height, _BAR_WIDTH, bar_height))
        self._fit()

    def _axes(self, left: float, bottom: float, width: float, height: float) -> Axes:
        full_width, full_height = self.figure.get_size_inches()
        axes = self.figure.add_axes((left / full_width, bottom / full_height, width / full_width, height / full_height))
        palette, letters = self._palette, self._sizes.letters
        axes.set_facecolor(palette.background)
        axes.tick_params(length=2, color=palette.muted, labelcolor=palette.text, labelsize=letters)
        for spine in axes.spines.values():
            spine.set(color=palette.muted, linewidth=0.5)
        return axes

    def _heat_map(self, x: int, y: int, axes: Axes) -> None:
        panels, sources, targets = self._plan.panels, len(self._plan.source), len(self._plan.target)
        axes.imshow(panels.rows[y][x], self._shades, self._range, aspect="auto", interpolation="auto")
        if min(self._pitches) >= _MIN_CELL_WITH_LINES:
            style: dict[str, Any] = {"colors": self._palette.background, "linewidth": 0.7}
            axes.vlines([column - 0.5 for column in range(1, sources)], -0.5, targets - 0.5, **style)
            axes.hlines([row - 0.5 for row in range(1, targets)], -0.5, sources - 0.5, **style)
        axes.set(xticks=[], yticks=[])
        if y == 0:
            self._label_columns(axes)
            if panels.column_names:
                axes.set_title(panels.column_names[x], pad=4, **self._names)
        if x == 0:
            self._label_rows(axes)
            if panels.row_names:
                axes.set_ylabel(panels.row_names[y], **self._names)
        if self._single:
            axes.xaxis.set_label_position("top")
            axes.set_xlabel("source", **self._names)
            axes.set_ylabel("target", **self._names)

    def _label_columns(self, axes: Axes) -> None:
        pitch, letters = self._pitches[0], self._sizes.letters / _POINTS
        every = ceil(_LINE * letters / pitch)
        labels = self._plan.source[::every]
        turned: dict[str, Any] = {"rotation": 90}
        widths = self._widths(labels)
        if all(
            (left + right) / 2 + _SPACE * letters <= pitch * every for left, right in pairwise([*widths, widths[0]])
        ):
            turned = {}
        elif pitch * every >= _SLANTED_LINE * letters:
            turned = {"rotation": 45, "ha": "left", "va": "baseline", "rotation_mode": "anchor"}
        axes.xaxis.tick_top()
        axes.set_xticks(range(0, len(self._plan.source), every), labels, **self._letters, **turned)

    def _label_rows(self, axes: Axes) -> None:
        every = ceil(_LINE * self._sizes.letters / _POINTS / self._pitches[1])
        axes.set_yticks(range(0, len(self._plan.target), every), self._plan.target[::every], **self._letters)

    @property
    def _letters(self) -> dict[str, Any]:
        # Matplotlib would interpret dollar signs in tokens as math.
        return {"family": self._plan.families, "fontsize": self._sizes.letters, "parse_math": False}

    def _widths(self, labels: list[str]) -> list[float]:
        texts = [self.figure.text(0, 0, label, **self._letters) for label in labels]
        widths = [text.get_window_extent(self._renderer).width / DPI for text in texts]
        for text in texts:
            text.remove()
        return widths

    def _colour_bar(self, axes: Axes) -> None:
        bar = self.figure.colorbar(ScalarMappable(self._range, self._shades), cax=axes)
        bar.outline.set(color=self._palette.muted, linewidth=0.5)
        axes.yaxis.set_major_locator(MaxNLocator(4))
        bar.set_label("attention weight", **self._names)

    def _fit(self) -> None:
        """Adds the caption and resizes the figure to its content."""
        figure = self.figure
        caption = self._plan.panels.caption + ("" if self._single else "; source across, target down")
        extent = figure.get_tightbbox(self._renderer)
        text = figure.text(
            extent.x0,
            extent.y1 + 0.1,
            caption,
            color=self._palette.text,
            fontsize=self._sizes.letters + 1,
            transform=figure.dpi_scale_trans,
        )
        extent = figure.get_tightbbox(self._renderer).padded(_MARGIN)
        old, new = figure.get_size_inches(), (extent.width, extent.height)
        places = [(axes, axes.get_position()) for axes in figure.axes]
        figure.set_size_inches(*new)
        for axes, place in places:
            axes.set_position(
                (
                    (place.x0 * old[0] - extent.x0) / new[0],
                    (place.y0 * old[1] - extent.y0) / new[1],
                    place.width * old[0] / new[0],
                    place.height * old[1] / new[1],
                )
            )
        x, y = text.get_position()
        text.set_position((x - extent.x0, y - extent.y0))


def adaptive_svg(light: bytes, dark: bytes) -> bytes:
    """Returns one SVG with both versions, which must have the same size; the viewer's settings choose one."""
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    root = ElementTree.fromstring(light)
    style = ElementTree.Element(f"{{{_SVG}}}style")
    style.text = _SVG_STYLE
    shown = _group(root, "light", display="inline")
    hidden = _group(_renamed(ElementTree.fromstring(dark)), "dark", display="none")
    root[:] = [style, hidden, shown]
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _group(root: ElementTree.Element, name: str, display: str) -> ElementTree.Element:
    group = ElementTree.Element(f"{{{_SVG}}}g", {"id": name, "display": display})
    group.extend(child for child in root if child.tag != f"{{{_SVG}}}metadata")
    return group


def _renamed(root: ElementTree.Element) -> ElementTree.Element:
    """Prefixes identifiers and their references with "dark-", so that both versions fit in one document."""
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"dark-{value}")
            elif key == f"{{{_XLINK}}}href" and not value.startswith("data:"):
                element.set(key, value.replace("#", "#dark-"))
            elif "url(#" in value:
                element.set(key, value.replace("url(#", "url(#dark-"))
    return root
