"""Text that a model can't read, such as emoji: taken out of a source, to be put back into its answer."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer
from tokenizers.normalizers import NFC

from dragoman_server.core.requests import CarriedText, Piece
from dragoman_server.decoding.text_stream import BYTE_TOKEN

_SYMBOLS = frozenset({"So", "Co", "Cn"})  # emoji among them; those newer than this Python are Cn
# What holds an emoji together: zero-width joiner, keycap, variation selectors, skin tones and tags.
_JOINERS = frozenset(
    map(chr, (0x200D, 0x20E3, *range(0xFE00, 0xFE10), *range(0x1F3FB, 0x1F400), *range(0xE0020, 0xE0080)))
)
_KEYS = frozenset("0123456789#*")  # before U+20E3
_PAIRS = {"(": ")", "[": "]", "{": "}", "„": "“", "“": "”", "»": "«", "«": "»", "‚": "‘", "‘": "’", '"': '"', "'": "'"}
_OPENING = frozenset("([{„«‚¿¡")
_ENDS = frozenset('()[]{}„“”»«‚‘"')  # of a word, whatever is joined to it
_NAMES = frozenset("@#")  # before a name, such as that of an account
_BETWEEN = re.compile(r"[\s,/&+\-]*")  # of two pieces that are carried as one
_MARKS = re.compile(r"[^\w\s(\[{„«‚¿¡]+")  # punctuation that has no space before it
_WITHIN, _SENTENCE_ENDS = frozenset(",;:–-"), frozenset(".!?…")
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
        """Returns what is left of a text and what is carried past the model; None if it can read all.

        Nothing is left of a text without a word that the model can read: all of it is one piece.
        """
        if len(text) > self._most or self._unknown.search(text) is None:
            return None
        text = self._normalized(text)
        spans = _merged(text, self._spans(text))
        spans = _merged(text, (_with_brackets(text, span) for span in spans))
        if not spans:
            return None
        left, pieces = _without(text, spans)
        if not any(map(str.isalnum, left)):
            return CarriedText("", (Piece(text, 0, True, True),))
        return CarriedText(left, tuple(pieces))

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
                yield span

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
        while start and not _ends_word(text[start - 1]):
            start -= 1
        while end < len(text) and not _ends_word(text[end]):
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


def _ends_word(character: str) -> bool:
    return character.isspace() or character in _ENDS


def _with_brackets(text: str, span: _Span) -> _Span:
    """Adds brackets or quotation marks that would be left around nothing."""
    while span.start > 0 and span.end < len(text) and _PAIRS.get(text[span.start - 1]) == text[span.end]:
        span = _Span(span.start - 1, span.end + 1)
    return span


def _merged(text: str, spans: Iterable[_Span]) -> list[_Span]:
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
        piece = text[span.start : span.end]
        following = text[span.end : spans[index + 1].start if index + 1 < len(spans) else len(text)]
        head, marks = left.rstrip(), _MARKS.match(following)
        before = len(head) < len(left) or not head or head[-1] in _OPENING
        if marks and not head[-1:].isalnum():  # of the two marks around it, one goes with it
            if head[-1:] in _WITHIN and marks[0][0] in _SENTENCE_ENDS:
                piece, head, before = left[len(head) - 1 :] + piece, head[:-1], False
                left = head
            else:
                piece, following = piece + marks[0], following[marks.end() :]
        after = following[:1].isspace() or not following
        if not head or head[-1] in _OPENING:
            left, following = head, following.lstrip()
        elif after or _MARKS.match(following):
            left = head
        elif len(head) == len(left) and following[0].isalnum() and not _is_wide(following[0]):
            following = f" {following}"
        pieces.append(Piece(piece, len(left), before, after))
        left += following
    return left, pieces


def _is_wide(character: str) -> bool:
    return unicodedata.east_asian_width(character) in _WIDE
