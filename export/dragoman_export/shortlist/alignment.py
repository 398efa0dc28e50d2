"""Probabilities that a source token is translated by a target token: IBM model 1 (Brown et al. 1993), by EM."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_training.data.batches import EncodedPair

ROUNDS = 5
MOST_LINKS = 12_000_000  # pairs of tokens that are looked at; takes about 600 MB


class Translations(NamedTuple):
    """Pairs of tokens that occur in the same pair of texts, sorted by source token.

    Attributes:
        sources, targets: Token ids [n].
        probabilities: Probability of the target token if its source token is translated, float32 [n].
    """

    sources: NDArray[np.int64]
    targets: NDArray[np.int64]
    probabilities: NDArray[np.float32]


def affordable_pairs(pairs: Sequence[EncodedPair], most: int = MOST_LINKS) -> list[EncodedPair]:
    """Returns pairs with at most `most` links between their tokens, evenly spaced if that is not all of them."""
    links = sum((len(pair.source) + 1) * len(pair.target) for pair in pairs)
    step = links / most
    if step <= 1:
        return list(pairs)
    return [pairs[int(place * step)] for place in range(int(len(pairs) / step))]


def translations(pairs: Sequence[EncodedPair], source_vocabulary: int, target_vocabulary: int) -> Translations:
    """Estimates translation probabilities.

    Args:
        pairs: Token ids of each pair. A source may be translated by nothing, so a made-up token is added to each.
        source_vocabulary, target_vocabulary: Numbers of tokens.

    Returns:
        All pairs of tokens except those of the made-up token.
    """
    kept = [pair for pair in pairs if pair.source and pair.target]
    if not kept:
        nothing = np.zeros(0, np.int64)
        return Translations(nothing, nothing, np.zeros(0, np.float32))
    nowhere = source_vocabulary
    sources = np.concatenate([np.array([*pair.source, nowhere], np.int64) for pair in kept])
    targets = np.concatenate([np.array(pair.target, np.int64) for pair in kept])
    widths = np.array([len(pair.source) + 1 for pair in kept])
    starts = np.cumsum(widths) - widths  # of each source
    heights = np.array([len(pair.target) for pair in kept])
    width = np.repeat(widths, heights)  # links of each target token
    first = np.cumsum(width) - width  # its first link
    place = np.arange(width.sum()) - np.repeat(first - np.repeat(starts, heights), width)
    keys, link = np.unique(sources[place] * target_vocabulary + np.repeat(targets, width), return_inverse=True)
    del place
    link = link.astype(np.int32)
    key_source, key_target = np.divmod(keys, target_vocabulary)
    likely = np.ones(len(keys), np.float32)
    for _ in range(ROUNDS):
        share = likely[link]
        share /= np.repeat(np.add.reduceat(share, first), width)
        counts = np.bincount(link, share, len(keys))
        totals = np.bincount(key_source, counts, source_vocabulary + 1)
        likely = (counts / totals[key_source]).astype(np.float32)
    real = key_source != nowhere
    return Translations(key_source[real], key_target[real], likely[real])
