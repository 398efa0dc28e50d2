"""Converts text to token ids, and refuses what the model can't read or write. Nothing is ever truncated."""

import asyncio
import unicodedata
from collections.abc import Sequence
from typing import Protocol

from tokenizers import Tokenizer

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.blank_text import describe_characters, is_blank
from dragoman_server.messages.languages import refuse_languages

# Texts of up to this many characters are tokenized on the event loop, in a millisecond or two; longer ones in a thread.
INLINE_CHARACTERS = 2048
# Texts that are this short in all are tokenized while holding the interpreter's lock: getting it back from an engine
# takes longer.
BRIEF_CHARACTERS = 512
# A text may have this many times more characters than the longest tokens could cover: normalization can shorten it.
SHRINKING = 4
MIN_CHARACTERS = 4096  # always allowed
# Maximum size of one tokenizer run of a batch, to let the event loop do other work in between.
CHUNK_TEXTS, CHUNK_CHARACTERS = 256, 65536


def is_text(source: pb.Input, field: str) -> bool:
    """Returns whether an input is a text rather than ids.

    Args:
        field: Name of the input's field, for the error.

    Raises:
        ApiError: the input has both a text and ids, or neither.
    """
    has_text, has_ids = source.HasField("text"), source.HasField("token_ids")
    if has_text and has_ids:
        raise invalid(field, "has both text and token_ids, but must have exactly one")
    if not has_text and not has_ids:
        raise invalid(field, "has neither text nor token_ids, but must have exactly one")
    return has_text


class SegmentedText(Protocol):
    """The result of tokenizing a text.

    Attributes:
        ids: Token ids.
        offsets: Characters of the text that each id covers, from the first to past the last.
    """

    @property
    def ids(self) -> list[int]: ...

    @property
    def offsets(self) -> list[tuple[int, int]]: ...


class TextEncoder:
    """Tokenizes text of the source or of the target.

    Args:
        tokenizer: The tokenizer. It is changed to read text that looks like a special token as plain text.
        tokens: The special tokens.
        max_tokens: The model's limit.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: SpecialTokens, max_tokens: int) -> None:
        tokenizer.encode_special_tokens = True
        vocabulary = tokenizer.get_vocab()
        longest = max(map(len, vocabulary))
        self.max_tokens = max_tokens
        self.max_characters = max(MIN_CHARACTERS, SHRINKING * longest * max_tokens)
        self.vocabulary_size = len(vocabulary)
        self.end = tokens.end
        special = (tokens.unknown, tokens.begin, tokens.pad, tokens.end)
        self.special = {token: tokenizer.id_to_token(token) or "" for token in special}
        self._tokenizer = tokenizer
        self._unknown = tokens.unknown

    async def _tokenize(self, texts: Sequence[str], with_end: bool) -> Sequence[SegmentedText]:
        """Tokenizes texts.

        Args:
            with_end: Whether to add the end token.
        """
        characters = sum(map(len, texts))
        if characters <= BRIEF_CHARACTERS:
            return [self._tokenizer.encode(text, add_special_tokens=with_end) for text in texts]
        if characters <= INLINE_CHARACTERS:
            return self._tokenizer.encode_batch(texts, add_special_tokens=with_end)
        return await asyncio.to_thread(self._tokenizer.encode_batch, texts, add_special_tokens=with_end)

    def _check_known(self, encoding: SegmentedText, text: str, field: str) -> None:
        """Raises ApiError if a part of the text has no token."""
        if self._unknown in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self._unknown)]
            while end < len(text) and unicodedata.combining(text[end]):  # normalized into one character with it
                end += 1
            where = f"at position {start} (counted from 0)"
            raise invalid(field, f"has {_describe(text[start:end])} {where}, which is not in the model's vocabulary")


class SourceChecks(TextEncoder):
    """The checks of sources that need no tokenizing."""

    def check_size(self, text: str, field: str) -> None:
        """Raises ApiError if a text is empty or blank, or far too long."""
        if error := self._size_error(text, field):
            raise error

    def _size_error(self, text: str, field: str) -> ApiError | None:
        if not text:
            return invalid(field, "is empty")
        if len(text) > self.max_characters:
            return invalid(
                field, f"has {len(text)} characters, far more than fit in the model's {self.max_tokens} tokens"
            )
        if is_blank(text):
            return invalid(field, f"is blank: it contains only {describe_characters(text)}")
        return None

    def _too_long(self, tokens: int, field: str) -> ApiError:
        return invalid(
            field, f"has {tokens} tokens, the end token included, but the model reads at most {self.max_tokens}"
        )


class SourceEncoder(SourceChecks):
    """Checks and encodes sources. The limit includes the end token."""

    def __init__(self, tokenizer: Tokenizer, tokens: SpecialTokens, max_tokens: int) -> None:
        super().__init__(tokenizer, tokens, max_tokens)
        ids = [[token] for token in range(self.vocabulary_size) if token not in self.special]
        texts = tokenizer.decode_batch(ids)
        # Tokens that a normalizer may leave of a blank text, such as a lone "▁".
        self._blank = frozenset(token for (token,), text in zip(ids, texts, strict=True) if is_blank(text))

    def segment_part(self, text: str) -> list[int]:
        """Returns the token ids of a part of a source, without the end token, at once."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    async def encode(self, source: pb.Input, field: str) -> list[int]:
        """Returns the token ids of a source, the end token included.

        Args:
            field: Name of the source's field, for the error.

        Raises:
            ApiError: the text is empty or blank, is too long, or has a character that is not in the vocabulary; or the
                ids are invalid; or the source names a language.
        """
        if (ids := self._check_input(source, field)) is not None:
            return ids
        text, field = source.text, f"{field}.text"
        self.check_size(text, field)
        [encoding] = await self._tokenize([text], with_end=True)
        return self._check(encoding, text, field)

    async def encode_batch(self, sources: Sequence[pb.Input], fields: Sequence[str]) -> list[list[int] | ApiError]:
        """Encodes many sources. Returns the ids of each, or its error."""
        results: list[list[int] | ApiError] = []
        texts: list[int] = []  # indices of sources given as text
        for index, (source, field) in enumerate(zip(sources, fields, strict=True)):
            try:
                ids = self._check_input(source, field)
            except ApiError as error:
                results.append(error.with_traceback(None))  # a traceback would keep all the inputs alive
                continue
            if ids is None:
                texts.append(index)
            results.append(ids or [])
        encoded = await self._encode_texts([sources[i].text for i in texts], [f"{fields[i]}.text" for i in texts])
        for index, ids_or_error in zip(texts, encoded, strict=True):
            results[index] = ids_or_error
        return results

    async def tokenize(self, text: str, source: pb.Input) -> list[int]:
        """Returns the ids of a text, which may be empty, with the end token.

        Args:
            source: The text's languages; the model has none.

        Raises:
            ApiError: a language is set.
        """
        refuse_languages(source, "", is_source=True)
        [encoding] = await asyncio.to_thread(self._tokenizer.encode_batch, [text])
        ids: list[int] = encoding.ids
        return ids

    async def _encode_texts(self, texts: Sequence[str], fields: Sequence[str]) -> list[list[int] | ApiError]:
        results: list[list[int] | ApiError] = []
        for chunk in chunks(texts):
            results += await self._encode_chunk(texts[chunk], fields[chunk])
        return results

    async def _encode_chunk(self, texts: Sequence[str], fields: Sequence[str]) -> list[list[int] | ApiError]:
        # A text that is refused for its size is not tokenized: an empty one takes its place in the tokenizer's batch.
        errors = [self._size_error(text, field) for text, field in zip(texts, fields, strict=True)]
        encodings = await self._tokenize(
            ["" if error else text for text, error in zip(texts, errors, strict=True)], with_end=True
        )
        results: list[list[int] | ApiError] = []
        for encoding, text, field, error in zip(encodings, texts, fields, errors, strict=True):
            try:
                results.append(error or self._check(encoding, text, field))
            except ApiError as problem:
                results.append(problem.with_traceback(None))  # the traceback would keep all texts alive
        return results

    def _check_input(self, source: pb.Input, field: str) -> list[int] | None:
        """Returns the checked ids of a source that consists of ids, None for a text."""
        refuse_languages(source, field, is_source=True)
        return None if is_text(source, field) else self._check_ids(source.token_ids.ids, f"{field}.token_ids.ids")

    def _check_ids(self, ids: Sequence[int], field: str) -> list[int]:
        """Returns source ids with an end token, which is added if it is missing."""
        if len(ids) > self.max_tokens:
            raise self._too_long(len(ids), field)
        checked = list(ids)
        if checked and checked[-1] == self.end:
            checked.pop()
        if not checked:
            raise invalid(field, "contains only the end token" if ids else "is empty")
        for index, token in enumerate(checked):
            if not 0 <= token < self.vocabulary_size:
                problem = f"is {token}, but the source vocabulary has ids 0 to {self.vocabulary_size - 1}"
                raise invalid(f"{field}[{index}]", problem)
            if token in self.special:
                raise invalid(f"{field}[{index}]", f"is {token}, the special token {self.special[token]}")
        checked.append(self.end)
        if len(checked) > self.max_tokens:
            raise self._too_long(len(checked), field)
        return checked

    def _check(self, encoding: SegmentedText, text: str, field: str) -> list[int]:
        ids: list[int] = encoding.ids
        if len(ids) > self.max_tokens:
            raise self._too_long(len(ids), field)
        self._check_known(encoding, text, field)
        if self._blank.issuperset(ids[:-1]):
            raise invalid(field, f"is blank after normalization: it contains only {describe_characters(text)}")
        return ids


class TargetEncoder(TextEncoder):
    """Checks and encodes targets and parts of targets. The limit excludes the end token."""

    async def encode(
        self, inputs: Sequence[pb.Input], fields: Sequence[str], complete: bool = False
    ) -> list[tuple[int, ...]]:
        """Returns the token ids of each input, without the end token.

        Args:
            fields: Names of the inputs' fields, for the error.
            complete: Whether the inputs are complete targets, which may be empty and may have an end token, rather than
                parts of targets.

        Raises:
            ApiError: the model can't write one of them.
        """
        for part, field in zip(inputs, fields, strict=True):
            refuse_languages(part, field)
        texts = [index for index, part in enumerate(inputs) if is_text(part, fields[index])]
        for index in texts:
            if len(inputs[index].text) > self.max_characters:
                raise self._too_long(f"{len(inputs[index].text)} characters", f"{fields[index]}.text")
        encodings = dict(
            zip(texts, await self._tokenize([inputs[index].text for index in texts], with_end=False), strict=True)
        )
        all_ids = []
        for index, (part, field) in enumerate(zip(inputs, fields, strict=True)):
            if (encoding := encodings.get(index)) is not None:  # an empty encoding is falsy
                field, ids = f"{field}.text", encoding.ids
                self._check_known(encoding, part.text, field)
            else:
                field = f"{field}.token_ids.ids"
                if (count := len(part.token_ids.ids)) > self.max_tokens + complete:  # before checking each id
                    raise self._too_long(f"{count} tokens", field)
                ids = list(part.token_ids.ids)
                self._check_ids(ids, field, complete)
                if complete and ids and ids[-1] == self.end:
                    ids.pop()
            if not ids and not complete:
                raise invalid(
                    field, f"is blank: it contains only {describe_characters(part.text)}" if part.text else "is empty"
                )
            if len(ids) > self.max_tokens:
                raise self._too_long(f"{len(ids)} tokens", field)
            all_ids.append(tuple(ids))
        return all_ids

    async def tokenize(self, text: str) -> list[int]:
        """Returns the ids of a text, which may be empty, with the end token."""
        [encoding] = await asyncio.to_thread(self._tokenizer.encode_batch, [text])
        ids: list[int] = encoding.ids
        return ids

    def check_id(self, token: int, field: str) -> None:
        """Raises ApiError if a token is not in the vocabulary."""
        if not 0 <= token < self.vocabulary_size:
            raise invalid(field, f"is {token}, but the target vocabulary has ids 0 to {self.vocabulary_size - 1}")

    def _check_ids(self, ids: Sequence[int], field: str, complete: bool) -> None:
        last = len(ids) - 1
        for index, token in enumerate(ids):
            self.check_id(token, f"{field}[{index}]")
            if token == self.end:
                misplaced = not complete or index < last
            else:
                misplaced = token in self.special
            if misplaced:
                raise invalid(f"{field}[{index}]", f"is {token}, the special token {self.special[token]}")

    def _too_long(self, size: str, field: str) -> ApiError:
        return invalid(field, f"has {size}, but the model writes at most {self.max_tokens} tokens")


def _describe(text: str) -> str:
    """Describes a character with its code point, or a longer text."""
    if len(text) == 1:
        return f"the character {text!r} (U+{ord(text):04X})"
    return repr(text if len(text) <= 30 else text[:30] + "...")


def chunks(texts: Sequence[str]) -> list[slice]:
    """Splits texts into slices for one tokenizer run each. A slice of a single text may exceed the limit."""
    chunks, start, characters = [], 0, 0
    for index, text in enumerate(texts):
        characters += len(text)
        if characters > CHUNK_CHARACTERS or index - start >= CHUNK_TEXTS:
            chunks.append(slice(start, index))
            start, characters = index, len(text)
    if start < len(texts):
        chunks.append(slice(start, len(texts)))
    return [chunk for chunk in chunks if chunk.start < chunk.stop]
