"""The corpus as text: train, dev and test, without the pairs that the recipe leaves out of training."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from dragoman_training.data.corpus import BadLines, read_pairs
from dragoman_training.data.encode import Tokenizers, drop_overlong
from dragoman_training.data.normalization import canonical
from dragoman_training.data.pairs import Pair
from dragoman_training.data.tokenizers import empty_tokenizer
from dragoman_training.errors import DataError
from dragoman_training.recipe import Recipe


@dataclass(frozen=True)
class Splits:
    """The corpus as text.

    No source of dev or test is also in train, in any spelling, unless the recipe keeps the overlap; sources drawn from
    train for dev never are. By the recipe, the same holds for targets.

    Attributes:
        overlap: Number of distinct sources of train that are also in the files of "dev" and "test".
        overlapping_targets: The same of targets, and of those that are drawn from train for dev; 0 if the recipe does
            not ask for it.
        filtered: Number of training pairs that each filter of the recipe left out.
    """

    train: list[Pair]
    dev: list[Pair]
    test: list[Pair]
    overlap: dict[str, int]
    overlapping_targets: dict[str, int]
    filtered: dict[str, int]


@dataclass(frozen=True)
class _Keyed:
    """A pair with the canonical forms of its sides, in which texts that are the same to the model are equal."""

    source: str
    target: str
    pair: Pair


def read_splits(recipe: Recipe, bad: BadLines, given: Tokenizers | None = None) -> Splits:
    """Reads the data files, and draws dev from the distinct sources of train if the recipe says so.

    The seed determines the draw.

    Args:
        given: Tokenizers of a recipe that does not train any.

    Raises:
        DataError: A file cannot be read, a bad line is refused, or no pair is left.
    """
    data = recipe.data
    train, dev, test = (_keyed(recipe, _read_split(recipe, name, bad), given) for name in ("train", "dev", "test"))
    train, filtered = _filter(recipe, train)
    by_target = data.overlap_by == "either"
    overlap: dict[str, int] = {}
    targets: dict[str, int] = {}
    kept = train
    for name, split in (("dev", dev), ("test", test)):
        sources = {one.source for one in split} & {one.source for one in train}
        shared = {one.target for one in split} & {one.target for one in train} if by_target else set()
        overlap[name], targets[name] = len(sources), len(shared)
        if data.overlap == "drop":
            kept = [one for one in kept if one.source not in sources and one.target not in shared]
    train = kept
    if data.dev_held_out_sources:
        held_out = _draw_sources(train, data.dev_held_out_sources, recipe.seed, bad)
        dev = [one for one in train if one.source in held_out]
        train = [one for one in train if one.source not in held_out]
        if by_target:
            shared = {one.target for one in dev} & {one.target for one in train}
            targets["dev"] = len(shared)
            if data.overlap == "drop":
                train = [one for one in train if one.target not in shared]
    if not train:
        raise DataError(
            f"data.train: no pair is left for training: every source{' or target' if by_target else ''} is also in dev "
            "or test; set data.overlap: keep to train on them anyway"
        )
    texts = [[one.pair for one in split] for split in (train, dev, test)]
    return Splits(texts[0], texts[1], texts[2], overlap, targets, filtered)


def describe_left_out(recipe: Recipe, splits: Splits) -> list[str]:
    """Returns lines on the overlap with dev and test, and on what the filters left out."""
    lines = [
        _describe_overlap(name, count, side, recipe.data.overlap)
        for side, counts in (("sources", splits.overlap), ("targets", splits.overlapping_targets))
        for name, count in counts.items()
        if count
    ]
    ratio = recipe.data.max_length_ratio
    reasons = {
        "length_ratio": f"with one side more than {ratio:g} times as long as the other (data.max_length_ratio)"
        if ratio
        else "",
        "duplicates": "that are in train already (data.duplicates: drop)",
    }
    return [*lines, *(f"left out {count:,} pairs {reasons[name]}" for name, count in splits.filtered.items())]


def no_pair_left(name: str, bad: BadLines, since: int) -> DataError:
    """Returns the error for a split whose pairs are all bad.

    Args:
        since: Number of bad lines before those of the split.
    """
    return DataError(f"data.{name}: no pair is left: {bad.summary(since) or 'its files are empty'}")


def _read_split(recipe: Recipe, name: Literal["train", "dev", "test"], bad: BadLines) -> list[Pair]:
    """Reads the valid pairs of a split that may fit the model; none if the recipe does not have the split."""
    files = getattr(recipe.data, name)
    since = len(bad.lines)
    pairs = drop_overlong(recipe, read_pairs(files or [], bad, recipe.data.columns), bad)
    if files and not pairs:
        raise no_pair_left(name, bad, since)
    return pairs


def _keyed(recipe: Recipe, pairs: Sequence[Pair], given: Tokenizers | None) -> list[_Keyed]:
    """Returns the pairs with canonical forms; those of targets only if the recipe compares them."""
    source = given.source if given else empty_tokenizer(recipe.tokenizers.source)
    if recipe.data.overlap_by == "source" and recipe.data.duplicates == "keep":
        return [_Keyed(canonical(source, pair.source), "", pair) for pair in pairs]
    target = given.target if given else empty_tokenizer(recipe.tokenizers.target or recipe.tokenizers.source)
    return [_Keyed(canonical(source, pair.source), canonical(target, pair.target), pair) for pair in pairs]


def _filter(recipe: Recipe, train: list[_Keyed]) -> tuple[list[_Keyed], dict[str, int]]:
    """Applies the recipe's filters; returns what is left, and how many pairs each filter left out."""
    ratio, counts = recipe.data.max_length_ratio, dict[str, int]()
    if ratio is not None:
        similar = [one for one in train if _length_ratio(one.pair) <= ratio]
        counts["length_ratio"] = len(train) - len(similar)
        if not similar:
            raise DataError(
                f"data.train: no pair is left: data.max_length_ratio ({ratio:g}) leaves out all {len(train):,}"
            )
        train = similar
    if recipe.data.duplicates == "drop":
        first = {(one.source, one.target): one for one in reversed(train)}
        distinct = [one for one in train if first[one.source, one.target] is one]
        counts["duplicates"] = len(train) - len(distinct)
        train = distinct
    return train, counts


def _length_ratio(pair: Pair) -> float:
    """Returns how many times as many characters the longer side has."""
    lengths = sorted((len(pair.source.strip()), len(pair.target.strip())))
    return lengths[1] / max(1, lengths[0])


def _draw_sources(train: Iterable[_Keyed], count: int, seed: int, bad: BadLines) -> set[str]:
    """Draws sources for dev, in canonical form."""
    spellings: dict[str, str] = {}
    for one in train:
        spellings[one.source] = min(one.pair.source, spellings.get(one.source, one.pair.source))
    if count >= len(spellings):
        summary = bad.summary()
        raise DataError(
            f"{summary and summary + '; '}data.dev_held_out_sources ({count}) leaves no training data: "
            f"there are {len(spellings)} distinct sources; set it lower"
        )
    return set(random.Random(seed).sample(sorted(spellings, key=spellings.__getitem__), count))


def _describe_overlap(name: str, count: int, side: str, policy: Literal["drop", "keep"]) -> str:
    overlap = f"{count:,} distinct {side} of data.{name} are in data.train too"
    if policy == "drop":
        return f"{overlap}; they are left out of training (data.overlap: keep would keep them)"
    return f"warning: {overlap} and are trained on (data.overlap: keep), so the metrics on {name} are too good"
