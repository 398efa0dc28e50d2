"""Source text to token ids, refusing what the model can't read. Nothing is ever truncated."""

import asyncio
import unicodedata
from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer

from server.api.errors import ApiError, invalid
from server.bundle.manifest import SpecialTokens

# Texts up to this many characters are tokenized on the event loop, in a millisecond or two; longer ones in a thread.
INLINE_CHARACTERS = 2048
# A text may have this many times more characters than the longest tokens could cover: normalisation may shorten it.
SHRINKING = 4
LEAST_CHARACTERS = 4096
# What one trip of a batch to the tokenizer may hold, so that the event loop gets its turn in between.
CHUNK_TEXTS, CHUNK_CHARACTERS = 256, 65536


class SourceEncoder:
    """Checks and encodes what a model shall read.

    Args:
        tokenizer: of the source; text that looks like a special token is from now on read as plain text.
        tokens: the special tokens.
        max_tokens: the model's limit, the end token included.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: SpecialTokens, max_tokens: int) -> None:
        tokenizer.encode_special_tokens = True
        vocabulary = tokenizer.get_vocab()
        longest = max(map(len, vocabulary))
        self.max_tokens = max_tokens
        self.max_characters = max(LEAST_CHARACTERS, SHRINKING * longest * max_tokens)
        self.vocabulary_size = len(vocabulary)
        self._tokenizer = tokenizer
        self._unknown, self._end = tokens.unknown, tokens.end
        self._misplaced = {tokens.pad: "<pad>", tokens.unknown: "<unk>", tokens.begin: "<s>", tokens.end: "</s>"}

    async def encode(self, text: str, field: str) -> list[int]:
        """Token ids of a text, the end token included.

        Args:
            field: the text's field, for the error.

        Raises:
            ApiError: the text is empty, too long, or has a character that the model has never seen.
        """
        self.check_size(text, field)
        if len(text) <= INLINE_CHARACTERS:
            return self._check(self._tokenizer.encode(text), text, field)
        return self._check((await asyncio.to_thread(self._tokenizer.encode_batch, [text]))[0], text, field)

    async def encode_batch(self, texts: Sequence[str], fields: Sequence[str]) -> list[list[int] | ApiError]:
        """As `encode`, for many texts: the ids or the error of each."""
        answers: list[list[int] | ApiError] = []
        for chunk in _chunks(texts):
            answers += await self._encode_chunk(texts[chunk], fields[chunk])
        return answers

    async def _encode_chunk(self, texts: Sequence[str], fields: Sequence[str]) -> list[list[int] | ApiError]:
        # A text that is refused for its size is not looked at: an empty one takes its place in the tokenizer's batch.
        errors = [self._size_error(text, field) for text, field in zip(texts, fields, strict=True)]
        checked = ["" if error else text for text, error in zip(texts, errors, strict=True)]
        if sum(map(len, checked)) <= INLINE_CHARACTERS:
            encodings = self._tokenizer.encode_batch(checked)
        else:
            encodings = await asyncio.to_thread(self._tokenizer.encode_batch, checked)
        answers: list[list[int] | ApiError] = []
        for encoding, text, field, error in zip(encodings, texts, fields, errors, strict=True):
            try:
                answers.append(error or self._check(encoding, text, field))
            except ApiError as problem:
                answers.append(problem)
        return answers

    def check_ids(self, ids: Sequence[int], field: str) -> list[int]:
        """Source ids as the model reads them: the end token is added where it is missing.

        Raises:
            ApiError: there are none or too many, or one is not in the vocabulary, or a special token where it can't be.
        """
        if len(ids) > self.max_tokens:
            raise self._too_long(len(ids), field)
        checked = list(ids)
        if checked and checked[-1] == self._end:
            checked.pop()
        if not checked:
            raise invalid(field, "is empty")
        for index, token in enumerate(checked):
            if not 0 <= token < self.vocabulary_size:
                problem = f"is {token}, but the source vocabulary has ids 0 to {self.vocabulary_size - 1}"
                raise invalid(f"{field}[{index}]", problem)
            if token in self._misplaced:
                raise invalid(f"{field}[{index}]", f"is {token}, the special token {self._misplaced[token]}")
        checked.append(self._end)
        if len(checked) > self.max_tokens:
            raise self._too_long(len(checked), field)
        return checked

    def check_size(self, text: str, field: str) -> None:
        """Refuses what need not be tokenized to be refused.

        Raises:
            ApiError: the text is empty, or far too long.
        """
        if error := self._size_error(text, field):
            raise error

    def _size_error(self, text: str, field: str) -> ApiError | None:
        if not text:
            return invalid(field, "is empty")
        if len(text) > self.max_characters:
            problem = (
                f"has {len(text)} characters, far more than the {self.max_tokens} tokens that the model reads at most"
            )
            return invalid(field, problem)
        return None

    def _check(self, encoding: Encoding, text: str, field: str) -> list[int]:
        ids: list[int] = encoding.ids
        if len(ids) > self.max_tokens:
            raise self._too_long(len(ids), field)
        if self._unknown in ids:
            start, end = encoding.offsets[ids.index(self._unknown)]
            while end < len(text) and unicodedata.combining(text[end]):  # normalised into one character with it
                end += 1
            where = f"at position {start} (counted from 0)"
            raise invalid(field, f"has {_describe(text[start:end])} {where}, which the model has never seen")
        if len(ids) == 1:
            raise invalid(field, "is empty once it is normalised")
        return ids

    def _too_long(self, tokens: int, field: str) -> ApiError:
        return invalid(
            field, f"has {tokens} tokens, the end token included, but the model reads at most {self.max_tokens}"
        )


def _describe(text: str) -> str:
    """A character with its code point, or a word."""
    if len(text) == 1:
        return f"the character {text!r} (U+{ord(text):04X})"
    return repr(text if len(text) <= 30 else text[:30] + "...")


def _chunks(texts: Sequence[str]) -> list[slice]:
    """Runs of texts for one trip to the tokenizer each; a single text may be a longer one."""
    chunks, start, characters = [], 0, 0
    for index, text in enumerate(texts):
        characters += len(text)
        if characters > CHUNK_CHARACTERS or index - start >= CHUNK_TEXTS:
            chunks.append(slice(start, index))
            start, characters = index, len(text)
    if start < len(texts):
        chunks.append(slice(start, len(texts)))
    return [chunk for chunk in chunks if chunk.start < chunk.stop]
