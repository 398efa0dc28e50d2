"""Texts that stay in their line and column."""

# Control characters, and the two others that end a line.
_ESCAPED = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}


def one_line(text: str) -> str:
    """Returns the text with control characters escaped, as in "\\n", "\\t" and "\\x1b".

    So it cannot leave its line or column, and a terminal displays it instead of obeying it.
    """
    return text if text.isprintable() else text.translate(_ESCAPED)
