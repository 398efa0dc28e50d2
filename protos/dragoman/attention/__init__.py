"""Pictures of cross-attention: where in the source the tokens of a target look. Needs the `attention` extra.

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

from dragoman.attention.colours import DARK, LIGHT
from dragoman.attention.labels import label
from dragoman.attention.panels import select
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
# The first that shapes Arabic and orders it from right to left.
_OLDEST_MATPLOTLIB = (3, 11)


class MissingExtraError(ImportError):
    """Matplotlib is not installed, or too old; str() is one sentence that says how to get it."""


class MissingFontWarning(UserWarning):
    """No installed font has some characters, which are drawn by their numbers; str() says what brings one."""


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
    """A heat map: a row for each token of the target, a column for each of the source, from left to right.

    Args:
        attention: what the client returns, or made of other weights.
        source: its tokens, or their texts.
        target: its tokens, or their texts; the end token may be left out, and is "(end)" then. Where the answer was
            cut, the row behind its tokens is of what would have come next: add a text that says so.
        layer: this layer only, counted from 0, or with -1 from the last; None for all.
        head: this head only, counted like that; None for all.
        grid: a heat map for each of these layers and heads, instead of one with their mean.
        theme: "light" or "dark"; "auto" leaves it to the settings of whoever looks at an SVG, and is light in other
            formats. The background is painted in any case, so that all are readable on any page.

    Raises:
        MissingExtraError: Matplotlib is missing or too old.
        ValueError: numbers of tokens and of weights do not fit, or there is no such layer, head or theme.

    Warns:
        MissingFontWarning: for each script that no installed font has.
    """
    check_installed()
    from dragoman.attention import fonts
    from dragoman.attention.figure import Plan

    if theme not in get_args(Theme):
        raise ValueError(f"theme: expected one of {', '.join(get_args(Theme))}, got {theme!r}")
    panels = select(attention, layer=layer, head=head, grid=grid)
    sources, targets = _texts(source), _texts(target)
    if len(targets) == attention.target_tokens - 1:
        targets.append(_END)
    for name, texts, count in (
        ("source", sources, attention.source_tokens),
        ("target", targets, attention.target_tokens),
    ):
        if len(texts) != count:
            raise ValueError(f"{name}: {len(texts)} tokens, but attention has weights for {count}")
    chosen = fonts.choose(map(label, sources + targets))
    for sentence in fonts.complaints(chosen.missing):
        warnings.warn(sentence, MissingFontWarning, stacklevel=2)
    columns = [label(text, chosen.missing) for text in sources]
    rows = [label(text, chosen.missing) for text in targets]
    return Drawing(Plan(panels, columns, rows, chosen.families), theme)


class Drawing:
    """A picture of attention, to be saved or to be changed as a Matplotlib figure. A notebook shows it as it is."""

    def __init__(self, plan: "Plan", theme: Theme) -> None:
        self._plan = plan
        self._theme = theme

    def figure(self) -> "Figure":
        """A new Matplotlib figure; light where the theme is "auto"."""
        from dragoman.attention.figure import build

        return build(self._plan, DARK if self._theme == "dark" else LIGHT)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a .png, .svg or .pdf file, as its name ends.

        Raises:
            ValueError: it ends otherwise.
            OSError: it cannot be written.
        """
        content = self.render(check_format(path))
        Path(path).write_bytes(content)

    def render(self, format: str) -> bytes:
        """The content of a file of this format: "png", "svg" or "pdf"."""
        from dragoman.attention.figure import build
        from dragoman.attention.svg import adaptive

        if format == "svg" and self._theme == "auto":
            return adaptive(_rendered(build(self._plan, LIGHT), format), _rendered(build(self._plan, DARK), format))
        return _rendered(self.figure(), format)

    def _repr_png_(self) -> bytes:
        return self.render("png")


def check_format(path: str | PathLike[str]) -> str:
    """The format that a file's name asks for.

    Raises:
        ValueError: none that can be written.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in _FORMATS:
        raise ValueError(f"{Path(path)}: the name of a picture must end in .png, .svg or .pdf")
    return suffix


def check_installed() -> None:
    """Whether pictures can be drawn here.

    Raises:
        MissingExtraError: Matplotlib is missing or too old.
    """
    remedy = "`pip install '.[attention]'` in a clone of Dragoman brings it"
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError(f"matplotlib is not installed; {remedy}") from None
    if matplotlib.__version_info__[:2] < _OLDEST_MATPLOTLIB:
        needed = ".".join(map(str, _OLDEST_MATPLOTLIB))
        raise MissingExtraError(f"matplotlib {needed} is needed, not {matplotlib.__version__}; {remedy}")


def _rendered(figure: "Figure", format: str) -> bytes:
    from matplotlib.style import context

    from dragoman.attention.figure import STYLE

    # The same picture is the same file: no date in it.
    metadata: dict[str, dict[str, Any]] = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    content = BytesIO()
    with context(STYLE):
        figure.savefig(content, format=format, metadata=metadata[format])
    return content.getvalue()


def _texts(tokens: Sequence[str | Token]) -> list[str]:
    return [token if isinstance(token, str) else token.text for token in tokens]
