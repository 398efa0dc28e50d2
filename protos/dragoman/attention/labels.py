"""Labels of tokens: their text with invisible characters spelled out, and fonts that have the other characters."""

import unicodedata
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from matplotlib.font_manager import FontEntry, findSystemFonts, fontManager
from matplotlib.ft2font import FaceFlags, FT2Font

DOTTED_CIRCLE = "\N{DOTTED CIRCLE}"
# Zero-width non-joiner and joiner: between two letters they shape the text (Persian, Indic scripts, emoji).
JOINERS = "\u200c\u200d"
MAX_CHARACTERS = 20
_ESCAPED = {" ": "\N{OPEN BOX}", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
_INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}

BASE_FONT = "DejaVu Sans"
"""Ships with Matplotlib. Has Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian, Georgian and many symbols."""
# Preferred where several fonts have a character: plain sans-serif fonts with the Chinese shapes of Han characters.
_PREFERRED = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
)
# Fonts with a placeholder glyph for every character.
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


def label(token: str, missing: Container[str] = ()) -> str:
    """Returns the label of a token.

    A space becomes "␣"; control characters become escapes such as "\\n", or code points such as "<U+200B>", and so do
    the characters in `missing`. A combining mark at the start gets a dotted circle. Long tokens are cut.
    """
    if not token:
        return '""'
    shown = [
        code_point(token[place]) if token[place] in missing else _visible(token, place) for place in range(len(token))
    ]
    if unicodedata.category(token[0]).startswith("M") and shown[0] == token[0]:
        shown.insert(0, DOTTED_CIRCLE)
    text = "".join(shown)
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 1] + "…"


def code_point(character: str) -> str:
    """Returns the code point of a character, such as "<U+200B>"."""
    return f"<U+{ord(character):04X}>"


def _visible(token: str, place: int) -> str:
    character = token[place]
    if character in _ESCAPED:
        return _ESCAPED[character]
    if character in JOINERS and 0 < place < len(token) - 1:
        return character
    if unicodedata.name(character, "").startswith("VARIATION SELECTOR"):
        return "" if place else code_point(character)
    return code_point(character) if unicodedata.category(character) in _INVISIBLE_CATEGORIES else character


@dataclass(frozen=True, slots=True)
class Fonts:
    """Fonts for a set of labels.

    Attributes:
        families: Font families, in the order in which they are tried for each character.
        missing: Characters that no installed font has.
    """

    families: tuple[str, ...]
    missing: tuple[str, ...]


def choose_fonts(texts: Iterable[str]) -> Fonts:
    """Returns as few of the installed fonts as cover the characters of the texts."""
    remaining = sorted(set("".join(texts)).difference(JOINERS))
    families = [BASE_FONT]
    for family, font in _candidates():
        if not remaining:
            break
        uncovered = [character for character in remaining if not font.get_char_index(ord(character))]
        if len(uncovered) < len(remaining) and family not in families:
            families.append(family)
        remaining = uncovered
    return Fonts(tuple(families), tuple(remaining))


def missing_font_warnings(missing: Iterable[str]) -> list[str]:
    """Returns one sentence per script of the characters: it has no font, and which package installs one."""
    scripts: dict[tuple[str, str], list[str]] = {}
    for character in missing:
        scripts.setdefault(_script_and_package(character), []).append(character)
    return [
        f"no installed font has {script} characters such as {characters[0]}, drawn as {code_point(characters[0])}; "
        f"on Debian and Ubuntu, install the package {package}"
        for (script, package), characters in scripts.items()
    ]


def _candidates() -> Iterator[tuple[str, FT2Font]]:
    """Yields upright outline fonts of normal weight: the base font first, then the preferred, then all others."""
    ranks = {family: rank for rank, family in enumerate((BASE_FONT, *_PREFERRED))}
    known = {entry.fname for entry in fontManager.ttflist}

    def order(entry: FontEntry) -> tuple[int, bool, str]:
        return ranks.get(entry.name, len(ranks)), not entry.name.startswith("Noto Sans"), entry.name

    yield from _opened(sorted(fontManager.ttflist, key=order))
    # Matplotlib keeps its list of fonts between runs and misses fonts that were installed since.
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
        except (OSError, RuntimeError):  # removed since Matplotlib listed it
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
