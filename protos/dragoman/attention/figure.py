"""The drawing itself, with Matplotlib. Lengths are in inches, sizes of letters in points."""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.style import context
from matplotlib.ticker import MaxNLocator

from dragoman.attention.colours import Palette
from dragoman.attention.panels import Panels

DPI = 200
# Pictures look alike whatever the user's settings are. The shapes of letters are in the file: its reader may lack the
# fonts. NOTE: type 42 in a PDF would lose those of collections of PostScript outlines, such as Noto Sans CJK.
STYLE: list[Any] = ["default", {"svg.fonttype": "path", "svg.hashsalt": "dragoman", "pdf.fonttype": 3}]
_POINTS = 72
_MARGIN = 0.2
_WIDEST = 40.0  # all panels together
# In heights of letters: from one label to the one below at least, the same for labels at 45 degrees, and between labels
# side by side.
_LINE, _SLANTED_LINE, _SPACE = 1.15, 1.7, 0.3
_SMALLEST_PARTED_CELL = 0.12
_BAR_WIDTH, _BAR_HEIGHT, _BAR_GAP = 0.11, 1.8, 0.2


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The most that a cell and the side of a panel measure, the gap between panels, and the size of letters."""

    cell: float
    side: float
    gap: float
    letters: float

    def pitch(self, tokens: int, panels: int) -> float:
        """The side of a cell where so many panels of so many tokens stand side by side."""
        side = min(self.side, _WIDEST / panels - self.gap)
        return min(self.cell, side / tokens)


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
        greatest = max(max(map(max, weights)) for row in rows for weights in row)
        self._range = Normalize(0, greatest or 1)
        self._shades = LinearSegmentedColormap.from_list("attention", palette.shades)
        self._names: dict[str, Any] = {"color": palette.muted, "fontsize": sizes.letters}
        self.figure = Figure((full_width, full_height), dpi=DPI, facecolor=palette.ground)
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
        axes.set_facecolor(palette.ground)
        axes.tick_params(length=2, color=palette.muted, labelcolor=palette.text, labelsize=letters)
        for spine in axes.spines.values():
            spine.set(color=palette.muted, linewidth=0.5)
        return axes

    def _heat_map(self, x: int, y: int, axes: Axes) -> None:
        panels, sources, targets = self._plan.panels, len(self._plan.source), len(self._plan.target)
        axes.imshow(panels.rows[y][x], self._shades, self._range, aspect="auto", interpolation="auto")
        if min(self._pitches) >= _SMALLEST_PARTED_CELL:
            style: dict[str, Any] = {"colors": self._palette.ground, "linewidth": 0.7}
            axes.vlines([each - 0.5 for each in range(1, sources)], -0.5, targets - 0.5, **style)
            axes.hlines([each - 0.5 for each in range(1, targets)], -0.5, sources - 0.5, **style)
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
        if all((one + other) / 2 + _SPACE * letters <= pitch * every for one, other in pairwise([*widths, widths[0]])):
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
        # A token may hold dollar signs, which Matplotlib would read as mathematics.
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
        bar.set_label("share of attention", **self._names)

    def _fit(self) -> None:
        """Writes the caption, and gives the figure the size of what is on it."""
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
