"""Characters that no text of a corpus has, those that nobody sees, and what Unicode calls them."""

import re
import unicodedata

# Unicode's aliases, since control characters have no names: U+0000 to U+001F, then U+007F to U+009F.
_CONTROLS = (
    "NULL|START OF HEADING|START OF TEXT|END OF TEXT|END OF TRANSMISSION|ENQUIRY|ACKNOWLEDGE|ALERT|BACKSPACE|"
    "CHARACTER TABULATION|LINE FEED|LINE TABULATION|FORM FEED|CARRIAGE RETURN|SHIFT OUT|SHIFT IN|DATA LINK ESCAPE|"
    "DEVICE CONTROL ONE|DEVICE CONTROL TWO|DEVICE CONTROL THREE|DEVICE CONTROL FOUR|NEGATIVE ACKNOWLEDGE|"
    "SYNCHRONOUS IDLE|END OF TRANSMISSION BLOCK|CANCEL|END OF MEDIUM|SUBSTITUTE|ESCAPE|INFORMATION SEPARATOR FOUR|"
    "INFORMATION SEPARATOR THREE|INFORMATION SEPARATOR TWO|INFORMATION SEPARATOR ONE|"
    "DELETE|PADDING CHARACTER|HIGH OCTET PRESET|BREAK PERMITTED HERE|NO BREAK HERE|INDEX|NEXT LINE|"
    "START OF SELECTED AREA|END OF SELECTED AREA|CHARACTER TABULATION SET|CHARACTER TABULATION WITH JUSTIFICATION|"
    "LINE TABULATION SET|PARTIAL LINE FORWARD|PARTIAL LINE BACKWARD|REVERSE LINE FEED|SINGLE SHIFT TWO|"
    "SINGLE SHIFT THREE|DEVICE CONTROL STRING|PRIVATE USE ONE|PRIVATE USE TWO|SET TRANSMIT STATE|CANCEL CHARACTER|"
    "MESSAGE WAITING|START OF GUARDED AREA|END OF GUARDED AREA|START OF STRING|SINGLE GRAPHIC CHARACTER INTRODUCER|"
    "SINGLE CHARACTER INTRODUCER|CONTROL SEQUENCE INTRODUCER|STRING TERMINATOR|OPERATING SYSTEM COMMAND|"
    "PRIVACY MESSAGE|APPLICATION PROGRAM COMMAND"
).split("|")
_NAMES = dict(zip(map(chr, [*range(0x20), *range(0x7F, 0xA0)]), _CONTROLS, strict=True)) | {
    "\ufeff": "BYTE ORDER MARK"  # what it is inside a file; its name is of a use that Unicode has given up
}
# Control characters but the tab, byte order marks, what a decoder writes for bytes it could not read, interlinear
# annotations, and code points that are no characters.
_BROKEN = re.compile(
    "[\0-\x08\x0a-\x1f\x7f-\x9f\ufeff\ufff9-\ufffd\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
# White space, U+2800, and what Unicode gives no shape of its own (Default_Ignorable_Code_Point).
_UNSEEN = re.compile(
    "[\\s\u2800\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)


def name(character: str) -> str:
    """U+200B ZERO WIDTH SPACE."""
    known = _NAMES.get(character) or unicodedata.name(character, "(no character)")
    return f"U+{ord(character):04X} {known}"


def broken(text: str) -> str | None:
    """The first character that stands in no sound text: "U+0000 NULL at character 3 of the line"; None where all do.

    Format characters that scripts need (joiners, marks of direction) are sound.
    """
    found = _BROKEN.search(text)
    return found and f"{name(found[0])} at character {found.start() + 1} of the line"


def unseen(text: str) -> str | None:
    """What a text is made of in which nothing can be seen, at most five characters, "" for no text; None for others."""
    if not _UNSEEN.fullmatch(text):
        return None
    return ", ".join(name(character) for character in sorted(set(text))[:5])
