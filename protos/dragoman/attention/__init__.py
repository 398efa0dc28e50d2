"""Draws cross-attention as heat maps. Requires the extra `attention`.

from dragoman import Client
from dragoman.attention import draw

with Client("127.0.0.1:50051") as client:
    answer = client.generate("dragoman", attention=True)
draw(answer.attention, answer.source, answer.tokens).save("heatmap.svg")
"""

import warnings
from collections.abc import Sequence
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from dragoman.results import Attention, Token

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dragoman.attention.figure import Plan

__all__ = [
    "Drawing",
    "MissingExtraError",
    "MissingFontWarning",
    "Theme",
    "check_format",
    "check_installed",
    "draw",
]

Theme: TypeAlias = Literal["light", "dark", "auto"]
_FORMATS = ("png", "svg", "pdf")
_END = "(end)"
# The first version that shapes Arabic and orders it from right to left.
_MIN_MATPLOTLIB = (3, 11)


class MissingExtraError(ImportError):
    """Matplotlib is not installed or too old. str() says how to install it."""


class MissingFontWarning(UserWarning):
    """No installed font has some characters; they are drawn as code points. str() says which package has a font."""


def draw(
    attention: Attention,
    source: Sequence[str | Token],
    target: Sequence[str | Token],
    *,
    layer: int | None = None,
    head: int | None = None,
    grid: bool = False,
    theme: Theme = "auto",
) -> "Drawing":
    """Draws attention as a heat map with one row per target token and one column per source token.

    Args:
        attention: The weights, from the client or other sources.
        source: The source tokens, or their texts.
        target: The target tokens, or their texts. If the end token is left out, it is labelled "(end)". If the answer
            was cut, the last row is the token that would have come next: add a text for it.
        layer: Only this layer; negative indices count from the last. None for all layers.
        head: Only this head, likewise; None for all heads.
        grid: Draw one heat map per layer and head instead of their mean.
        theme: "light", "dark", or "auto": an SVG follows the settings of its viewer, other formats are light. The
            background is always painted, so that the picture is readable on any page.

    Returns:
        The drawing, to save or to change.

    Raises:
        MissingExtraError: Matplotlib is missing or too old.
        ValueError: The number of tokens does not match the weights, or there is no such layer, head or theme.

    Warns:
        MissingFontWarning: For each script that no installed font has.
    """
    check_installed()
    from dragoman.attention import labels
    from dragoman.attention.figure import Plan, select_panels

    if theme not in get_args(Theme):
        raise ValueError(f"theme: expected one of {', '.join(get_args(Theme))}, got {theme!r}")
    panels = select_panels(attention, layer=layer, head=head, grid=grid)
    sources, targets = _texts(source), _texts(target)
    if len(targets) == attention.target_tokens - 1:
        targets.append(_END)
    for name, texts, count in (
        ("source", sources, attention.source_tokens),
        ("target", targets, attention.target_tokens),
    ):
        if len(texts) != count:
            raise ValueError(f"{name}: {len(texts)} tokens, but attention has weights for {count}")
    fonts = labels.choose_fonts(map(labels.label, sources + targets))
    for message in labels.missing_font_warnings(fonts.missing):
        warnings.warn(message, MissingFontWarning, stacklevel=2)
    columns = [labels.label(text, fonts.missing) for text in sources]
    rows = [labels.label(text, fonts.missing) for text in targets]
    return Drawing(Plan(panels, columns, rows, fonts.families), theme)


class Drawing:
    """A drawing of attention. Save it, change it as a Matplotlib figure, or display it in a notebook."""

    def __init__(self, plan: "Plan", theme: Theme) -> None:
        self._plan = plan
        self._theme = theme

    def figure(self) -> "Figure":
        """Returns a new Matplotlib figure; a light one if the theme is "auto"."""
        from dragoman.attention.figure import DARK, LIGHT, build

        return build(self._plan, DARK if self._theme == "dark" else LIGHT)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a .png, .svg or .pdf file.

        Raises:
            ValueError: The name ends otherwise.
            OSError: The file cannot be written.
        """
        content = self.render(check_format(path))
        Path(path).write_bytes(content)

    def render(self, format: str) -> bytes:
        """Returns the content of a file in the format "png", "svg" or "pdf"."""
        from dragoman.attention.figure import DARK, LIGHT, adaptive_svg, build

        if format == "svg" and self._theme == "auto":
            return adaptive_svg(_rendered(build(self._plan, LIGHT), format), _rendered(build(self._plan, DARK), format))
        return _rendered(self.figure(), format)

    def _repr_png_(self) -> bytes:
        return self.render("png")


def check_format(path: str | PathLike[str]) -> str:
    """Returns the format for the name of a file.

    Raises:
        ValueError: The format is not supported.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in _FORMATS:
        raise ValueError(f"{Path(path)}: the file name must end in .png, .svg or .pdf")
    return suffix


def check_installed() -> None:
    """Checks that Matplotlib is installed.

    Raises:
        MissingExtraError: Matplotlib is missing or too old.
    """
    remedy = "run `pip install '.[attention]'` in a clone of Dragoman"
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError(f"matplotlib is not installed; {remedy}") from None
    if matplotlib.__version_info__[:2] < _MIN_MATPLOTLIB:
        needed = ".".join(map(str, _MIN_MATPLOTLIB))
        raise MissingExtraError(f"matplotlib {needed} is needed, not {matplotlib.__version__}; {remedy}")


def _rendered(figure: "Figure", format: str) -> bytes:
    from matplotlib.style import context

    from dragoman.attention.figure import STYLE

    # No date: the same drawing is the same file.
    metadata: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    content = BytesIO()
    with context(STYLE):
        figure.savefig(content, format=format, metadata=metadata[format])
    return content.getvalue()


def _texts(tokens: Sequence[str | Token]) -> list[str]:
    return [token if isinstance(token, str) else token.text for token in tokens]
