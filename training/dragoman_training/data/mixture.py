"""Which pairs an epoch is made of: all of them once, or those of some files and languages more often than others."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_training.errors import DataError
from dragoman_training.recipe import DataConfig, file_paths, target_language, weight

Numbers = NDArray[np.uint32]


class Mixture:
    """Draws the pairs of each epoch, as a function of the seed and the epoch alone.

    A file with the rate 3 has each of its pairs three times in an epoch; with the rate 0.5, half of them in one epoch,
    and the others in the next.

    Args:
        config: Files with their weights, and the temperature.
        counts: Training pairs of each file. The pairs of a file follow those of the file before.
        seed: Seed of the draw.

    Attributes:
        rates: How often a pair of each file is in an epoch.

    Raises:
        DataError: Epochs would be empty.
    """

    def __init__(self, config: DataConfig, counts: Sequence[int], seed: int) -> None:
        self.config, self.counts, self.seed = config, counts, seed
        self.rates = _rates(config, counts)
        if not sum(int(rate * count) for rate, count in zip(self.rates, counts, strict=True)):
            raise DataError("data.train: the weights are so small that epochs have no pairs; make them larger")

    @property
    def even(self) -> bool:
        """Whether every pair is in each epoch once."""
        return all(rate == 1 for rate in self.rates)

    def epoch(self, epoch: int) -> Numbers:
        """Returns the numbers of the pairs in an epoch, by file; a pair may be there several times."""
        if self.even:
            return np.arange(sum(self.counts), dtype=np.uint32)
        starts = np.cumsum([0, *self.counts[:-1]])
        drawn = [
            self._draw(epoch, file, count, rate) + np.uint32(start)
            for file, (count, rate, start) in enumerate(zip(self.counts, self.rates, starts.tolist(), strict=True))
        ]
        return np.concatenate(drawn)

    def describe(self) -> list[str]:
        """Returns a line about the rates, if they differ."""
        if self.even:
            return []
        shown = ", ".join(
            f"{file_paths(entry)[0].name} {rate:.3g}" for entry, rate in zip(self.config.train, self.rates, strict=True)
        )
        size = sum(round(rate * count) for rate, count in zip(self.rates, self.counts, strict=True))
        return [f"an epoch has {size:,} pairs; how often it has each pair, by file: {shown}"]

    def _draw(self, epoch: int, file: int, count: int, rate: float) -> Numbers:
        """Draws from one file.

        Its shuffles are strung together, and each epoch takes as many pairs as its rate says where the last one ended.
        """
        start, end = int(epoch * rate * count), int((epoch + 1) * rate * count)
        pieces = [np.zeros(0, np.uint32)]
        while start < end:
            shuffle, place = divmod(start, count)
            taken = min(count - place, end - start)
            numbers = np.arange(count, dtype=np.uint32)
            if taken < count:
                np.random.default_rng([self.seed, shuffle, 3, file]).shuffle(numbers)
            pieces.append(numbers[place : place + taken])
            start += taken
        return np.concatenate(pieces)


def _rates(config: DataConfig, counts: Sequence[int]) -> list[float]:
    """Returns how often an epoch has each pair of a file.

    A file weighs its pairs x its weight. The temperature T changes the share p of each language (of each file, if the
    recipe names no languages) to p^(1/T), normalised (Arivazhagan et al. 2019). The size of the epoch stays.
    """
    masses = [weight(entry) * count for entry, count in zip(config.train, counts, strict=True)]
    groups = [target_language(entry) if config.target_languages else str(i) for i, entry in enumerate(config.train)]
    of_group = {group: sum(m for m, g in zip(masses, groups, strict=True) if g == group) for group in groups}
    flattened = {group: mass ** (1 / config.temperature) for group, mass in of_group.items() if mass}
    scale = sum(of_group.values()) / sum(flattened.values())
    factors = {group: scale * value / of_group[group] for group, value in flattened.items()}
    if config.temperature == 1:
        factors = dict.fromkeys(groups, 1.0)  # exactly
    return [weight(entry) * factors.get(group, 1.0) for entry, group in zip(config.train, groups, strict=True)]
