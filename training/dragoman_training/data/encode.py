"""Pairs as token ids, the model's limits on them, and tokenizers learned from the pairs that keep to those."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.corpus import BadLines
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import CLOSED, empty_tokenizer, min_tokens, train_tokenizer
from dragoman_training.recipe import Recipe


class Tokenizers(NamedTuple):
    """Those of the two sides, one and the same where the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer


def train_tokenizers(recipe: Recipe, pairs: list[Pair]) -> Tokenizers:
    """Tokenizers as the recipe asks for them, from those pairs alone that keep to the model's limits.

    How long a pair is in tokens of bpe or unigram is only known once they are learned; so where pairs turn out to be
    too long, tokenizers are learned anew without them.

    Raises:
        DataError: no such tokenizer can be learned from these pairs.
    """
    config = recipe.tokenizers
    while True:
        sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
        if config.joint:
            source = target = train_tokenizer(config.source, sources + targets)
        else:
            source = train_tokenizer(config.source, sources)
            other, key = (config.target, "tokenizers.target") if config.target else (config.source, "tokenizers.source")
            target = train_tokenizer(other, targets, key)
        tokenizers = Tokenizers(source, target)
        if recipe.data.on_bad_line == "refuse":
            return tokenizers  # a pair that is too long ends the run
        short = [pair for pair, _, fault in encode_pairs(recipe, tokenizers, pairs) if fault is None]
        if len(short) in (0, len(pairs)):
            return tokenizers
        pairs = short


def encode_pairs(
    recipe: Recipe, tokenizers: Tokenizers, pairs: Sequence[Pair]
) -> Iterator[tuple[Pair, EncodedPair, str | None]]:
    """Each pair, its token ids, and why it is too long for the model, or None."""
    sources = tokenizers.source.encode_batch([pair.source for pair in pairs])
    targets = tokenizers.target.encode_batch([pair.target for pair in pairs])
    for pair, source, target in zip(pairs, sources, targets, strict=True):
        fault = _too_long(recipe, len(source.ids) - 1, len(target.ids) - 1)
        yield pair, EncodedPair(source.ids, target.ids), fault


def drop_overlong(recipe: Recipe, pairs: Sequence[Pair], bad: BadLines) -> list[Pair]:
    """The pairs that may keep to the model's limits; others are too long whatever the tokenizers will be, and reported.

    For characters and symbols this is exact. It keeps what cannot fit from every later step: the draw of dev, and the
    tokenizers' learning, whose time and vocabulary a single line of a million characters would make its own.
    """
    source = recipe.tokenizers.source
    target = recipe.tokenizers.target or source
    sides = empty_tokenizer(source), empty_tokenizer(target)
    kept: list[Pair] = []
    for pair in pairs:
        counts = min_tokens(sides[0], source, pair.source), min_tokens(sides[1], target, pair.target)
        fault = _too_long(recipe, *counts, exact=(source.kind in CLOSED, target.kind in CLOSED))
        if fault is None:
            kept.append(pair)
        else:
            bad.report(pair.file, pair.line, "too_long", fault)
    return kept


def _too_long(recipe: Recipe, source: int, target: int, exact: tuple[bool, bool] = (True, True)) -> str | None:
    """What is wrong with a pair of so many tokens, their end tokens not counted; None where nothing is."""
    # The end token counts for the source and not for the target: the limits are those a server will state.
    sides = ("source", source + 1, recipe.model.max_source_length), ("target", target, recipe.model.max_target_length)
    for (side, tokens, limit), known in zip(sides, exact, strict=True):
        if tokens > limit:
            least = "" if known else "at least "
            return f"the {side} has {least}{tokens} tokens, model.max_{side}_length is {limit}"
    return None
