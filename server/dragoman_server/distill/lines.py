"""What may stand in a line of the output, which the trainer reads: source<TAB>target."""

import re
import unicodedata
from collections.abc import Sequence

from dragoman_server.messages.blank_text import is_blank

RESERVED = ("<pad>", "<unk>", "<s>", "</s>")  # the trainer refuses them in texts
# White space that would break a line or a column.
_BREAKS = re.compile("[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
# Control characters, byte order marks, interlinear annotations, U+FFFD and code points that are no characters.
_BAD = re.compile(
    "[\0-\x1f\x7f-\x9f\ufeff\ufff9-\ufffd\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
LONGEST_PERIOD = 16  # tokens of what repeats
MIN_REPEATS, MIN_REPEATED_TOKENS = 4, 12


def unfit(text: str) -> str:
    """Returns why a text can't stand in a line: "contains U+0009"; empty if it can."""
    if is_blank(text):
        return "is blank" if text else "is empty"
    if found := _BAD.search(text):
        name = unicodedata.name(found[0], "")
        return f"contains U+{ord(found[0]):04X}{name and ' '}{name}"
    return next((f"contains the reserved token {token}" for token in RESERVED if token in text), "")


def on_one_line(text: str) -> str:
    """Returns a text with a space for each run of tabs and line breaks, and without white space around it."""
    return _BREAKS.sub(" ", text).strip()


def repeats(ids: Sequence[int]) -> bool:
    """Returns whether tokens say the same at least four times in a row, and a dozen tokens long at least."""
    for period in range(1, min(LONGEST_PERIOD, len(ids) // MIN_REPEATS) + 1):
        needed = max((MIN_REPEATS - 1) * period, MIN_REPEATED_TOKENS - period)
        run = 0
        for first, second in zip(ids, ids[period:], strict=False):
            run = run + 1 if first == second else 0
            if run >= needed:
                return True
    return False
