"""Keeps error messages short: a status is sent in HTTP/2 headers, of which clients accept 8 KiB."""

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

NEAREST = 5  # maximum number of names in an error
VALUE_CHARACTERS = 100  # maximum length of a client's value in an error


def shorten(value: str, length: int = VALUE_CHARACTERS) -> str:
    """Returns the beginning of a value that a client sent, for use in an error."""
    return value if len(value) <= length else f"{value[:length]}..."


def truncate(text: str, max_bytes: int) -> str:
    """Returns the beginning of a text, up to a size as gRPC encodes it in a status message.

    Every byte that is not printable ASCII is encoded as three.
    """
    size = 0
    for index, character in enumerate(text):
        plain = " " <= character <= "~" and character != "%"
        size += 1 if plain else 3 * len(character.encode(errors="surrogatepass"))
        if size > max_bytes:
            return f"{text[:index]}..."
    return text


def list_nearest(names: Sequence[str], like: str = "") -> str:
    """Returns a list of names as text: all of a few, or else the NEAREST ones and the number of the others.

    Args:
        names: All names, in the order in which to list them if `like` is empty.
        like: The name that was requested; the most similar names are listed.
    """
    if len(names) <= NEAREST:
        return ", ".join(names) or "none"
    near = sorted(names, key=_similarity(like), reverse=True) if like else names
    return f"{', '.join(near[:NEAREST])} and {len(names) - NEAREST} more"


def _similarity(like: str) -> Callable[[str], tuple[float, int]]:
    """Returns a sort key for names: the share of letters in common, in any order, and the length of the common prefix.

    Anybody can trigger this, so it has to be fast: difflib's exact ratio takes milliseconds per name.
    """
    matcher = SequenceMatcher(None, b=shorten(like), autojunk=False)

    def similarity(name: str) -> tuple[float, int]:
        matcher.set_seq1(name)
        return matcher.quick_ratio(), sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(name, like, strict=False))
        )

    return similarity
