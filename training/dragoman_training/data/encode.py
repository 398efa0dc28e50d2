"""Encodes pairs as token ids and applies the model's length limits."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import CLOSED_VOCABULARY, min_tokens
from dragoman_training.recipe import Recipe


class Tokenizers(NamedTuple):
    """The tokenizers of both sides; the same one twice if the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer


def encode_pairs(
    recipe: Recipe, tokenizers: Tokenizers, pairs: Sequence[Pair]
) -> Iterator[tuple[Pair, EncodedPair, str | None]]:
    """Yields each pair with its token ids, and a message if it is too long for the model, else None."""
    sources = tokenizers.source.encode_batch([pair.source for pair in pairs])
    targets = tokenizers.target.encode_batch([pair.target for pair in pairs])
    for pair, source, target in zip(pairs, sources, targets, strict=True):
        problem = _too_long(recipe, len(source.ids) - 1, len(target.ids) - 1)
        yield pair, EncodedPair(source.ids, target.ids), problem


class Bounds:
    """Lower bounds of the lengths of pairs with any tokenizer of a recipe; those of characters and symbols are exact.

    Pairs above a limit must not reach later steps: they would be drawn for dev, and a single line of a million
    characters would dominate the time and the vocabulary of tokenizer training.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.source = recipe.tokenizers.source
        self.target = recipe.tokenizers.target or self.source
        self.exact = self.source.kind in CLOSED_VOCABULARY, self.target.kind in CLOSED_VOCABULARY

    def problem(self, language: str, source: str, target: str) -> str | None:
        """Returns a message if a pair is too long for the model, else None.

        Args:
            language: Start of the source that names its target language.
            source, target: Texts without it, as the normalizers change them.
        """
        if self.source.kind == "imported":  # there are no bounds; what is encoded later is exact
            return None
        source_tokens = bool(language) + min_tokens(self.source, source)
        return _too_long(self.recipe, source_tokens, min_tokens(self.target, target), self.exact)


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
