"""Detects texts without visible characters, and names their characters."""

import unicodedata

MAX_NAMED = 3
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})
# Signs of Arabic and Kaithi numbers, the only visible characters of category Cf.
_VISIBLE = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
# Invisible characters of other categories: the combining grapheme joiner, fillers, inherent vowels of Khmer, variation
# selectors, and the blank braille pattern.
_INVISIBLE = frozenset(
    map(
        chr,
        (
            0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x180E), 0x180F, 0x2800, 0x3164,
            *range(0xFE00, 0xFE10), 0xFFA0, *range(0xE0100, 0xE01F0),
        ),
    )
)  # fmt: skip
_CONTROLS = {
    "\0": "NULL",
    "\t": "CHARACTER TABULATION",
    "\n": "LINE FEED",
    "\v": "LINE TABULATION",
    "\f": "FORM FEED",
    "\r": "CARRIAGE RETURN",
    "\x85": "NEXT LINE",
}


def is_blank(text: str) -> bool:
    """Returns whether a text contains only white space, control characters and other invisible ones."""
    return not any(map(_is_visible, text))


def describe_characters(text: str) -> str:
    """Lists the first distinct characters by code point and name: 'U+0020 SPACE and U+200B ZERO WIDTH SPACE'."""
    characters = list(dict.fromkeys(text))
    named = [f"U+{ord(character):04X} {_name(character)}" for character in characters[:MAX_NAMED]]
    if len(characters) > MAX_NAMED:
        named.append(f"{len(characters) - MAX_NAMED} more")
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))


def _is_visible(character: str) -> bool:
    if unicodedata.category(character) in _INVISIBLE_CATEGORIES:
        return character in _VISIBLE
    return character not in _INVISIBLE


def _name(character: str) -> str:
    return unicodedata.name(character, "") or _CONTROLS.get(character, "(a character without a name)")
