"""Target languages of a multilingual corpus: a source starts with a token that names the language to translate to.

The token is written "<2de>" (Johnson et al. 2017). It is one token of the source vocabulary, and text like it in a
source of the server is that token too.
"""

import re
from collections.abc import Collection

_TOKEN = re.compile(r"<2(\w+)> ")


def language_token(code: str) -> str:
    """Returns the token of a language: "de" -> "<2de>"."""
    return f"<2{code}>"


def with_language(text: str, code: str | None) -> str:
    """Returns a source that names its target language, or the text itself without one."""
    return text if code is None else f"{language_token(code)} {text}"


def split_language(text: str, codes: Collection[str]) -> tuple[str, str]:
    """Splits what `with_language` returned into the start that names one of the languages, and the text."""
    match = _TOKEN.match(text) if codes else None
    if match is None or match[1] not in codes:
        return "", text
    return match[0], text[match.end() :]
