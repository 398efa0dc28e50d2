"""Trains the tokenizers of a recipe on texts on disk."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dragoman_training.data.encode import Tokenizers
from dragoman_training.data.languages import language_token, split_language
from dragoman_training.data.pairs import Pair
from dragoman_training.data.reading import Mask, TextShard
from dragoman_training.data.tokenizers import train_tokenizer
from dragoman_training.recipe import Recipe


@dataclass(frozen=True)
class _Texts:
    """Texts of the training pairs, read anew each time."""

    recipe: Recipe
    shards: Sequence[TextShard]
    train: Sequence[Mask]
    sides: Callable[[Pair], Sequence[str]]

    def __iter__(self) -> Iterator[str]:
        for shard, mask in zip(self.shards, self.train, strict=True):
            for pair in shard.pairs(self.recipe.data.train, mask):
                yield from self.sides(pair)


def train_tokenizers(recipe: Recipe, shards: Sequence[TextShard], train: Sequence[Mask]) -> Tokenizers:
    """Trains the tokenizers of a recipe.

    Args:
        shards: The texts of all pairs.
        train: Those to train on, for each shard.

    Raises:
        DataError: No such tokenizer can be trained on these pairs.
    """
    config, languages = recipe.tokenizers, recipe.data.target_languages
    tokens = [language_token(code) for code in languages]

    def texts(*sides: Callable[[Pair], str]) -> _Texts:
        return _Texts(recipe, shards, train, lambda pair: [side(pair) for side in sides])

    def source_of(pair: Pair) -> str:
        return split_language(pair.source, languages)[1]

    def target_of(pair: Pair) -> str:
        return pair.target

    if config.joint:
        source = train_tokenizer(config.source, texts(source_of, target_of), tokens=tokens)
        return Tokenizers(source, source)
    source = train_tokenizer(config.source, texts(source_of), tokens=tokens)
    if config.target is None:
        return Tokenizers(source, train_tokenizer(config.source, texts(target_of)))
    return Tokenizers(source, train_tokenizer(config.target, texts(target_of), "tokenizers.target"))
