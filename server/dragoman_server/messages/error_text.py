"""Keeps what errors say short: a status and all that goes with it travel as headers, which clients take 8 KiB of."""

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

NEAREST = 5  # names that an error lists
VALUE_CHARACTERS = 100  # of a client's value that an error repeats


def shorten(value: str, most: int = VALUE_CHARACTERS) -> str:
    """The beginning of what a client sent, to be repeated in an error."""
    return value if len(value) <= most else f"{value[:most]}..."


def truncate(text: str, most: int) -> str:
    """The beginning of a text, up to so many bytes as gRPC sends a status's message: each byte of what is not printable
    ASCII becomes three.
    """
    size = 0
    for at, character in enumerate(text):
        plain = " " <= character <= "~" and character != "%"
        size += 1 if plain else 3 * len(character.encode(errors="surrogatepass"))
        if size > most:
            return f"{text[:at]}..."
    return text


def list_nearest(names: Sequence[str], like: str = "") -> str:
    """The names that there are, or those most like the one that was asked for and how many more there are.

    Args:
        names: in the order in which to list them where nothing was asked for.
    """
    if len(names) <= NEAREST:
        return ", ".join(names) or "none"
    near = sorted(names, key=_likeness(like), reverse=True) if like else names
    return f"{', '.join(near[:NEAREST])} and {len(names) - NEAREST} more"


def _likeness(like: str) -> Callable[[str], tuple[float, int]]:
    """How many letters a name shares with this one, in any order, and how many it begins with.

    Anyone may ask, so it has to be told quickly: difflib's true ratio takes milliseconds for each name.
    """
    matcher = SequenceMatcher(None, b=shorten(like), autojunk=False)

    def likeness(name: str) -> tuple[float, int]:
        matcher.set_seq1(name)
        return matcher.quick_ratio(), sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, like, strict=False))
        )

    return likeness
