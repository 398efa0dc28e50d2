"""The training pairs of each epoch: the same ones, or changed and segmented anew, block by block."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dragoman_training.data.augmentation import Augmentation
from dragoman_training.data.encode import Tokenizers
from dragoman_training.data.languages import split_language
from dragoman_training.data.mixture import Mixture
from dragoman_training.data.packed import (
    Lengths,
    MappedRows,
    MemoryRows,
    PackedPairs,
    Values,
    pack,
    text,
    token_type,
)
from dragoman_training.data.segmentation import VARIANTS, RandomSegmentation
from dragoman_training.recipe import AugmentationConfig, Recipe, TokenizerConfig

# Pairs of a block. A larger one pads less and takes more memory; a corpus with fewer pairs is one block.
BLOCK_PAIRS = 2**19
TOKENS = np.dtype("<u4")
PIECE = 4096  # pairs that are encoded together
KNOWN_WORDS = 500_000  # words whose segmentations are remembered


@dataclass(frozen=True)
class Corpus:
    """The training pairs on disk.

    Attributes:
        tokens: Token ids of each pair.
        texts: Texts of each pair, of a recipe that changes pairs; None for others.
        rare: Rare characters of the sources and of the targets, see `rare_characters`.
        counts: Number of pairs of each file.
    """

    tokens: MappedRows
    texts: MappedRows | None
    rare: tuple[str, str]
    counts: list[int]


def changes_pairs(recipe: Recipe) -> bool:
    """Returns whether the pairs of an epoch are not just those of the corpus as the tokenizers encode them."""
    sides = recipe.tokenizers.source, recipe.tokenizers.for_targets
    augmented = recipe.augmentation != AugmentationConfig(number_format=recipe.augmentation.number_format)
    return augmented or any(config.bpe_dropout or config.byte_dropout for config in sides)


class Epochs:
    """The blocks of each epoch.

    Args:
        recipe: Recipe of the run.
        tokenizers: Those that encoded the corpus.
        corpus: The training pairs.
    """

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers, corpus: Corpus) -> None:
        self.seed = recipe.seed
        self.corpus = corpus
        self.mixture = Mixture(recipe.data, corpus.counts, recipe.seed)
        self._changed = _ChangedPairs(recipe, tokenizers, corpus) if changes_pairs(recipe) else None
        self._order: tuple[int, NDArray[np.uint32]] = -1, np.zeros(0, np.uint32)
        self._block: tuple[tuple[int, int], PackedPairs] | None = None

    def blocks(self, epoch: int) -> int:
        """Returns the number of blocks of an epoch, at least 1."""
        return max(1, -(-len(self._numbers(epoch)) // BLOCK_PAIRS))

    def block(self, epoch: int, block: int) -> PackedPairs:
        """Returns the pairs of a block; one that becomes too long for the model stays as it was."""
        if self._block is None or self._block[0] != (epoch, block):
            self._block = None  # frees its memory
            numbers, blocks = self._numbers(epoch), self.blocks(epoch)
            chosen = np.sort(numbers[block * len(numbers) // blocks : (block + 1) * len(numbers) // blocks])
            if self._changed is None:
                pairs = PackedPairs(self.corpus.tokens, chosen)
            else:
                # Another stream than that of the batches. Zeros at the end do not count, see `BatchSampler.block`.
                pairs = self._changed.draw(chosen, np.random.default_rng([self.seed, epoch, 1, block]))
            self._block = (epoch, block), pairs
        return self._block[1]

    def _numbers(self, epoch: int) -> NDArray[np.uint32]:
        """Returns the numbers of an epoch's pairs, shuffled if they are more than one block."""
        if self._order[0] != epoch:
            self._order = -1, np.zeros(0, np.uint32)  # frees its memory
            numbers = self.mixture.epoch(epoch)
            if len(numbers) > BLOCK_PAIRS:
                np.random.default_rng([self.seed, epoch, 2]).shuffle(numbers)
            self._order = epoch, numbers
        return self._order[1]


class _Side:
    """Encodes sources, or targets, as the tokenizer's config says."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encode: Callable[[Sequence[str]], list[list[int]]],
        config: TokenizerConfig,
        rare: str,
        seed: int,
    ) -> None:
        self.encode = encode
        self.random: RandomSegmentation | None = None
        if config.bpe_dropout or config.byte_dropout:
            self.random = RandomSegmentation(tokenizer, config.bpe_dropout, config.byte_dropout, rare, seed)

    def encode_all(self, texts: Iterator[str], rng: np.random.Generator) -> MemoryRows:
        """Encodes texts piece by piece, at random if the config says so."""
        return MemoryRows(pack(self._encode(piece, rng), TOKENS) for piece in iter(lambda: [*islice(texts, PIECE)], []))

    def _encode(self, texts: Sequence[str], rng: np.random.Generator) -> list[list[int]]:
        if self.random is None:
            return self.encode(texts)
        self.random.forget(KNOWN_WORDS)
        words = [self.random.words(text) for text in texts]
        variants = iter(rng.integers(VARIANTS, size=sum(map(len, words))).tolist())
        return [self.random.encode(row, [*islice(variants, len(row))]) for row in words]


class _ChangedPairs:
    """Changes pairs and segments them anew."""

    def __init__(self, recipe: Recipe, tokenizers: Tokenizers, corpus: Corpus) -> None:
        assert corpus.texts is not None, "prepared without texts"
        self.tokens, self.texts = corpus.tokens, corpus.texts
        self.languages = recipe.data.languages
        self.tokenizers = tokenizers
        self.limits = recipe.model.max_source_length, recipe.model.max_target_length + 1  # both with the end token
        self.augmentation = Augmentation(recipe.augmentation)
        self.has_teachers = bool(recipe.training.teachers)
        self.kind = token_type(*tokenizers.vocabularies)
        config, rare, seed = recipe.tokenizers, corpus.rare, recipe.seed
        source, target = config.source, config.for_targets
        self.source = _Side(tokenizers.source, tokenizers.encode_sources, source, rare[0], seed)
        self.target = _Side(tokenizers.target, tokenizers.encode_targets, target, rare[1], seed)

    def draw(self, chosen: NDArray[np.uint32], rng: np.random.Generator) -> PackedPairs:
        """Draws the changes of the chosen pairs."""
        numbers = chosen.tolist()
        drawn = [
            None if side.random is None else side.encode_all((text(self.texts[2 * i + n]) for i in numbers), rng)
            for n, side in enumerate((self.source, self.target))
        ]
        split = _SplitTexts(self.texts, chosen, self.languages)
        changes = self.augmentation.changes(split, rng)
        sources = (split.language(i) + source for i, (source, _) in changes.items())
        targets = (self.tokenizers.target_of(split.language(i), target) for i, (_, target) in changes.items())
        changed = self.source.encode_all(sources, rng), self.target.encode_all(targets, rng)

        plain = self.tokens.pair_lengths(chosen)
        lengths = [own if rows is None else rows.lengths() for own, rows in zip(plain, drawn, strict=True)]
        redrawn = self._fits(*lengths)  # [pairs]
        change = np.full(len(chosen), -1)  # number of the change that is made, or -1 [pairs]
        fits = self._fits(changed[0].lengths(), changed[1].lengths())
        change[np.fromiter(changes, np.int64, len(changes))] = np.where(fits, np.arange(len(fits)), -1)

        def sides(i: int, number: int) -> list[Values]:
            if change[i] >= 0:
                return [rows[int(change[i])] for rows in changed]
            return [
                self.tokens[2 * number + n] if rows is None or not redrawn[i] else rows[i]
                for n, rows in enumerate(drawn)
            ]

        pieces = (range(start, min(start + PIECE, len(numbers))) for start in range(0, len(numbers), PIECE))
        rows = MemoryRows(pack([side for i in piece for side in sides(i, numbers[i])], self.kind) for piece in pieces)
        return PackedPairs(rows, plain=PackedPairs(self.tokens, chosen) if self.has_teachers else None)

    def _fits(self, source: Lengths, target: Lengths) -> NDArray[np.bool_]:
        """Returns whether pairs of these lengths fit the model."""
        return (source <= self.limits[0]) & (target <= self.limits[1])


class _SplitTexts(Sequence[tuple[str, str]]):
    """The texts of the chosen pairs; sources without the start that names their languages."""

    def __init__(self, texts: MappedRows, chosen: NDArray[np.uint32], languages: Sequence[str]) -> None:
        self.texts, self.chosen, self.languages = texts, chosen, languages

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: Any) -> Any:
        pair = int(self.chosen[index])
        return split_language(text(self.texts[2 * pair]), self.languages)[1], text(self.texts[2 * pair + 1])

    def language(self, index: int) -> str:
        """Returns the start of a source that names its languages; empty without one."""
        return split_language(text(self.texts[2 * int(self.chosen[index])]), self.languages)[0]
