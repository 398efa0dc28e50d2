"""What stands at the axes for a token: its text, with all that could not be seen spelled out."""

import unicodedata
from collections.abc import Container

DOTTED_CIRCLE = "\N{DOTTED CIRCLE}"
# Zero-width joiner and non-joiner: between two letters they shape the text (Persian, Indic scripts, emoji).
JOINERS = "\u200c\u200d"
MOST_CHARACTERS = 20
_SPELLED = {" ": "\N{OPEN BOX}", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
_UNSEEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}


def label(token: str, missing: Container[str] = ()) -> str:
    """The token as a label.

    A space becomes "␣". Control characters become "\\n" or their numbers, as in "<U+200B>", and so do those of
    `missing`. A combining mark that comes first stands on a dotted circle. Of long tokens only the start is shown.
    """
    if not token:
        return '""'
    shown = [number(token[place]) if token[place] in missing else _visible(token, place) for place in range(len(token))]
    if unicodedata.category(token[0]).startswith("M") and shown[0] == token[0]:
        shown.insert(0, DOTTED_CIRCLE)
    text = "".join(shown)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def number(character: str) -> str:
    """The character by its number in Unicode, such as "<U+200B>"."""
    return f"<U+{ord(character):04X}>"


def _visible(token: str, place: int) -> str:
    character = token[place]
    if character in _SPELLED:
        return _SPELLED[character]
    if character in JOINERS and 0 < place < len(token) - 1:
        return character
    if unicodedata.name(character, "").startswith("VARIATION SELECTOR"):
        return "" if place else number(character)
    return number(character) if unicodedata.category(character) in _UNSEEN else character
