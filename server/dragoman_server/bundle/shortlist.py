"""The lexical shortlist of a bundle: which target tokens are likely for each source token.

The file is little-endian: `MAGIC`; four 32-bit numbers, those of source tokens, target tokens, common tokens and listed
tokens; the ids of the common tokens; for each source token, and for the end, the place in the lists where its own
starts, 32 bits each; and the lists, whose ids have 16 bits if the target has at most 65,536 tokens, else 32.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.token_list import TokenList

MAGIC = b"DRGLEX1\n"
_NUMBER = np.dtype("<u4")
_NARROW = np.dtype("<u2")
_MOST_NARROW = 1 << 16


class ShortlistError(Exception):
    """The file is not a shortlist of the model; the message says why, without the file's name."""


class Shortlist:
    """Likely target tokens by source token.

    Args:
        common: Ids that are likely for any source, sorted.
        starts: For each source token, and for the end, where its list starts, [source vocabulary + 1].
        lists: Ids of all lists, one after the other, in any unsigned or signed type.
        target_vocabulary: Number of target tokens.
    """

    def __init__(
        self, common: NDArray[np.int64], starts: NDArray[np.int64], lists: NDArray[np.integer], target_vocabulary: int
    ) -> None:
        self.common, self.starts, self.lists = common, starts, lists
        self.target_vocabulary = target_vocabulary
        self._bounds: list[int] = starts.tolist()
        self._is_common = np.zeros(target_vocabulary, np.bool_)
        self._is_common[common] = True

    def candidates(self, source: Iterable[int], more: Sequence[int] = ()) -> TokenList:
        """Returns the ids that a translation may consist of.

        Args:
            source: Ids of the source. Other ids than those of source tokens add nothing.
            more: Ids to add.
        """
        chosen = self._is_common.copy()
        bounds, last = self._bounds, len(self._bounds) - 1
        lists = [self.lists[bounds[token] : bounds[token + 1]] for token in set(source) if 0 <= token < last]
        if lists:
            chosen[np.concatenate(lists)] = True
        if more:
            chosen[list(more)] = True
        return TokenList(chosen.nonzero()[0])

    def to_bytes(self) -> bytes:
        """Returns the content of the file."""
        counts = len(self.starts) - 1, self.target_vocabulary, len(self.common), len(self.lists)
        parts = (
            np.array(counts, _NUMBER),
            self.common.astype(_NUMBER),
            self.starts.astype(_NUMBER),
            self.lists.astype(_list_type(self.target_vocabulary)),
        )
        return MAGIC + b"".join(part.tobytes() for part in parts)


def read_shortlist(path: Path, source_vocabulary: int, target_vocabulary: int) -> Shortlist:
    """Reads a shortlist.

    Args:
        path: The file.
        source_vocabulary, target_vocabulary: Numbers of tokens of the model.

    Raises:
        ShortlistError: The file is none of this model.
        OSError: The file cannot be read.
    """
    content = path.read_bytes()
    head = len(MAGIC) + 4 * _NUMBER.itemsize
    if len(content) < head or not content.startswith(MAGIC):
        raise ShortlistError("is not a shortlist")
    sources, targets, common, listed = np.frombuffer(content, _NUMBER, 4, len(MAGIC)).tolist()
    if (sources, targets) != (source_vocabulary, target_vocabulary):
        raise ShortlistError(
            f"is for {sources} source and {targets} target tokens, "
            f"but the manifest says {source_vocabulary} and {target_vocabulary}"
        )
    kind = _list_type(targets)
    expected = head + _NUMBER.itemsize * (common + sources + 1) + kind.itemsize * listed
    if len(content) != expected:
        raise ShortlistError(f"has {len(content)} bytes, but its lists need {expected}: truncated or changed")
    numbers = np.frombuffer(content, _NUMBER, common + sources + 1, head).astype(np.int64)
    lists = np.frombuffer(content, kind, listed, expected - kind.itemsize * listed)
    starts = numbers[common:]
    if starts[0] or starts[-1] != listed or (np.diff(starts) < 0).any():
        raise ShortlistError("has lists that do not follow each other")
    if max(numbers[:common].max(initial=0), lists.max(initial=0)) >= targets:
        raise ShortlistError(f"lists an id that is not one of the {targets} target tokens")
    return Shortlist(numbers[:common], starts, lists, targets)


def _list_type(target_vocabulary: int) -> np.dtype[np.unsignedinteger]:
    return _NARROW if target_vocabulary <= _MOST_NARROW else _NUMBER
