"""Languages of a multilingual corpus: a source starts with a token that names the language to translate to.

The token is written "<2de>" (Johnson et al. 2017). It is one token of the source vocabulary, and text like it in a
source of the server is that token too.

For an imported model, which has its own tokens, the same start tells what the data files name: "<1en> <2de> ".
"""

import re
from collections.abc import Collection

_START = re.compile(r"(?:<1(\w+)> )?(?:<2(\w+)> )?")


def language_token(code: str) -> str:
    """Returns the token of a language: "de" -> "<2de>"."""
    return f"<2{code}>"


def source_token(code: str) -> str:
    """Returns what names a source language: "en" -> "<1en>"."""
    return f"<1{code}>"


def with_language(text: str, code: str | None, source: str | None = None) -> str:
    """Returns a source that names its target language, and its own for an imported model; without any, the text."""
    target = "" if code is None else f"{language_token(code)} "
    return (target if source is None else f"{source_token(source)} {target}") + text


def split_language(text: str, codes: Collection[str]) -> tuple[str, str]:
    """Splits what `with_language` returned into the start that names some of the languages, and the text."""
    match = _START.match(text) if codes else None
    if match is None or any(code is not None and code not in codes for code in match.groups()):
        return "", text
    return match[0], text[match.end() :]


def named_languages(start: str) -> tuple[str | None, str | None]:
    """Returns the languages of source and target that a start of `split_language` names."""
    match = _START.match(start)
    assert match is not None
    return match[1], match[2]
