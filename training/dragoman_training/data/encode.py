"""Encodes pairs as token ids and applies the model's length limits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.imported import ImportedEncoder, ImportedRules
from dragoman_training.data.languages import split_language
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import CLOSED_VOCABULARY, OWN_IDS, SpecialIds, load_tokenizer, min_tokens
from dragoman_training.recipe import Recipe


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both sides; the same one twice if the vocabulary is joint.

    Attributes:
        rules: Rules of an imported model; None for others.
        folder: Where the rules were read.
    """

    source: Tokenizer
    target: Tokenizer
    rules: ImportedRules | None = None
    folder: Path = Path()

    @staticmethod
    def load(source: Path, target: Path) -> "Tokenizers":
        """Loads tokenizers, and the rules of an imported model if they are beside them.

        Raises:
            DataError: A file is missing or damaged.
        """
        rules = ImportedRules.load(source.parent)
        return Tokenizers(load_tokenizer(source), load_tokenizer(target), rules, source.parent)

    @property
    def special(self) -> SpecialIds:
        """The ids of the special tokens."""
        return OWN_IDS if self.rules is None else self.rules.tokens

    @property
    def vocabularies(self) -> tuple[int, int]:
        """The sizes of the model's tables."""
        return (
            (self.source.get_vocab_size(), self.target.get_vocab_size())
            if self.rules is None
            else self.rules.vocabularies
        )

    def encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of sources, complete.

        Raises:
            DataError: The texts of an imported model cannot be encoded.
        """
        if self._imported is None:
            return [encoding.ids for encoding in self.source.encode_batch(list(texts))]
        return self._imported.encode_sources(texts)

    def encode_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the ids of targets, complete but for the decoder's first input.

        Args:
            texts: The targets; those of an imported model start with the languages of their sources.
        """
        if self._imported is None:
            return [encoding.ids for encoding in self.target.encode_batch(list(texts))]
        return self._imported.encode_targets(texts)

    def target_of(self, source: str, target: str) -> str:
        """Returns a target as `encode_targets` takes it."""
        return target if self.rules is None else split_language(source, self.rules.text.languages)[0] + target

    def target_start(self, source: str) -> list[int]:
        """Returns the ids that the target of a source starts with, whatever it says; for each source as many."""
        return [] if self._imported is None else self._imported.target_start(source)

    @cached_property
    def _imported(self) -> ImportedEncoder | None:
        return None if self.rules is None else ImportedEncoder(self.rules, self.source, self.target, self.folder)


def encode_pairs(
    recipe: Recipe, tokenizers: Tokenizers, pairs: Sequence[Pair]
) -> Iterator[tuple[Pair, EncodedPair, str | None]]:
    """Yields each pair with its token ids, and a message if it is too long for the model, else None."""
    sources = tokenizers.encode_sources([pair.source for pair in pairs])
    targets = tokenizers.encode_targets([tokenizers.target_of(pair.source, pair.target) for pair in pairs])
    for pair, source, target in zip(pairs, sources, targets, strict=True):
        problem = _too_long(recipe, len(source) - 1, len(target) - 1)
        yield pair, EncodedPair(source, target), problem


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
