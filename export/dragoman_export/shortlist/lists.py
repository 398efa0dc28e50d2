"""Makes a lexical shortlist of training pairs."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dragoman_export.checks.offline_decoding import encode_sources, encode_targets
from dragoman_export.shortlist.alignment import Translations, affordable_pairs, translations
from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.shortlist import Shortlist
from dragoman_training.data.batches import EncodedPair
from dragoman_training.data.pairs import Pair

MOST_PAIRS = 500_000  # pairs that are read
CHUNK = 10_000
COMMON = 100  # target tokens that occur most often
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


class Statistics:
    """What pairs say about which target tokens are likely.

    Args:
        bundle: The bundle, for its tokenizers.
        pairs: Pairs of texts, of which some are left out if there are very many.
    """

    def __init__(self, bundle: Bundle, pairs: Sequence[Pair]) -> None:
        manifest = bundle.manifest
        step = max(1.0, len(pairs) / MOST_PAIRS)
        encoded = encode(bundle, [pairs[int(place * step)] for place in range(int(len(pairs) / step))])
        self.pairs = len(encoded)
        sources, targets = manifest.shape.source_vocabulary, manifest.shape.target_vocabulary
        self.counts = np.zeros(targets, np.int64)
        for pair in encoded:
            self.counts[pair.target] += 1
        self.translations = translations(affordable_pairs(encoded), sources, targets)


def encode(bundle: Bundle, pairs: Sequence[Pair]) -> list[EncodedPair]:
    """Returns the token ids of pairs, without special tokens."""
    tokens = bundle.manifest.tokens
    special = {tokens.pad, tokens.unknown, tokens.begin, tokens.end}
    encoded: list[EncodedPair] = []
    for start in range(0, len(pairs), CHUNK):
        chunk = pairs[start : start + CHUNK]
        sources = encode_sources(bundle, [pair.source for pair in chunk])
        texts = [pair.target for pair in chunk]
        targets = encode_targets(bundle, texts)
        for pair in zip(sources, targets, strict=True):
            source, target = ([token for token in side if token not in special] for side in pair)
            encoded.append(EncodedPair(source, target))
    return encoded


def make_shortlist(bundle: Bundle, statistics: Statistics, likely: int) -> Shortlist:
    """Returns a shortlist.

    Every source may use the end token, the tokens of single bytes, and the most common ones; besides, for each of its
    tokens, the most likely translations and the target token of the same text.

    Args:
        bundle: The bundle that it is for.
        statistics: Which tokens are likely.
        likely: Number of translations of a source token.
    """
    tokens, target = bundle.manifest.tokens, bundle.target_tokenizer
    common = set(np.argsort(-statistics.counts, kind="stable")[:COMMON].tolist())
    common |= {id_ for text in BYTES if (id_ := target.token_to_id(text)) is not None}
    common = (common - {tokens.pad, tokens.unknown, tokens.begin}) | {tokens.end}
    found = _most_likely(statistics.translations, likely)
    sources, targets = np.concatenate([found, _same_texts(bundle.source_tokenizer, target)], 1)
    size = bundle.manifest.shape.target_vocabulary
    count = bundle.manifest.shape.source_vocabulary
    is_common = np.zeros(size, np.bool_)
    is_common[list(common)] = True
    keys = np.unique((sources * size + targets)[~is_common[targets]])
    starts = np.searchsorted(keys, np.arange(count + 1) * size)
    return Shortlist(np.array(sorted(common), np.int64), starts, keys % size, size)


def _most_likely(found: Translations, count: int) -> NDArray[np.int64]:
    """Returns the most likely translations of each source token, int64 [2, n]: source tokens, target tokens."""
    order = np.lexsort((-found.probabilities, found.sources))
    sources, targets = found.sources[order], found.targets[order]
    starts = np.searchsorted(sources, sources)
    return np.stack([sources, targets])[:, np.arange(len(sources)) - starts < count]


def _same_texts(source: Tokenizer, target: Tokenizer) -> NDArray[np.int64]:
    """Returns source and target tokens of the same text, int64 [2, n]: names and numbers are copied."""
    targets = target.get_vocab()
    same = sorted((id_, targets[text]) for text, id_ in source.get_vocab().items() if text in targets)
    return np.array(same, np.int64).reshape(-1, 2).T
