"""Converts text to token ids for imported models: with languages, and with whatever ids the model reads as unknown.

`text_encoders` returns what converts the texts of any model.
"""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.segmenter import Segmenter
from dragoman_server.messages.api_error import ApiError, invalid
from dragoman_server.messages.carried_text import TextCarrier
from dragoman_server.messages.languages import Languages, SourceFrame
from dragoman_server.messages.token_ids import (
    INLINE_CHARACTERS,
    SegmentedText,
    SourceChecks,
    SourceEncoder,
    TargetEncoder,
    chunks,
    is_text,
)


class Ids(NamedTuple):
    """A segmented text without offsets, which only unknown characters of other models need."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class ImportedSourceEncoder(SourceChecks):
    """Checks and encodes sources of an imported model. The limit includes what surrounds a text's ids.

    Args:
        bundle: The model.
        languages: Its languages.
        max_tokens: The server's limit.
    """

    def __init__(self, bundle: Bundle, languages: Languages, max_tokens: int) -> None:
        super().__init__(bundle.source_tokenizer, bundle.manifest.tokens, max_tokens)
        manifest = bundle.manifest
        assert manifest.text is not None
        self.vocabulary_size = manifest.shape.source_vocabulary
        self._languages = languages
        self._adds_end = manifest.text.after == [manifest.tokens.end]
        self._pad = manifest.tokens.pad
        self._segmenter = Segmenter(bundle.source_tokenizer, bundle.source_pieces, manifest.tokens.unknown)

    async def encode(self, source: pb.Input, field: str) -> list[int]:
        if not is_text(source, field):
            return self.check_ids(source, field)
        self.check_size(source.text, f"{field}.text")
        frame = self._languages.frame(source, field)
        [ids] = await self.segment([frame.text])
        return self._complete(ids, frame, field)

    async def encode_batch(self, sources: Sequence[pb.Input], fields: Sequence[str]) -> list[list[int] | ApiError]:
        results: list[list[int] | ApiError] = []
        for chunk in chunks([source.text for source in sources]):
            results += await self._encode_chunk(sources[chunk], fields[chunk])
        return results

    def segment_part(self, text: str) -> list[int]:
        """Returns the ids of a part of a text, without any around them, at once."""
        [ids] = self._segmenter.ids([text])
        return ids

    async def segment(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of texts without any around them."""
        if sum(map(len, texts)) <= INLINE_CHARACTERS:
            return self._segmenter.ids(texts)
        return await asyncio.to_thread(self._segmenter.ids, texts)

    async def tokenize(self, text: str, source: pb.Input) -> list[int]:
        """Returns the ids of a text, which may be empty, with those around it.

        Args:
            source: The text's languages.

        Raises:
            ApiError: a language is unknown or missing.
        """
        frame = self._languages.frame(source, "")
        [ids] = await self.segment([frame.text])
        return [*frame.before, *ids, *frame.after]

    def check_ids(self, source: pb.Input, field: str) -> list[int]:
        """Returns source ids, complete as Tokenize returns them; only a single end token may be missing."""
        self._languages.check_ids(source, field)
        ids, field = list(source.token_ids.ids), f"{field}.token_ids.ids"
        if self._adds_end and ids[-1:] != [self.end]:
            ids.append(self.end)
        if not source.token_ids.ids:
            raise invalid(field, "is empty")
        if len(ids) > self.max_tokens:
            raise self._too_long(len(ids), field)
        for index, token in enumerate(ids):
            if not 0 <= token < self.vocabulary_size:
                problem = f"is {token}, but the source vocabulary has ids 0 to {self.vocabulary_size - 1}"
                raise invalid(f"{field}[{index}]", problem)
            if token == self._pad:
                raise invalid(f"{field}[{index}]", f"is {token}, the special token {self.special[token]}")
        return ids

    async def _encode_chunk(self, sources: Sequence[pb.Input], fields: Sequence[str]) -> list[list[int] | ApiError]:
        results: list[list[int] | ApiError] = []
        frames: dict[int, SourceFrame] = {}
        for index, (source, field) in enumerate(zip(sources, fields, strict=True)):
            try:
                if is_text(source, field):
                    self.check_size(source.text, f"{field}.text")
                    frames[index] = self._languages.frame(source, field)
                    results.append([])
                else:
                    results.append(self.check_ids(source, field))
            except ApiError as error:
                results.append(error.with_traceback(None))  # a traceback would keep all the inputs alive
        segmented = await self.segment([frame.text for frame in frames.values()])
        for (index, frame), ids in zip(frames.items(), segmented, strict=True):
            try:
                results[index] = self._complete(ids, frame, fields[index])
            except ApiError as error:
                results[index] = error.with_traceback(None)
        return results

    def _complete(self, ids: list[int], frame: SourceFrame, field: str) -> list[int]:
        complete = [*frame.before, *ids, *frame.after]
        if len(complete) > self.max_tokens:
            raise self._too_long(len(complete), f"{field}.text")
        if not complete:
            raise invalid(f"{field}.text", "has no tokens")
        return complete


class ImportedTargetEncoder(TargetEncoder):
    """Checks and encodes targets of an imported model, which may contain its unknown token."""

    def __init__(self, bundle: Bundle, max_tokens: int) -> None:
        super().__init__(bundle.target_tokenizer, bundle.manifest.tokens, max_tokens)
        self.vocabulary_size = bundle.manifest.shape.target_vocabulary
        tokens = bundle.manifest.tokens
        self.special = {token: self.special[token] for token in (tokens.begin, tokens.pad, tokens.end)}
        self._segmenter = Segmenter(bundle.target_tokenizer, bundle.target_pieces, bundle.manifest.tokens.unknown)

    async def tokenize(self, text: str) -> list[int]:
        [segmented] = await self._tokenize([text], with_end=False)
        return [*segmented.ids, self.end]

    async def _tokenize(self, texts: Sequence[str], with_end: bool) -> list[Ids]:
        assert not with_end
        return [Ids(ids, []) for ids in await asyncio.to_thread(self._segmenter.ids, texts)]

    def _check_known(self, encoding: SegmentedText, text: str, field: str) -> None:
        pass


def text_carrier(bundle: Bundle, encoder: SourceEncoder | ImportedSourceEncoder) -> TextCarrier | None:
    """Returns what takes text that a model can't read out of its sources; None if the bundle does not carry text."""
    if not bundle.manifest.carries_text:
        return None
    imported = isinstance(encoder, ImportedSourceEncoder)
    return TextCarrier(bundle.source_tokenizer, encoder.max_characters, imported=imported)


def text_encoders(bundle: Bundle) -> tuple[Languages, SourceEncoder | ImportedSourceEncoder, TargetEncoder]:
    """Returns the languages of a bundle, and what encodes its sources and targets."""
    manifest = bundle.manifest
    limits, languages = manifest.limits, Languages(manifest.text)
    if manifest.text is None:
        return (
            languages,
            SourceEncoder(bundle.source_tokenizer, manifest.tokens, limits.max_source_tokens),
            TargetEncoder(bundle.target_tokenizer, manifest.tokens, limits.max_target_tokens),
        )
    generation = manifest.generation
    forced = manifest.text.forces_language or (generation is not None and generation.forced_first is not None)
    source = ImportedSourceEncoder(bundle, languages, limits.max_source_tokens)
    return languages, source, ImportedTargetEncoder(bundle, limits.max_target_tokens - forced)
