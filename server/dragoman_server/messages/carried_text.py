"""Text that a model can't read, such as emoji: taken out of a source, to be put back into its answer."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.normalizers import NFC

from dragoman_server.core.requests import CarriedText, Piece
from dragoman_server.decoding.text_stream import BYTE_TOKEN

_SYMBOLS = frozenset({"So", "Sk", "Co", "Cn"})  # emoji and skin tones among them; those newer than this Python are Cn
# What holds an emoji together: zero-width joiner, keycap, variation selectors and tags.
_JOINERS = frozenset(map(chr, (0x200D, 0x20E3, *range(0xFE00, 0xFE10), *range(0xE0020, 0xE0080))))
_KEYS = frozenset("0123456789#*")  # before U+20E3
_CLOSED_BY = {
    "(": ")",
    "[": "]",
    "{": "}",
    "„": "“",
    "“": "”",
    "»": "«",
    "«": "»",
    "‚": "‘",
    "‘": "’",
    '"': '"',
    "'": "'",
}
_NAMES = frozenset("@#")  # before a name, such as that of an account
_BETWEEN = re.compile(r"[\s,/&+\-]*")  # of two pieces that are carried as one
_CLOSING = re.compile(r"[^\w\s(\[{„«‚¿¡]")  # punctuation that has no space before it
_WIDE = frozenset("WF")  # scripts without spaces between words


class TextCarrier:
    """Takes what a model can't read out of its sources: what the source tokenizer has only bytes, or no token, for.

    An emoji is carried alone, other text as a whole word with all that is joined to it, so that an address with an @
    stays whole. Symbols that the model lacks but that change no word, such as asterisks around one, are left to it.

    Args:
        tokenizer: The source tokenizer, with tokens that are text.
        most: Characters of the longest text to look at; longer ones are refused anyway.
        imported: Whether the model is an imported one, which normalizes texts in its own way: a character that NFKC
            makes known ones of is known, too.
    """

    def __init__(self, tokenizer: Tokenizer, most: int, *, imported: bool = False) -> None:
        self._unknown = re.compile(rf"[^\s{re.escape(''.join(sorted(readable_characters(tokenizer))))}]")
        self._normalizer = NFC() if imported else tokenizer.normalizer
        self._folds = imported
        self._most = most

    def take(self, text: str) -> CarriedText | None:
        """Returns what is left of a text and what is carried past the model; None if it can read all, or nothing."""
        if len(text) > self._most or self._unknown.search(text) is None:
            return None
        text = self._normalized(text)
        spans = _merged(text, self._spans(text))
        if not spans:
            return None
        left, pieces = _without(text, spans)
        return CarriedText(left, tuple(pieces)) if any(map(str.isalnum, left)) else None

    def _normalized(self, text: str) -> str:
        if self._normalizer is None:
            return text
        normalized: str = self._normalizer.normalize_str(text)
        return normalized if text[0].isspace() else normalized.removeprefix(" ")  # which some put before every text

    def _spans(self, text: str) -> Iterator["_Span"]:
        """Yields the parts of a normalized text that can't be read, from left to right."""
        end = 0
        for match in self._unknown.finditer(text):
            if (start := match.start()) < end or not self._is_unknown(match[0]):
                continue
            span = self._emoji(text, start) or self._word(text, start)
            if span is not None:
                end = span.end
                yield _with_brackets(text, span)

    def _emoji(self, text: str, start: int) -> "_Span | None":
        if text[start] not in _JOINERS and unicodedata.category(text[start]) not in _SYMBOLS:
            return None
        end = start + 1
        while end < len(text) and (text[end] in _JOINERS or self._is_symbol(text[end])):
            end += 1
        if "\u20e3" in text[start:end] and start and text[start - 1] in _KEYS:
            start -= 1
        return _Span(start, end)

    def _is_symbol(self, character: str) -> bool:
        return unicodedata.category(character) in _SYMBOLS and self._is_unknown(character)

    def _is_unknown(self, character: str) -> bool:
        text = unicodedata.normalize("NFKC", character) if self._folds else character
        return self._unknown.search(text) is not None

    def _word(self, text: str, at: int) -> "_Span | None":
        before, after = text[max(at - 1, 0) : at].isalnum(), text[at + 1 : at + 2].isalnum()
        category = unicodedata.category(text[at])
        is_code = text[at].isascii() or category == "Sm"  # where it joins what is around it, unlike punctuation
        if not (category[0] in "LMN" or (before and after and is_code) or (after and text[at] in _NAMES)):
            return None
        start, end = at, at + 1
        while start and not text[start - 1].isspace():
            start -= 1
        while end < len(text) and not text[end].isspace():
            end += 1
        while start < at and not text[start].isalnum() and not self._is_unknown(text[start]):
            start += 1
        while end > at + 1 and not text[end - 1].isalnum() and not self._is_unknown(text[end - 1]):
            end -= 1
        return _Span(start, end)


def readable_characters(tokenizer: Tokenizer) -> set[str]:
    """Returns the characters that tokens are made of, other than special tokens and bytes."""
    if tokenizer.pre_tokenizer is not None and b'"ByteLevel"' in tokenizer.pre_tokenizer.__getstate__():
        return set()  # whose characters stand for bytes
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return set().union(*(t for t in tokenizer.get_vocab() if t not in special and not BYTE_TOKEN.fullmatch(t)))


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int


def _with_brackets(text: str, span: _Span) -> _Span:
    """Adds brackets or quotation marks that would be left around nothing."""
    while span.start > 0 and span.end < len(text) and _CLOSED_BY.get(text[span.start - 1]) == text[span.end]:
        span = _Span(span.start - 1, span.end + 1)
    return span


def _merged(text: str, spans: Iterator[_Span]) -> list[_Span]:
    """Joins neighbors."""
    merged: list[_Span] = []
    for span in spans:
        if merged and _BETWEEN.fullmatch(text, merged[-1].end, max(merged[-1].end, span.start)):
            merged[-1] = _Span(min(merged[-1].start, span.start), max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


def _without(text: str, spans: list[_Span]) -> tuple[str, list[Piece]]:
    """Cuts spans out, so that what is left is written as if they had never been there."""
    left, pieces = text[: spans[0].start], []
    for index, span in enumerate(spans):
        following = text[span.end : spans[index + 1].start if index + 1 < len(spans) else len(text)]
        before, after = left[-1:].isspace() or not left, following[:1].isspace() or not following
        if not left.strip():
            left, following = "", following.lstrip()
        elif after or _CLOSING.match(following):
            left = left.rstrip()
        elif not before and left[-1].isalnum() and following[0].isalnum():
            following = following if unicodedata.east_asian_width(following[0]) in _WIDE else f" {following}"
        pieces.append(Piece(text[span.start : span.end], len(left), before, after))
        left += following
    return left, pieces
