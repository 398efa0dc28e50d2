"""Splits the texts of imported models into token ids, without special tokens around them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from dragoman_server.bundle.manifest import Side, SourcePart, Text


class Pieces(Protocol):
    """A SentencePiece model."""

    def encode(self, texts: list[str], *, out_type: type[str]) -> list[list[str]]:
        """Splits texts into pieces."""


class Segmenter:
    """Splits texts with a `tokenizers` JSON, or with a SentencePiece model whose pieces are looked up in the JSON.

    The second is how Marian, M2M100 and PLBart tokenize. `tokenizers` cannot do the same, since its normalizer differs
    on combining characters (huggingface/tokenizers#2116).

    Args:
        tokenizer: The JSON. It is changed to read text that looks like a special token as plain text.
        pieces: SentencePiece model; None if the JSON splits texts itself.
        unknown: Id of a piece that is not in the vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, pieces: Pieces | None, unknown: int) -> None:
        tokenizer.encode_special_tokens = True
        self._tokenizer, self._pieces, self._unknown = tokenizer, pieces, unknown
        self._vocabulary: Mapping[str, int] = {} if pieces is None else tokenizer.get_vocab()

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of each text."""
        if self._pieces is None:
            return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]
        get, unknown = self._vocabulary.get, self._unknown
        return [[get(piece, unknown) for piece in found] for found in self._pieces.encode(list(texts), out_type=str)]


def frame_ids(rules: Text, parts: Sequence[SourcePart], languages: Mapping[Side, str]) -> list[int]:
    """Returns the ids before or after those of a source.

    Args:
        rules: Text rules of the model.
        parts: `rules.before` or `rules.after`.
        languages: Code of the language of each side that the parts name.
    """
    ids = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        else:
            token = rules.languages[languages["source" if part == "source_language" else "target"]].source
            assert token is not None
            ids.append(token)
    return ids


def load_pieces(path: Path) -> Pieces:
    """Loads a SentencePiece model.

    Raises:
        ModuleNotFoundError: SentencePiece is not installed.
        OSError, RuntimeError: The file is missing or damaged.
    """
    from sentencepiece import SentencePieceProcessor  # imported here: few bundles need it

    pieces: Pieces = SentencePieceProcessor(model_file=str(path))
    return pieces
