"""The training pairs of each epoch: the same ones, or changed and segmented anew."""

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np
from tokenizers import Tokenizer

from dragoman_training.data.augmentation import Augmentation
from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.encode import Tokenizers
from dragoman_training.data.languages import split_language
from dragoman_training.data.pairs import Pair
from dragoman_training.data.segmentation import VARIANTS, RandomSegmentation, rare_characters
from dragoman_training.recipe import AugmentationConfig, Recipe, TokenizerConfig

EpochPairs = Callable[[int], Sequence[EncodedPair]]


def epoch_pairs(
    recipe: Recipe, tokenizers: Tokenizers, pairs: Sequence[Pair], encoded: Sequence[EncodedPair]
) -> EpochPairs:
    """Returns the function from an epoch to its training pairs.

    Args:
        pairs: Training pairs as text.
        encoded: The same pairs as token ids.
    """
    source, target = recipe.tokenizers.source, recipe.tokenizers.target or recipe.tokenizers.source
    changed = recipe.augmentation != AugmentationConfig(number_format=recipe.augmentation.number_format)
    if changed or any(config.bpe_dropout or config.byte_dropout for config in (source, target)):
        return _Epochs(recipe, tokenizers, pairs, encoded)
    return lambda epoch: encoded


class _Side:
    """The sources, or the targets, of the training pairs, encoded as the tokenizer's config says."""

    def __init__(
        self, tokenizer: Tokenizer, config: TokenizerConfig, texts: Sequence[str], encoded: list[list[int]], seed: int
    ) -> None:
        self.tokenizer = tokenizer
        self.encoded = encoded
        self.random: RandomSegmentation | None = None
        if config.bpe_dropout or config.byte_dropout:
            rare = rare_characters(tokenizer, texts) if config.byte_dropout else ()
            self.random = RandomSegmentation(tokenizer, config.bpe_dropout, config.byte_dropout, rare, seed)
            self.words = [self.random.words(text) for text in texts]

    def all(self, rng: np.random.Generator) -> list[list[int]]:
        """Encodes all texts."""
        return self.encoded if self.random is None else self._draw(self.random, self.words, rng)

    def encode(self, texts: list[str], rng: np.random.Generator) -> list[list[int]]:
        """Encodes other texts."""
        if self.random is None:
            return [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        return self._draw(self.random, [self.random.words(text) for text in texts], rng)

    @staticmethod
    def _draw(random: RandomSegmentation, texts: list[list[int]], rng: np.random.Generator) -> list[list[int]]:
        variants = iter(rng.integers(VARIANTS, size=sum(map(len, texts))).tolist())
        return [random.encode(words, [*islice(variants, len(words))]) for words in texts]


class _Epochs:
    """Draws the pairs of an epoch, as a function of the seed and the epoch alone."""

    def __init__(
        self, recipe: Recipe, tokenizers: Tokenizers, pairs: Sequence[Pair], encoded: Sequence[EncodedPair]
    ) -> None:
        self.seed = recipe.seed
        self.encoded = encoded
        split = [split_language(pair.source, recipe.data.target_languages) for pair in pairs]
        self.languages = [language for language, _ in split]
        self.texts = [(text, pair.target) for (_, text), pair in zip(split, pairs, strict=True)]
        self.limits = recipe.model.max_source_length, recipe.model.max_target_length + 1  # both with the end token
        self.augmentation = Augmentation(recipe.augmentation)
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        config = recipe.tokenizers
        target_config = config.target or config.source
        self.source = _Side(tokenizers.source, config.source, sources, [p.source for p in encoded], recipe.seed)
        self.target = _Side(tokenizers.target, target_config, targets, [p.target for p in encoded], recipe.seed)
        self.drawn: tuple[int, list[EncodedPair]] = -1, []

    def __call__(self, epoch: int) -> list[EncodedPair]:
        """Returns the pairs of an epoch; a pair that becomes too long for the model stays as it was."""
        if self.drawn[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch, 1])  # another stream than that of the batches
            pairs = map(EncodedPair, self.source.all(rng), self.target.all(rng))
            drawn = [pair if self._fits(pair) else plain for pair, plain in zip(pairs, self.encoded, strict=True)]
            changes = self.augmentation.changes(self.texts, rng)
            sources = self.source.encode([self.languages[i] + source for i, (source, _) in changes.items()], rng)
            targets = self.target.encode([target for _, target in changes.values()], rng)
            for i, pair in zip(changes, map(EncodedPair, sources, targets), strict=True):
                if self._fits(pair):
                    drawn[i] = pair
            self.drawn = epoch, drawn
        return self.drawn[1]

    def _fits(self, pair: EncodedPair) -> bool:
        return len(pair.source) <= self.limits[0] and len(pair.target) <= self.limits[1]
