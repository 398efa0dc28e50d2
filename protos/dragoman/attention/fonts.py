"""Which installed fonts have the characters of the labels."""

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from matplotlib.font_manager import FontEntry, findSystemFonts, fontManager
from matplotlib.ft2font import FaceFlags, FT2Font

from dragoman.attention.labels import JOINERS, number

BASE = "DejaVu Sans"
"""Comes with Matplotlib. Has Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian, Georgian and many symbols."""
# Where several fonts have a character, these come first: plain sans-serif ones, with Chinese shapes of Han characters.
_PREFERRED = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
)
# Fonts that have a picture for every character there is, to say that there is none.
_LAST_RESORTS = ("LastResort", "Last Resort", "Adobe Blank", "Adobe NotDef", "Unicode BMP Fallback")
_EAST_ASIAN = {
    "CJK": "Chinese",
    "KANGXI": "Chinese",
    "IDEOGRAPHIC": "Chinese",
    "BOPOMOFO": "Chinese",
    "FULLWIDTH": "full-width",
    "HIRAGANA": "Japanese",
    "KATAKANA": "Japanese",
    "HANGUL": "Korean",
}
_EAST_ASIAN_PACKAGE = "fonts-wqy-microhei"
_SYMBOL_PACKAGE = "fonts-symbola"
_OTHER_PACKAGE = "fonts-noto-core"


@dataclass(frozen=True, slots=True)
class Fonts:
    """Font families in the order in which they are tried for each character, and the characters that none has."""

    families: tuple[str, ...]
    missing: tuple[str, ...]


def choose(texts: Iterable[str]) -> Fonts:
    """As few of the installed fonts as have the characters of the texts."""
    wanted = sorted(set("".join(texts)).difference(JOINERS))
    families = [BASE]
    for family, font in _candidates():
        if not wanted:
            break
        lacking = [character for character in wanted if not font.get_char_index(ord(character))]
        if len(lacking) < len(wanted) and family not in families:
            families.append(family)
        wanted = lacking
    return Fonts(tuple(families), tuple(wanted))


def complaints(missing: Iterable[str]) -> list[str]:
    """One sentence for each script of the characters: that it lacks a font, and what brings one."""
    scripts: dict[tuple[str, str], list[str]] = {}
    for character in missing:
        scripts.setdefault(_script_and_package(character), []).append(character)
    return [
        f"no installed font has {script} characters such as {characters[0]}, drawn as {number(characters[0])}; "
        f"on Debian and Ubuntu the package {package} brings one"
        for (script, package), characters in scripts.items()
    ]


def _candidates() -> Iterator[tuple[str, FT2Font]]:
    """Upright fonts of normal weight with outlines, the base first, then the preferred, then all others."""
    ranks = {family: rank for rank, family in enumerate((BASE, *_PREFERRED))}
    known = {entry.fname for entry in fontManager.ttflist}

    def order(entry: FontEntry) -> tuple[int, bool, str]:
        return ranks.get(entry.name, len(ranks)), not entry.name.startswith("Noto Sans"), entry.name

    yield from _opened(sorted(fontManager.ttflist, key=order))
    # Matplotlib keeps its list of fonts between runs and does not notice those installed since.
    for path in findSystemFonts():
        if path not in known:
            before = len(fontManager.ttflist)
            try:
                fontManager.addfont(path)
            except (OSError, RuntimeError):  # not a font that FreeType can read
                continue
            yield from _opened(fontManager.ttflist[before:])


def _opened(entries: Iterable[FontEntry]) -> Iterator[tuple[str, FT2Font]]:
    for entry in entries:
        if entry.style != "normal" or entry.weight not in (400, "normal", "regular", "book"):
            continue
        if entry.name.lstrip(".").startswith(_LAST_RESORTS):
            continue
        try:
            font = FT2Font(entry.fname, face_index=entry.index)
        except (OSError, RuntimeError):  # removed since Matplotlib made its list
            continue
        if FaceFlags.SCALABLE in font.face_flags and FaceFlags.COLOR not in font.face_flags:
            yield entry.name, font


def _script_and_package(character: str) -> tuple[str, str]:
    first = unicodedata.name(character, "").partition(" ")[0]
    if first in _EAST_ASIAN:
        return _EAST_ASIAN[first], _EAST_ASIAN_PACKAGE
    if unicodedata.category(character).startswith(("L", "M", "N")) and first:
        return first.title(), _OTHER_PACKAGE
    return "symbol", _SYMBOL_PACKAGE
