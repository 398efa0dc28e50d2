"""Labels of tokens in pictures of attention, and the fonts they are drawn in."""

import shutil
import warnings
from pathlib import Path

import matplotlib
import pytest
from matplotlib import font_manager

from dragoman.attention import MissingFontWarning, draw, labels
from dragoman.attention.labels import label
from dragoman.results import Attention

ONE = Attention(layers=1, heads=1, target_tokens=1, source_tokens=1, weights=[1.0])
# Of the fonts that ship with Matplotlib, STIX has this one and DejaVu Sans does not.
SCRIPT_CAPITAL_A = "\N{MATHEMATICAL SCRIPT CAPITAL A}"


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("▁the", "▁the"),
        ("▁", "▁"),
        ("Ġthe", "Ġthe"),
        ("<0xE4>", "<0xE4>"),
        ("你好", "你好"),
        ("مرحبا", "مرحبا"),
        ("", '""'),
        (" ", "␣"),
        ("a b ", "a␣b␣"),
        ("\t\r\n", r"\t\r\n"),
        ("a\0", "a<U+0000>"),
        ("\x7f", "<U+007F>"),
        ("\xa0", "<U+00A0>"),
        ("\u3000", "<U+3000>"),
        ("\u2028", "<U+2028>"),
        ("\u202eabc", "<U+202E>abc"),  # would turn what follows round
        ("\u200b", "<U+200B>"),
        ("\ufeff", "<U+FEFF>"),
        ("\ue000", "<U+E000>"),
        ("\ud800", "<U+D800>"),
        ("\u0301", "◌\u0301"),
        ("e\u0301", "e\u0301"),
        ("\u093f", "◌\u093f"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # Persian: a letter that must not join the next
        ("\u200cخواهم", "<U+200C>خواهم"),
        ("\u200d", "<U+200D>"),
        ("❤\ufe0f", "❤"),
        ("\ufe0f", "<U+FE0F>"),
        ("a" * 20, "a" * 20),
        ("a" * 21, "a" * 19 + "…"),
    ],
)
def test_labels_show_every_character(token: str, shown: str) -> None:
    assert label(token) == shown


def test_characters_without_a_font_are_shown_as_code_points() -> None:
    assert label("a你\u0301", missing={"你"}) == "a<U+4F60>\u0301"
    assert label("\u0301", missing={"\u0301"}) == "<U+0301>"


@pytest.fixture
def bare_machine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A machine with the base font only. Append the paths of fonts that are installed later."""
    installed: list[str] = []
    base = [entry for entry in font_manager.fontManager.ttflist if entry.name == labels.BASE_FONT]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", base)
    monkeypatch.setattr(labels, "findSystemFonts", lambda: installed)
    return installed


@pytest.mark.usefixtures("bare_machine")
def test_the_base_font_has_common_scripts_and_our_own_signs() -> None:
    texts = ["Straße", "naïve", "Ελληνικά", "Привет", "مرحبا بالعالم", "می\u200cخواهم", "שלום", "▁Ġ␣◌…×"]
    assert labels.choose_fonts(texts) == labels.Fonts((labels.BASE_FONT,), ())


def test_fonts_that_matplotlib_has_not_listed_yet_are_found(bare_machine: list[str], tmp_path: Path) -> None:
    assert labels.choose_fonts([SCRIPT_CAPITAL_A]).missing == (SCRIPT_CAPITAL_A,)
    damaged, deleted, new = tmp_path / "damaged.ttf", tmp_path / "deleted.ttf", tmp_path / "new.ttf"
    damaged.write_bytes(b"no font")
    shutil.copy(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "STIXGeneral.ttf", new)
    bare_machine += map(str, (damaged, deleted, new))
    found = labels.choose_fonts(["a", SCRIPT_CAPITAL_A])
    assert found == labels.Fonts((labels.BASE_FONT, "STIXGeneral"), ())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(ONE, [SCRIPT_CAPITAL_A], ["a"]).render("png")


def test_no_more_fonts_are_chosen_than_needed() -> None:
    assert labels.choose_fonts(["abc"]).families == (labels.BASE_FONT,)


@pytest.mark.usefixtures("bare_machine")
def test_characters_without_a_font_cause_a_warning_and_are_drawn_as_code_points() -> None:
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
    with warnings.catch_warnings():  # Matplotlib warns about each box that it draws
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
def test_the_warning_names_script_and_package(character: str, script: str, package: str) -> None:
    (warning,) = labels.missing_font_warnings([character])
    assert warning.startswith(f"no installed font has {script} characters such as {character}, drawn as <U+")
    assert f"install the package {package}" in warning
