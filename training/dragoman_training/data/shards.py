"""The second pass over a corpus: the training pairs are encoded and written to shards."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_training.data.encode import Tokenizers, encode_pairs
from dragoman_training.data.normalization import normalized
from dragoman_training.data.packed import BYTES, Values, join, pack, token_type, write_rows
from dragoman_training.data.reading import Mask, TextShard
from dragoman_training.data.workers import Work, ordered_map
from dragoman_training.files import read_json, write_text
from dragoman_training.recipe import Recipe

KEPT_LONGEST = 64  # training pairs kept for export: values grow with length, and dev may be shorter
PIECE = 4096  # pairs that are encoded together


class EncodeTask(NamedTuple):
    """A shard of texts, which of its pairs are for training, and the path without suffix of the encoded shard."""

    shard: TextShard
    train: Mask
    path: Path


@dataclass(frozen=True)
class TokenShard:
    """The encoded training pairs of a shard of texts, those that fit the model.

    Attributes:
        path: Its files without suffix.
        fits: Which pairs of the shard of texts they are [pairs of that].
        too_long: Line and message of each pair that does not fit.
        longest: Source and target of those with the longest sources, the longest first, each with its length.
        seen: Ids that occur in the sources.
        characters: How often each character occurs in the normalized sources and targets, if the texts are kept.
    """

    path: Path
    fits: Mask
    too_long: list[tuple[int, str]]
    longest: list[tuple[int, str, str]]
    seen: list[int]
    characters: tuple[Counter[str], Counter[str]]

    def __len__(self) -> int:
        return int(self.fits.sum())


def token_files(path: Path, pairs: int) -> tuple[Path, Path, int]:
    """Returns the token ids of an encoded shard as `MappedRows` take them."""
    return path.with_suffix(".tokens"), path.with_suffix(".ends"), 2 * pairs


def text_files(path: Path, pairs: int) -> tuple[Path, Path, int]:
    """Returns the texts of an encoded shard as `MappedRows` take them."""
    return path.with_suffix(".texts"), path.with_suffix(".text-ends"), 2 * pairs


@dataclass(frozen=True)
class PairEncoder:
    """Encodes shards of texts, in whatever process.

    Attributes:
        recipe: Recipe of the run.
        source, target: Files of the tokenizers.
        texts: Whether the texts are kept, for a recipe that changes pairs.
    """

    recipe: Recipe
    source: Path
    target: Path
    texts: bool

    @cached_property
    def _tokenizers(self) -> Tokenizers:
        return Tokenizers.load(self.source, self.target)

    def __call__(self, task: EncodeTask) -> Path:
        """Writes the encoded shard, unless it exists with the same content; returns its path."""
        digest = hashlib.sha256(task.train.tobytes())
        for file in (self.source, self.target):
            digest.update(file.read_bytes())
        done = read_json(task.path.with_suffix(".json"))
        if done is None or done["made_from"] != digest.hexdigest():
            self._write(task, digest.hexdigest())
        return task.path

    def _write(self, task: EncodeTask, made_from: str) -> None:
        vocabularies = self._tokenizers.vocabularies
        kind = token_type(*vocabularies)
        numbered = zip(
            np.flatnonzero(task.train).tolist(), task.shard.pairs(self.recipe.data.train, task.train), strict=True
        )
        tokens: list[tuple[Values, NDArray[np.uint32]]] = []
        kept_texts: list[tuple[Values, NDArray[np.uint32]]] = []
        fits = np.zeros(len(task.shard), np.bool_)
        too_long: list[tuple[int, str]] = []
        longest: list[tuple[int, str, str]] = []
        seen = np.zeros(vocabularies[0], np.bool_)
        characters: tuple[Counter[str], Counter[str]] = Counter(), Counter()
        while piece := [*islice(numbered, PIECE)]:
            ids: list[list[int]] = []
            kept: list[str] = []
            found = encode_pairs(self.recipe, self._tokenizers, [pair for _, pair in piece])
            for (row, pair), (_, encoded, fault) in zip(piece, found, strict=True):
                if fault is not None:
                    too_long.append((pair.line, fault))
                    continue
                fits[row] = True
                ids += encoded.source, encoded.target
                kept += pair.source, pair.target
                longest.append((len(encoded.source), pair.source, pair.target))
            tokens.append(pack(ids, kind))
            for source in ids[::2]:
                seen[source] = True
            longest = sorted(longest, key=lambda one: one[0], reverse=True)[:KEPT_LONGEST]
            if self.texts:
                kept_texts.append(pack([text.encode() for text in kept], BYTES))
                for side, tokenizer in enumerate((self._tokenizers.source, self._tokenizers.target)):
                    for text in kept[side::2]:
                        characters[side].update(normalized(tokenizer, text))
        count = int(fits.sum())
        write_rows(*join(tokens), *token_files(task.path, count)[:2])
        if self.texts:
            write_rows(*join(kept_texts), *text_files(task.path, count)[:2])
        document = {
            "made_from": made_from,
            "fits": np.packbits(fits).tobytes().hex(),
            "too_long": too_long,
            "longest": longest,
            "seen": np.flatnonzero(seen).tolist(),
            "characters": characters,
        }
        # Last: it makes the shard complete.
        write_text(task.path.with_suffix(".json"), json.dumps(document), durable=False)


def encode_corpus(
    encoder: PairEncoder, shards: Sequence[TextShard], train: Sequence[Mask], folder: Path, work: Work
) -> list[TokenShard]:
    """Encodes the training pairs; shards that exist with the same content are kept.

    Args:
        shards: The texts of all pairs.
        train: Which of them are for training, for each shard.
        folder: Where the encoded shards are.
    """
    tasks = (
        EncodeTask(shard, mask, folder / f"train-{number:05}")
        for number, (shard, mask) in enumerate(zip(shards, train, strict=True))
    )
    total, encoded = sum(int(mask.sum()) for mask in train), 0
    found: list[TokenShard] = []
    for path in ordered_map(encoder, tasks, work.workers):
        mask = train[len(found)]
        document = read_json(path.with_suffix(".json"))
        assert document is not None
        found.append(
            TokenShard(
                path,
                np.unpackbits(np.frombuffer(bytes.fromhex(document["fits"]), BYTES), count=len(mask)).astype(np.bool_),
                [(line, message) for line, message in document["too_long"]],
                [(length, source, target) for length, source, target in document["longest"]],
                document["seen"],
                (Counter(document["characters"][0]), Counter(document["characters"][1])),
            )
        )
        encoded += int(mask.sum())
        work.progress("pairs encoded", encoded, total)
    return found
