"""Encodes pairs as token ids, applies the model's length limits, and trains tokenizers on the pairs within them."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.corpus import BadLines
from dragoman_training.data.languages import language_token, split_language
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import CLOSED_VOCABULARY, empty_tokenizer, min_tokens, train_tokenizer
from dragoman_training.recipe import Recipe


class Tokenizers(NamedTuple):
    """The tokenizers of both sides; the same one twice if the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer


def train_tokenizers(recipe: Recipe, pairs: list[Pair]) -> Tokenizers:
    """Trains the tokenizers of a recipe on the pairs within the model's length limits.

    The length of a pair in bpe or unigram tokens is only known after training. If pairs turn out to be too long, the
    tokenizers are trained again without them.

    Raises:
        DataError: No such tokenizer can be trained on these pairs.
    """
    config, languages = recipe.tokenizers, recipe.data.target_languages
    tokens = [language_token(code) for code in languages]
    while True:
        sources = [split_language(pair.source, languages)[1] for pair in pairs]
        targets = [pair.target for pair in pairs]
        if config.joint:
            source = target = train_tokenizer(config.source, sources + targets, tokens=tokens)
        else:
            source = train_tokenizer(config.source, sources, tokens=tokens)
            target_config, key = (
                (config.target, "tokenizers.target") if config.target else (config.source, "tokenizers.source")
            )
            target = train_tokenizer(target_config, targets, key)
        tokenizers = Tokenizers(source, target)
        if recipe.data.on_bad_line == "refuse":
            return tokenizers  # a pair that is too long ends the run anyway
        kept = [pair for pair, _, problem in encode_pairs(recipe, tokenizers, pairs) if problem is None]
        if len(kept) in (0, len(pairs)):
            return tokenizers
        pairs = kept


def encode_pairs(
    recipe: Recipe, tokenizers: Tokenizers, pairs: Sequence[Pair]
) -> Iterator[tuple[Pair, EncodedPair, str | None]]:
    """Yields each pair with its token ids, and a message if it is too long for the model, else None."""
    sources = tokenizers.source.encode_batch([pair.source for pair in pairs])
    targets = tokenizers.target.encode_batch([pair.target for pair in pairs])
    for pair, source, target in zip(pairs, sources, targets, strict=True):
        problem = _too_long(recipe, len(source.ids) - 1, len(target.ids) - 1)
        yield pair, EncodedPair(source.ids, target.ids), problem


def drop_overlong(recipe: Recipe, pairs: Sequence[Pair], bad: BadLines) -> list[Pair]:
    """Drops pairs that are too long with any tokenizer of the recipe; they go to `bad`.

    For characters and symbols this is exact. Such pairs must not reach later steps: they would be drawn for dev, and a
    single line of a million characters would dominate the time and the vocabulary of tokenizer training.
    """
    source = recipe.tokenizers.source
    if source.kind == "imported":  # there are no bounds; what is encoded later is exact
        return list(pairs)
    target = recipe.tokenizers.target or source
    source_tokenizer, target_tokenizer = empty_tokenizer(source), empty_tokenizer(target)
    exact = source.kind in CLOSED_VOCABULARY, target.kind in CLOSED_VOCABULARY
    kept: list[Pair] = []
    for pair in pairs:
        language, text = split_language(pair.source, recipe.data.target_languages)
        source_tokens = bool(language) + min_tokens(source_tokenizer, source, text)
        target_tokens = min_tokens(target_tokenizer, target, pair.target)
        problem = _too_long(recipe, source_tokens, target_tokens, exact)
        if problem is None:
            kept.append(pair)
        else:
            bad.add(pair.file, pair.line, "too_long", problem)
    return kept


def _too_long(recipe: Recipe, source: int, target: int, exact: tuple[bool, bool] = (True, True)) -> str | None:
    """Returns a message if a pair with these token counts, without end tokens, exceeds a limit; else None.

    Args:
        exact: Whether each count is exact or a lower bound.
    """
    # The end token counts for the source but not for the target, as in the limits that a server reports.
    sides = ("source", source + 1, recipe.model.max_source_length), ("target", target, recipe.model.max_target_length)
    for (side, tokens, limit), is_exact in zip(sides, exact, strict=True):
        if tokens > limit:
            return (
                f"the {side} has {'' if is_exact else 'at least '}{tokens} tokens, model.max_{side}_length is {limit}"
            )
    return None
