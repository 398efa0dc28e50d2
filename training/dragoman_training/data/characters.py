"""Characters that do not belong in text, invisible characters, and Unicode names."""

import re
import unicodedata

# Unicode's aliases of control characters, which have no names: U+0000 to U+001F, then U+007F to U+009F.
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
    "\ufeff": "BYTE ORDER MARK"  # its use inside a file; the Unicode name describes a deprecated use
}
# Control characters except the tab, byte order marks, interlinear annotations, the replacement character that decoders
# insert for invalid bytes, and code points that are not characters.
_BAD = re.compile(
    "[\0-\x08\x0a-\x1f\x7f-\x9f\ufeff\ufff9-\ufffd\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
# White space, U+2800, and characters without a glyph of their own (Default_Ignorable_Code_Point).
_INVISIBLE = re.compile(
    "[\\s\u2800\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]*"
)


def character_name(character: str) -> str:
    """Returns code point and name: U+200B ZERO WIDTH SPACE."""
    name = _NAMES.get(character) or unicodedata.name(character, "(no character)")
    return f"U+{ord(character):04X} {name}"


def find_bad_character(text: str) -> str | None:
    """Describes the first character that does not belong in text: "U+0000 NULL at character 3 of the line".

    Format characters that scripts need (joiners, direction marks) are allowed. None if there is no bad character.
    """
    found = _BAD.search(text)
    return found and f"{character_name(found[0])} at character {found.start() + 1} of the line"


def invisible_content(text: str) -> str | None:
    """Names at most five characters of a text in which nothing is visible ("" if it is empty); else None."""
    if not _INVISIBLE.fullmatch(text):
        return None
    return ", ".join(character_name(character) for character in sorted(set(text))[:5])
