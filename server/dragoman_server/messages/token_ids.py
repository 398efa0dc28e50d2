"""Text to token ids, refusing what the model can't read or write. Nothing is ever truncated."""

import asyncio
import unicodedata
from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.blank_text import describe_characters, is_blank

# Texts up to this many characters are tokenized on the event loop, in a millisecond or two; longer ones in a thread.
INLINE_CHARACTERS = 2048
# So few take no longer than to let go of the interpreter's lock, as is done for more, and get it back from an engine.
BRIEF_CHARACTERS = 128
# A text may have this many times more characters than the longest tokens could cover: normalisation may shorten it.
SHRINKING = 4
LEAST_CHARACTERS = 4096
# What one trip of a batch to the tokenizer may hold, so that the event loop gets its turn in between.
CHUNK_TEXTS, CHUNK_CHARACTERS = 256, 65536


def is_text(given: pb.Input, field: str) -> bool:
    """Whether an input comes as text, or else as ids.

    Args:
        field: the input's field, for the error.

    Raises:
        ApiError: it is both or neither.
    """
    has_text, has_ids = given.HasField("text"), given.HasField("token_ids")
    if has_text and has_ids:
        raise invalid(field, "has both text and token_ids, but must have exactly one")
    if not has_text and not has_ids:
        raise invalid(field, "has neither text nor token_ids, but must have exactly one")
    return has_text


class TextEncoder:
    """What source and target have in common.

    Args:
        tokenizer: text that looks like a special token is from now on read as plain text.
        tokens: the special tokens.
        max_tokens: the model's limit.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: SpecialTokens, max_tokens: int) -> None:
        tokenizer.encode_special_tokens = True
        vocabulary = tokenizer.get_vocab()
        longest = max(map(len, vocabulary))
        self.max_tokens = max_tokens
        self.max_characters = max(LEAST_CHARACTERS, SHRINKING * longest * max_tokens)
        self.vocabulary_size = len(vocabulary)
        self.end = tokens.end
        self.special = {tokens.pad: "<pad>", tokens.unknown: "<unk>", tokens.begin: "<s>", tokens.end: "</s>"}
        self._tokenizer = tokenizer
        self._unknown = tokens.unknown

    async def _tokenize(self, texts: Sequence[str], with_end: bool) -> list[Encoding]:
        """Args:
        with_end: whether the end token is added.
        """
        if len(texts) == 1 and len(texts[0]) <= BRIEF_CHARACTERS:
            return [self._tokenizer.encode(texts[0], add_special_tokens=with_end)]
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            return self._tokenizer.encode_batch(texts, add_special_tokens=with_end)
        return await asyncio.to_thread(self._tokenizer.encode_batch, texts, add_special_tokens=with_end)

    def _check_known(self, encoding: Encoding, text: str, field: str) -> None:
        """Raises ApiError where a part of the text has no token."""
        if self._unknown in encoding.ids:
            start, end = encoding.offsets[encoding.ids.index(self._unknown)]
            while end < len(text) and unicodedata.combining(text[end]):  # normalised into one character with it
                end += 1
            where = f"at position {start} (counted from 0)"
            raise invalid(field, f"has {_describe(text[start:end])} {where}, which the model has never seen")


class SourceEncoder(TextEncoder):
    """Checks and encodes what a model shall read. Its limit counts the end token.

    Args:
        tokenizer, tokens, max_tokens: see `TextEncoder`.
    """

    def __init__(self, tokenizer: Tokenizer, tokens: SpecialTokens, max_tokens: int) -> None:
        super().__init__(tokenizer, tokens, max_tokens)
        ids = [[token] for token in range(self.vocabulary_size) if token not in self.special]
        texts = tokenizer.decode_batch(ids)
        # What a normalizer may leave of a text without content: a lone "▁", say.
        self._blank = frozenset(token for (token,), text in zip(ids, texts, strict=True) if is_blank(text))

    async def encode(self, text: str, field: str) -> list[int]:
        """Token ids of a text, the end token included.

        Args:
            field: the text's field, for the error.

        Raises:
            ApiError: the text is empty, holds nothing that can be seen, is too long, or has a character that the model
                has never seen.
        """
        self.check_size(text, field)
        [encoding] = await self._tokenize([text], with_end=True)
        return self._check(encoding, text, field)

    async def encode_batch(self, texts: Sequence[str], fields: Sequence[str]) -> list[list[int] | ApiError]:
        """As `encode`, for many texts: the ids or the error of each."""
        answers: list[list[int] | ApiError] = []
        for chunk in _chunks(texts):
            answers += await self._encode_chunk(texts[chunk], fields[chunk])
        return answers

    async def _encode_chunk(self, texts: Sequence[str], fields: Sequence[str]) -> list[list[int] | ApiError]:
        # A text that is refused for its size is not looked at: an empty one takes its place in the tokenizer's batch.
        errors = [self._size_error(text, field) for text, field in zip(texts, fields, strict=True)]
        encodings = await self._tokenize(
            ["" if error else text for text, error in zip(texts, errors, strict=True)], with_end=True
        )
        answers: list[list[int] | ApiError] = []
        for encoding, text, field, error in zip(encodings, texts, fields, errors, strict=True):
            try:
                answers.append(error or self._check(encoding, text, field))
            except ApiError as problem:
                answers.append(problem.with_traceback(None))  # which would hold on to all the texts
        return answers

    def check_ids(self, ids: Sequence[int], field: str) -> list[int]:
        """Source ids as the model reads them: the end token is added where it is missing.

        Raises:
            ApiError: there are none or too many, or one is not in the vocabulary, or a special token where it can't be.
        """
        if len(ids) > self.max_tokens:
            raise self._too_long(len(ids), field)
        checked = list(ids)
        if checked and checked[-1] == self.end:
            checked.pop()
        if not checked:
            raise invalid(field, "holds nothing but the end token" if ids else "is empty")
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

    def check_size(self, text: str, field: str) -> None:
        """Refuses what need not be tokenized to be refused.

        Raises:
            ApiError: the text is empty, holds nothing that can be seen, or is far too long.
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
        if is_blank(text):
            return invalid(field, f"is empty: it holds only {describe_characters(text)}")
        return None

    def _check(self, encoding: Encoding, text: str, field: str) -> list[int]:
        ids: list[int] = encoding.ids
        if len(ids) > self.max_tokens:
            raise self._too_long(len(ids), field)
        self._check_known(encoding, text, field)
        if self._blank.issuperset(ids[:-1]):
            raise invalid(field, f"is empty once it is normalised: it holds only {describe_characters(text)}")
        return ids

    def _too_long(self, tokens: int, field: str) -> ApiError:
        return invalid(
            field, f"has {tokens} tokens, the end token included, but the model reads at most {self.max_tokens}"
        )


class TargetEncoder(TextEncoder):
    """Checks and encodes what a model has written, shall write or shall not. Its limit does not count the end token."""

    async def encode(
        self, inputs: Sequence[pb.Input], fields: Sequence[str], whole: bool = False
    ) -> list[tuple[int, ...]]:
        """Token ids of each input, without end token.

        Args:
            fields: the inputs' fields, for the error.
            whole: they are targets, which may be empty and may have their end token; else parts of some.

        Raises:
            ApiError: one of them is not something that the model can write.
        """
        texts = [index for index, given in enumerate(inputs) if is_text(given, fields[index])]
        for index in texts:
            if len(inputs[index].text) > self.max_characters:
                raise self._too_long(f"{len(inputs[index].text)} characters", f"{fields[index]}.text")
        encodings = dict(
            zip(texts, await self._tokenize([inputs[index].text for index in texts], with_end=False), strict=True)
        )
        parts = []
        for index, (given, field) in enumerate(zip(inputs, fields, strict=True)):
            if (encoding := encodings.get(index)) is not None:  # an empty one is false
                field, ids = f"{field}.text", encoding.ids
                self._check_known(encoding, given.text, field)
            else:
                field = f"{field}.token_ids.ids"
                if (count := len(given.token_ids.ids)) > self.max_tokens + whole:  # before each is looked at
                    raise self._too_long(f"{count} tokens", field)
                ids = list(given.token_ids.ids)
                self._check_ids(ids, field, whole)
                if whole and ids and ids[-1] == self.end:
                    ids.pop()
            if not ids and not whole:
                raise invalid(
                    field, f"is empty: it holds only {describe_characters(given.text)}" if given.text else "is empty"
                )
            if len(ids) > self.max_tokens:
                raise self._too_long(f"{len(ids)} tokens", field)
            parts.append(tuple(ids))
        return parts

    def check_id(self, token: int, field: str) -> None:
        """Raises ApiError where there is no such token."""
        if not 0 <= token < self.vocabulary_size:
            raise invalid(field, f"is {token}, but the target vocabulary has ids 0 to {self.vocabulary_size - 1}")

    def _check_ids(self, ids: Sequence[int], field: str, whole: bool) -> None:
        last = len(ids) - 1
        for index, token in enumerate(ids):
            self.check_id(token, f"{field}[{index}]")
            if token == self.end:
                misplaced = not whole or index < last
            else:
                misplaced = token in self.special
            if misplaced:
                raise invalid(f"{field}[{index}]", f"is {token}, the special token {self.special[token]}")

    def _too_long(self, size: str, field: str) -> ApiError:
        return invalid(field, f"has {size}, but the model writes at most {self.max_tokens} tokens")


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
