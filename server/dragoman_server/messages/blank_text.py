"""Whether a text holds anything to read, and what it is made of where it does not."""

import unicodedata

MOST_NAMED = 3
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Zl", "Zp", "Zs"})
# Signs of Arabic and Kaithi numbers, the only characters of category Cf that are seen.
_SEEN = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd")
# Of other categories: a joiner of graphemes, fillers, vowels of Khmer that are not written, variation selectors, and
# braille without a dot.
_UNSEEN = frozenset(
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
    """Whether a text holds nothing but white space, control characters and others that are never seen."""
    return not any(map(_is_seen, text))


def describe_characters(text: str) -> str:
    """Its distinct characters, the first few by code point and name: 'U+0020 SPACE and U+200B ZERO WIDTH SPACE'."""
    characters = list(dict.fromkeys(text))
    named = [f"U+{ord(character):04X} {_name(character)}" for character in characters[:MOST_NAMED]]
    if len(characters) > MOST_NAMED:
        named.append(f"{len(characters) - MOST_NAMED} more")
    return " and ".join(filter(None, (", ".join(named[:-1]), named[-1])))


def _is_seen(character: str) -> bool:
    if unicodedata.category(character) in _UNSEEN_CATEGORIES:
        return character in _SEEN
    return character not in _UNSEEN


def _name(character: str) -> str:
    return unicodedata.name(character, "") or _CONTROLS.get(character, "(a character without a name)")
