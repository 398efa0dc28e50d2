"""Which fonts a picture is written in, and what is said where none has a character."""

import shutil
import warnings
from pathlib import Path

import matplotlib
import pytest
from matplotlib import font_manager

from dragoman.attention import MissingFontWarning, draw, labels
from dragoman.results import Attention

ONE = Attention(layers=1, heads=1, target_tokens=1, source_tokens=1, weights=[1.0])
# Of the fonts that come with Matplotlib, STIX has this and DejaVu Sans has not.
SCRIPT_CAPITAL_A = "\N{MATHEMATICAL SCRIPT CAPITAL A}"


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine that has the base font only; append the paths of fonts that have been installed since."""
    installed: list[str] = []
    base = [entry for entry in font_manager.fontManager.ttflist if entry.name == labels.BASE_FONT]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", base)
    monkeypatch.setattr(labels, "findSystemFonts", lambda: installed)
    return installed


@pytest.mark.usefixtures("bare_machine")
def test_the_base_font_has_latin_greek_cyrillic_arabic_and_our_own_signs() -> None:
    texts = ["Straße", "naïve", "Ελληνικά", "Привет", "مرحبا بالعالم", "می\u200cخواهم", "שלום", "▁Ġ␣◌…×"]
    assert labels.choose_fonts(texts) == labels.Fonts((labels.BASE_FONT,), ())


def test_fonts_installed_since_matplotlib_listed_them_are_found(bare_machine: list[str], tmp_path: Path) -> None:
    assert labels.choose_fonts([SCRIPT_CAPITAL_A]).missing == (SCRIPT_CAPITAL_A,)
    damaged, gone, new = tmp_path / "damaged.ttf", tmp_path / "gone.ttf", tmp_path / "new.ttf"
    damaged.write_bytes(b"no font")
    shutil.copy(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "STIXGeneral.ttf", new)
    bare_machine += map(str, (damaged, gone, new))
    found = labels.choose_fonts(["a", SCRIPT_CAPITAL_A])
    assert found == labels.Fonts((labels.BASE_FONT, "STIXGeneral"), ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(ONE, [SCRIPT_CAPITAL_A], ["a"]).render("png")


def test_no_more_fonts_are_taken_than_are_needed() -> None:
    assert labels.choose_fonts(["abc"]).families == (labels.BASE_FONT,)


@pytest.mark.usefixtures("bare_machine")
def test_characters_without_a_font_are_named_and_drawn_by_their_numbers() -> None:
    with pytest.warns(MissingFontWarning) as caught:
        drawing = draw(ONE, ["你好"], ["ば한"])
    assert [str(warning.message) for warning in caught] == [
        f"no installed font has {script} characters such as {character}, drawn as {number}; "
        f"on Debian and Ubuntu, install the package fonts-wqy-microhei"
        for script, character, number in (
            ("Japanese", "ば", "<U+3070>"),
            ("Chinese", "你", "<U+4F60>"),
            ("Korean", "한", "<U+D55C>"),
        )
    ]
    assert {warning.filename for warning in caught} == {__file__}
    axes = drawing.figure().axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["<U+4F60><U+597D>"]
    with warnings.catch_warnings():  # no boxes: Matplotlib warns of each that it draws
        warnings.simplefilter("error")
        drawing.render("png")


@pytest.mark.parametrize(
    ("character", "script", "package"),
    [
        ("न", "Devanagari", "fonts-noto-core"),
        ("ि", "Devanagari", "fonts-noto-core"),
        ("አ", "Ethiopic", "fonts-noto-core"),
        ("！", "full-width", "fonts-wqy-microhei"),
        ("👍", "symbol", "fonts-symbola"),
    ],
)
def test_scripts_are_told_apart(character: str, script: str, package: str) -> None:
    (sentence,) = labels.missing_font_warnings([character])
    assert sentence.startswith(f"no installed font has {script} characters such as {character}, drawn as <U+")
    assert f"install the package {package}" in sentence
