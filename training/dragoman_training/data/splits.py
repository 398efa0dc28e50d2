"""Which pairs of the corpus are for training, and which for dev and test.

The texts stay on disk: pairs are compared by hashes, of which 10 million take 80 MB.
"""

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dragoman_training.data.bad_lines import BadLines
from dragoman_training.data.corpus import read_pairs
from dragoman_training.data.packed import BYTES, MappedRows
from dragoman_training.data.pairs import Pair
from dragoman_training.data.reading import Hashes, Mask, PairReader, TextShard, read_corpus
from dragoman_training.data.workers import INLINE, Work
from dragoman_training.errors import DataError
from dragoman_training.recipe import Recipe


@dataclass(frozen=True)
class Splits:
    """The corpus as text.

    No source of dev or test is also in train, in any spelling, unless the recipe keeps the overlap; sources drawn from
    train for dev never are. By the recipe, the same holds for targets.

    Attributes:
        shards: The valid pairs of data.train.
        train: Which of them are for training [pairs].
        sources: Hashes of their sources [pairs].
        overlap: Number of distinct sources of train that are also in the files of "dev" and "test".
        overlapping_targets: The same of targets, and of those that are drawn from train for dev; 0 if the recipe does
            not ask for it.
        filtered: Number of training pairs that each filter of the recipe left out.
    """

    shards: list[TextShard]
    train: Mask
    sources: Hashes
    dev: list[Pair]
    test: list[Pair]
    overlap: dict[str, int]
    overlapping_targets: dict[str, int]
    filtered: dict[str, int]

    def parts(self, mask: Mask) -> list[Mask]:
        """Divides a mask of all pairs by shard."""
        return np.split(mask, np.cumsum([len(shard) for shard in self.shards])[:-1])


@dataclass(frozen=True)
class _Split:
    """The pairs of dev or test, and hashes of their sides."""

    pairs: list[Pair]
    sources: Hashes
    targets: Hashes


def read_splits(reader: PairReader, folder: Path, bad: BadLines, work: Work = INLINE) -> Splits:
    """Reads the data files, and draws dev from the distinct sources of train if the recipe says so.

    The seed determines the draw.

    Args:
        reader: Reader of the recipe.
        folder: Where the texts of train are written.

    Raises:
        DataError: A file cannot be read, a bad line is refused, or no pair is left.
    """
    recipe = reader.recipe
    data = recipe.data
    bad.begin()
    shards = read_corpus(reader, folder, bad, work)
    if not sum(map(len, shards)):
        raise no_pair_left("train", bad)
    dev, test = _read(reader, "dev", bad), _read(reader, "test", bad)
    sources = np.concatenate([shard.source for shard in shards])
    targets = np.concatenate([shard.target for shard in shards])
    train, filtered = _filter(recipe, shards, sources, targets)
    by_target = data.overlap_by == "either"
    overlap: dict[str, int] = {}
    shared_targets: dict[str, int] = {}
    known = train.copy()
    for name, split in (("dev", dev), ("test", test)):
        shared = np.intersect1d(split.sources, sources[known])
        also = np.intersect1d(split.targets, targets[known]) if by_target else np.zeros(0, np.uint64)
        overlap[name], shared_targets[name] = len(shared), len(also)
        if data.overlap == "drop":
            train &= ~_among(sources, shared) & ~_among(targets, also)
    dev_pairs = dev.pairs
    if data.dev_held_out_sources:
        drawn = train & _among(sources, _draw_sources(recipe, shards, train, sources, bad))
        dev_pairs = list(_pairs(recipe, shards, drawn))
        train &= ~drawn
        if by_target:
            also = np.intersect1d(targets[drawn], targets[train])
            shared_targets["dev"] = len(also)
            if data.overlap == "drop":
                train &= ~_among(targets, also)
    if not train.any():
        raise DataError(
            f"data.train: no pair is left for training: every source{' or target' if by_target else ''} is also in dev "
            "or test; set data.overlap: keep to train on them anyway"
        )
    return Splits(shards, train, sources, dev_pairs, test.pairs, overlap, shared_targets, filtered)


def training_pairs(reader: PairReader, folder: Path, most: int) -> list[Pair]:
    """Returns the training pairs as text; of a large corpus, so many that are evenly spaced.

    Args:
        folder: Where the texts of all pairs are written meanwhile.

    Raises:
        DataError: See `read_splits`.
    """
    splits = read_splits(reader, folder, BadLines("skip"))
    chosen = np.flatnonzero(splits.train)
    if len(chosen) > most:
        chosen = chosen[np.arange(most) * len(chosen) // most]
    mask = np.zeros_like(splits.train)
    mask[chosen] = True
    return list(_pairs(reader.recipe, splits.shards, mask))


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


def no_pair_left(name: str, bad: BadLines) -> DataError:
    """Returns the error for a split whose pairs are all bad, those that `bad` counts since it began."""
    return DataError(f"data.{name}: no pair is left: {bad.recent.summary() or 'its files are empty'}")


def _read(reader: PairReader, name: Literal["dev", "test"], bad: BadLines) -> _Split:
    """Reads the valid pairs of a split that may fit the model; none if the recipe does not have the split."""
    data = reader.recipe.data
    files = getattr(data, name)
    bad.begin()
    keyed = list(reader.keyed(read_pairs(files or [], bad, data.columns), bad))
    if files and not keyed:
        raise no_pair_left(name, bad)
    return _Split(
        [one.pair for one in keyed],
        np.array([one.source for one in keyed], np.uint64),
        np.array([one.target for one in keyed], np.uint64),
    )


def _pairs(recipe: Recipe, shards: Sequence[TextShard], mask: Mask) -> Iterator[Pair]:
    """Yields some of the valid pairs."""
    start = 0
    for shard in shards:
        yield from shard.pairs(recipe.data.train, mask[start : start + len(shard)])
        start += len(shard)


def _filter(
    recipe: Recipe, shards: Sequence[TextShard], sources: Hashes, targets: Hashes
) -> tuple[Mask, dict[str, int]]:
    """Applies the recipe's filters; returns what is left, and how many pairs each filter left out."""
    ratio, counts = recipe.data.max_length_ratio, dict[str, int]()
    kept = np.ones(len(sources), np.bool_)
    if ratio is not None:
        kept = ~np.concatenate([shard.different for shard in shards])
        counts["length_ratio"] = len(kept) - int(kept.sum())
        if not kept.any():
            raise DataError(
                f"data.train: no pair is left: data.max_length_ratio ({ratio:g}) leaves out all {len(kept):,}"
            )
    if recipe.data.duplicates == "drop":
        # Of equal pairs, the first. The product makes (a, b) and (b, a) differ.
        chosen = np.flatnonzero(kept)
        _, first = np.unique(sources[chosen] * np.uint64(0x9E3779B97F4A7C15) ^ targets[chosen], return_index=True)
        kept = np.zeros_like(kept)
        kept[chosen[first]] = True
        counts["duplicates"] = len(chosen) - len(first)
    return kept, counts


def _among(values: Hashes, few: Hashes) -> Mask:
    """Returns which of the values are among some others, which are sorted."""
    if not len(few):
        return np.zeros(len(values), np.bool_)
    place = np.searchsorted(few, values)
    place[place == len(few)] = 0
    return np.equal(few[place], values)


def _draw_sources(recipe: Recipe, shards: Sequence[TextShard], train: Mask, sources: Hashes, bad: BadLines) -> Hashes:
    """Draws sources for dev; returns their hashes, sorted.

    The draw is one of numbers. Sources are numbered by the order of their texts, of several spellings by the first.
    """
    count = recipe.data.dev_held_out_sources
    distinct, numbers = np.unique(sources[train], return_inverse=True)
    if count >= len(distinct):
        summary = bad.tally.summary()
        raise DataError(
            f"{summary and summary + '; '}data.dev_held_out_sources ({count}) leaves no training data: "
            f"there are {len(distinct)} distinct sources; set it lower"
        )
    wanted = set(random.Random(recipe.seed).sample(range(len(distinct)), count))
    number = np.zeros(len(train), np.uint32)
    number[train] = numbers
    met = np.zeros(len(distinct), np.bool_)
    drawn: list[int] = []
    seen = 0
    for _, pair in heapq.merge(*_sorted_sources(shards, train)):
        source = int(number[pair])
        if not met[source]:
            met[source] = True
            if seen in wanted:
                drawn.append(source)
            seen += 1
    return distinct[np.sort(np.array(drawn, np.int64))]


def _sorted_sources(shards: Sequence[TextShard], train: Mask) -> Iterator[Iterator[tuple[bytes, int]]]:
    """Yields, for each shard, its source texts in ascending order, each with the number of its pair."""

    def of_shard(shard: TextShard, start: int) -> Iterator[tuple[bytes, int]]:
        texts = MappedRows([shard.rows], BYTES)
        for row in shard.order.tolist():
            if train[start + row]:
                yield texts[2 * row].tobytes(), start + row

    start = 0
    for shard in shards:
        yield of_shard(shard, start)
        start += len(shard)


def _describe_overlap(name: str, count: int, side: str, policy: Literal["drop", "keep"]) -> str:
    overlap = f"{count:,} distinct {side} of data.{name} are in data.train too"
    if policy == "drop":
        return f"{overlap}; they are left out of training (data.overlap: keep would keep them)"
    return f"warning: {overlap} and are trained on (data.overlap: keep), so the metrics on {name} are too optimistic"
