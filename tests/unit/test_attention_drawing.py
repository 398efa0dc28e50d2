"""Pictures of attention: panels, cells, labels, colours and file formats, checked in the rendered pixels."""

import os
import re
import warnings
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray

from dragoman.attention import Theme, draw, labels
from dragoman.attention.figure import DARK, LIGHT, Palette, select_panels
from dragoman.results import Attention, Token

PALETTES = pytest.mark.parametrize(("theme", "palette"), [("light", LIGHT), ("dark", DARK)])
SVG = "{http://www.w3.org/2000/svg}"


def spikes(places: list[list[int]], *, layers: int = 1, heads: int = 1, sources: int) -> Attention:
    """Attention of each target to one source token: places[layer * heads + head][target]."""
    weights = [float(source == place) for targets in places for place in targets for source in range(sources)]
    return Attention(layers, heads, len(places[0]), sources, weights)


def even(targets: int, sources: int, *, layers: int = 1, heads: int = 1) -> Attention:
    """Uniform attention."""
    return Attention(layers, heads, targets, sources, [1 / sources] * (layers * heads * targets * sources))


def pixels(figure: Figure) -> NDArray[np.int_]:
    """Returns the pixels as [row, column, (red, green, blue)], each 0 to 255."""
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].astype(int)


def luminance(colour: Any) -> float:
    """Returns the relative luminance of WCAG for (red, green, blue), 0 to 1."""
    shares = np.asarray(colour) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def contrast(text: Any, background: Any) -> float:
    darker, lighter = sorted((luminance(text), luminance(background)))
    return (lighter + 0.05) / (darker + 0.05)


def rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour[1:]))


def strongest(figure: Figure, panel: int, targets: int, sources: int, palette: Palette) -> list[int]:
    """Returns for each row of a panel, from the top, the column whose middle is nearest to the last shade."""
    picture = pixels(figure)
    height, width = picture.shape[:2]
    place = figure.axes[panel].get_position()
    columns = [round(width * (place.x0 + place.width * (each + 0.5) / sources)) for each in range(sources)]
    rows = [round(height * (1 - place.y1 + place.height * (each + 0.5) / targets)) for each in range(targets)]
    distances = np.abs(picture[np.ix_(rows, columns)] - rgb(palette.shades[-1])).sum(-1)
    assert (distances.min(-1) <= 3).all()
    return [int(each) for each in distances.argmin(-1)]


@PALETTES
def test_rows_are_targets_from_the_top_and_columns_sources_from_the_left(theme: Theme, palette: Palette) -> None:
    places = [3, 0, 1, 4, 2, 2, 6]
    drawing = draw(spikes([places], sources=8), list("abcdefgh"), list("ABCDEFG"), theme=theme)
    assert strongest(drawing.figure(), 0, 7, 8, palette) == places


def test_each_panel_of_a_grid_shows_its_layer_and_head() -> None:
    places = [[(layer * 3 + head * 2 + target) % 5 for target in range(4)] for layer in range(2) for head in range(3)]
    drawing = draw(spikes(places, layers=2, heads=3, sources=5), list("abcde"), list("ABCD"), grid=True)
    figure = drawing.figure()
    assert [strongest(figure, panel, 4, 5, LIGHT) for panel in range(6)] == places
    left = [figure.axes[panel].get_position().x0 for panel in range(6)]
    top = [figure.axes[panel].get_position().y1 for panel in range(6)]
    assert left[0] < left[1] < left[2]
    assert left[:3] == pytest.approx(left[3:])
    assert min(top[:3]) == pytest.approx(max(top[:3]))
    assert top[0] > top[3]
    assert [axes.get_title() for axes in figure.axes[:6]] == ["head 0", "head 1", "head 2", "", "", ""]
    assert [axes.get_ylabel() for axes in figure.axes[:6]] == ["layer 0", "", "", "layer 1", "", ""]


def test_the_end_token_may_be_left_out_of_the_target() -> None:
    tokens = [Token(id=index, text=text) for index, text in enumerate("xyz")]
    figure = draw(even(3, 3), tokens, tokens[:2]).figure()
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["x", "y", "(end)"]
    with pytest.raises(ValueError, match=r"^target: 1 tokens, but attention has weights for 3$"):
        draw(even(3, 3), tokens, tokens[:1])
    with pytest.raises(ValueError, match=r"^source: 2 tokens, but attention has weights for 3$"):
        draw(even(3, 3), tokens[:2], tokens)


@PALETTES
def test_labels_stand_out_from_the_background(theme: Theme, palette: Palette) -> None:
    figure = draw(even(1, 1), ["MMMM"], ["MMMM"], theme=theme).figure()
    picture = pixels(figure)
    background = picture[0, 0]
    assert list(background) == rgb(palette.background)
    texts = [*figure.axes[0].get_xticklabels(), figure.axes[0].yaxis.label, figure.axes[1].yaxis.label, *figure.texts]
    for text in texts:
        box = text.get_window_extent()
        letters = picture[int(picture.shape[0] - box.y1) : int(picture.shape[0] - box.y0), int(box.x0) : int(box.x1)]
        assert max(contrast(colour, background) for colour in np.unique(letters.reshape(-1, 3), axis=0)) >= 4.5


@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_shades_are_steps_of_equal_lightness(palette: Palette) -> None:
    def lightness(colour: str) -> float:  # CIELAB's L*, 0 to 100
        y = luminance(rgb(colour))
        return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y

    steps = [after - before for before, after in pairwise(map(lightness, palette.shades))]
    assert abs(sum(steps)) > 75
    assert max(steps) - min(steps) < 1


@pytest.fixture
def chinese_font() -> None:
    missing = labels.missing_font_warnings(labels.choose_fonts(["你好"]).missing)
    if missing and os.environ.get("CI") != "true":
        pytest.skip(missing[0])
    assert not missing


def picture_of(label: str) -> NDArray[np.int_]:
    """Returns the pixels of a drawing with this row label."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Matplotlib warns about characters without a glyph, and draws boxes
        return pixels(draw(even(1, 1), ["a"], [label]).figure())


def width_of(label: str) -> float:
    return float(draw(even(1, 1), ["a"], [label]).figure().axes[0].get_yticklabels()[0].get_window_extent().width)


def test_arabic_is_joined_and_runs_from_right_to_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, lam, alef, meem = "سلام"
    shaped = picture_of(seen + lam + alef + meem)
    apart = picture_of("\u200c".join((seen, lam, alef, meem)))
    # The shapes by name in visual order; an override keeps Matplotlib from reordering them.
    monkeypatch.setattr("dragoman.attention.labels.label", lambda token, missing=(): token)
    meem_isolated, lam_alef_final, seen_initial = "\ufee1", "\ufefc", "\ufeb3"
    by_hand = picture_of("\N{LEFT-TO-RIGHT OVERRIDE}" + meem_isolated + lam_alef_final + seen_initial)
    mirrored = picture_of("\N{LEFT-TO-RIGHT OVERRIDE}" + seen_initial + lam_alef_final + meem_isolated)
    assert np.array_equal(shaped, by_hand)
    assert not np.array_equal(shaped, apart)
    assert not np.array_equal(shaped, mirrored)


@pytest.mark.usefixtures("chinese_font")
def test_chinese_has_its_characters() -> None:
    assert not np.array_equal(picture_of("你"), picture_of("好"))  # as boxes would be
    assert width_of("你") == width_of("好") == pytest.approx(width_of("你好") / 2, rel=0.1)


@pytest.mark.usefixtures("chinese_font")
def test_scripts_may_be_mixed() -> None:
    picture_of("▁ab你مرحبا")


def test_math_and_odd_characters_are_drawn_as_text() -> None:
    for odd in ("$x^2$", "$\\frac$", "$", "\\n", "\0", "\u0301", "\u200d", "می\u200cخواهم", "e\u0301", "<0xE4>", ""):
        picture_of(odd)
    assert width_of("$x$") > width_of("x")


def boxes(texts: list[Text]) -> list[tuple[float, float, float, float]]:
    return [(box.x0, box.x1, box.y0, box.y1) for box in (text.get_window_extent() for text in texts)]


@pytest.mark.parametrize(
    ("targets", "sources", "layers", "heads", "grid"),
    [
        (1, 1, 1, 1, False),
        (3, 300, 1, 1, False),
        (300, 2, 1, 1, False),
        (64, 64, 1, 1, False),
        (64, 64, 6, 8, True),
        (12, 12, 2, 3, True),
        (2, 2, 12, 2, True),
    ],
)
def test_labels_neither_overlap_nor_leave_the_picture(
    targets: int, sources: int, layers: int, heads: int, grid: bool
) -> None:
    words = ["▁internationalisation", "▁tokens", "<0xE4>"]
    figure = draw(
        even(targets, sources, layers=layers, heads=heads),
        [words[index % len(words)] for index in range(sources)],
        [words[index % len(words)] for index in range(targets)],
        grid=grid,
    ).figure()
    rows = [text for text in figure.axes[0].get_yticklabels() if text.get_text()]
    columns = [text for axes in figure.axes[:heads] for text in axes.get_xticklabels() if text.get_text()]
    letters = 7 if grid else 9
    assert {text.get_fontsize() for text in rows + columns} == {letters}
    for (_, _, bottom, _), (_, _, _, top) in pairwise(boxes(rows)):
        assert top <= bottom
    for one, other in pairwise(columns):
        (left, right, _, _), (next_left, _, _, _) = boxes([one, other])
        slanted = one.get_rotation() == 45  # the distance between slanted lines is less than between their starts
        height = letters * figure.dpi / 72
        assert (next_left - left) / 2**0.5 >= height if slanted else right <= next_left
    extent = figure.get_tightbbox()
    width, height = figure.get_size_inches()
    assert min(extent.x0, extent.y0, width - extent.x1, height - extent.y1) > 0.1
    assert max(width, height) * figure.dpi < 12_000
    assert len(rows) >= min(targets, 20)
    assert len(columns) >= min(sources, 20)


@pytest.mark.parametrize(
    ("theme", "format", "start"),
    [("dark", "png", b"\x89PNG"), ("auto", "svg", b"<?xml"), ("light", "svg", b"<?xml"), ("light", "pdf", b"%PDF-")],
)
def test_files_are_reproducible_whatever_the_settings(
    theme: Theme, format: str, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content() -> bytes:
        return draw(even(2, 2), ["a", "ب"], ["c", "d"], theme=theme).render(format)

    first = content()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")  # the date that Matplotlib would write
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 20, "svg.fonttype": "none"}):
        assert content() == first
    assert first.startswith(start)


def test_an_svg_has_both_themes_and_shows_one() -> None:
    drawing = draw(even(2, 2), ["a", "ب"], ["c", "d"])
    root = ElementTree.fromstring(drawing.render("svg"))
    style = root.find(f"{SVG}style")
    assert style is not None
    assert style.text == "@media (prefers-color-scheme: dark) { #light { display: none } #dark { display: inline } }"
    themes = {group.get("id"): group for group in root.findall(f"{SVG}g")}
    assert [(name, group.get("display")) for name, group in themes.items()] == [("dark", "none"), ("light", "inline")]
    for name, palette in (("light", LIGHT), ("dark", DARK)):
        background = themes[name].find(f".//{SVG}path")
        assert background is not None
        assert background.get("style") == f"fill: {palette.background}"
    names = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(names) == len(set(names))
    for theme, group in themes.items():
        text = ElementTree.tostring(group, encoding="unicode")
        references = [first or second for first, second in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text)]
        assert references
        assert set(references) <= set(names)
        assert {reference.startswith("dark-") for reference in references} == {theme == "dark"}


def test_unknown_formats_and_themes_are_refused(tmp_path: Any) -> None:
    drawing = draw(even(1, 1), ["a"], ["b"])
    with pytest.raises(ValueError, match=r"picture\.jpg: the file name must end in \.png, \.svg or \.pdf$"):
        drawing.save(tmp_path / "picture.jpg")
    with pytest.raises(ValueError, match="theme: expected one of light, dark, auto, got 'blue'"):
        draw(even(1, 1), ["a"], ["b"], theme="blue")  # type: ignore[arg-type]
    drawing.save(tmp_path / "picture.PNG")
    assert (tmp_path / "picture.PNG").read_bytes() == drawing.render("png") == drawing._repr_png_()


@pytest.fixture
def attention() -> Attention:
    """Attention of 2 layers and 3 heads whose first weight encodes layer and head."""
    weights = [weight for layer in range(2) for head in range(3) for weight in (layer / 2 + head / 10, 1.0)]
    return Attention(layers=2, heads=3, target_tokens=1, source_tokens=2, weights=weights)


@pytest.mark.parametrize(
    ("options", "weights", "names", "caption"),
    [
        ({}, [[0.35]], ([], []), "mean of 2 layers × 3 heads"),
        ({"layer": 1}, [[0.6]], ([], []), "layer 1, mean of 3 heads"),
        ({"layer": -1}, [[0.6]], ([], []), "layer 1, mean of 3 heads"),
        ({"head": 0}, [[0.25]], ([], []), "head 0, mean of 2 layers"),
        ({"layer": 0, "head": -1}, [[0.2]], ([], []), "layer 0, head 2"),
        (
            {"grid": True},
            [[0.0, 0.1, 0.2], [0.5, 0.6, 0.7]],
            (["layer 0", "layer 1"], ["head 0", "head 1", "head 2"]),
            "2 layers × 3 heads",
        ),
        ({"layer": 1, "grid": True}, [[0.5, 0.6, 0.7]], ([], ["head 0", "head 1", "head 2"]), "layer 1, 3 heads"),
        ({"head": -1, "grid": True}, [[0.2], [0.7]], (["layer 0", "layer 1"], []), "head 2, 2 layers"),
        ({"layer": 1, "head": 1, "grid": True}, [[0.6]], ([], []), "layer 1, head 1"),
    ],
)
def test_panels_are_the_mean_or_a_grid_of_layers_by_heads(
    attention: Attention,
    options: dict[str, Any],
    weights: list[list[float]],
    names: tuple[list[str], list[str]],
    caption: str,
) -> None:
    panels = select_panels(attention, **{"layer": None, "head": None, "grid": False, **options})
    assert [[panel[0][0] for panel in row] for row in panels.rows] == [pytest.approx(row) for row in weights]
    assert all(panel[0][1] == 1.0 for row in panels.rows for panel in row)
    assert (panels.row_names, panels.column_names) == names
    assert panels.caption == f"Cross-attention: {caption}"


@pytest.mark.parametrize(
    ("layer", "head", "message"),
    [
        (2, None, "layer: there is no 2; the layers are 0 to 1, or -1 for the last"),
        (-3, None, "layer: there is no -3; the layers are 0 to 1, or -1 for the last"),
        (None, 3, "head: there is no 3; the heads are 0 to 2, or -1 for the last"),
    ],
)
def test_missing_layers_and_heads_are_refused(
    attention: Attention, layer: int | None, head: int | None, message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        select_panels(attention, layer=layer, head=head, grid=False)


def test_empty_attention_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        select_panels(Attention(2, 3, 0, 5, []), layer=None, head=None, grid=False)
