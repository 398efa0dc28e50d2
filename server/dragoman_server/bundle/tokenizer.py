"""Text to token ids and back, with the tokenizer files of a bundle."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer


class BundleTokenizer:
    """A `tokenizers` JSON, whose vocabulary may be fed by a SentencePiece model.

    With a SentencePiece model the JSON is vocabulary and decoder alone: texts are segmented by SentencePiece, and its
    pieces are looked up. That is how Marian, M2M100 and PLBart are tokenized, and the `tokenizers` library can't do the
    same: its normalizer treats combining characters otherwise (huggingface/tokenizers#2116).

    Args:
        file: The JSON.
        pieces: The SentencePiece model; None for a JSON that segments texts itself.
        unknown: Id of pieces that are not in the vocabulary.

    Raises:
        RuntimeError, OSError: The model is damaged.
        ModuleNotFoundError: There is a model, and SentencePiece is not installed.
    """

    def __init__(self, file: Path, pieces: Path | None = None, unknown: int = 0) -> None:
        self.json: Tokenizer = Tokenizer.from_file(str(file))
        self.json.encode_special_tokens = True  # text that looks like a special token is plain text
        self._unknown = unknown
        self._processor = None
        if pieces is not None:
            from sentencepiece import SentencePieceProcessor

            self._processor = SentencePieceProcessor(model_file=str(pieces))
            self._ids: dict[str, int] = self.json.get_vocab()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without the special tokens that frame a source."""
        if self._processor is None:
            return [encoding.ids for encoding in self.json.encode_batch(list(texts), add_special_tokens=False)]
        ids, unknown = self._ids, self._unknown
        segmented: list[list[str]] = self._processor.encode(list(texts), out_type=str)
        return [[ids.get(piece, unknown) for piece in pieces] for pieces in segmented]
