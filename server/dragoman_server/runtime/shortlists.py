"""The shortlists of a step's rows: which tokens to compute, and which of them each row may choose."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.token_list import to_array
from dragoman_server.runtime.buffers import Array

COLUMNS = 128  # numbers that ONNX Runtime's CPU kernels sum at a time, in a product and in a softmax
_NONE: NDArray[np.int64] = np.zeros(0, np.int64)
SPARSE = 2  # places for each token in use from which tokens move together


class ListedTokens(NamedTuple):
    """A shortlist in use. Another object takes its place when its tokens move.

    Attributes:
        vocabulary: The shortlist, kept alive so that no other object gets its id().
        ids: Its token ids [n].
        places: Where these are in `Shortlists.tokens` [n].
    """

    vocabulary: Sequence[int]
    ids: NDArray[np.int64]
    places: NDArray[np.int64]


class Shortlists:
    """The shortlists in use, and the tokens of all of them.

    A token has a place while any list has it, so that a request that joins or ends changes little.

    A row's sums are bit-equal whatever the other rows may choose. To that end every row has its own copy of its list,
    padded to whole registers, and the product with the hidden states has enough columns that its kernel never splits
    the sums in another way.

    Args:
        vocabulary: Number of target tokens.
        threads: Threads that compute a product together.

    Attributes:
        width: Columns of a row's own list, more than the longest shortlist has tokens.
    """

    def __init__(self, vocabulary: int, threads: int) -> None:
        self.width = 0
        self._multiple = COLUMNS * threads
        self._lists: dict[int, ListedTokens] = {}  # by id() of the shortlist
        self._uses: NDArray[np.int32] = np.zeros(vocabulary, np.int32)  # lists that have a token
        self._places: NDArray[np.int64] = np.zeros(vocabulary, np.int64)  # of a token in use
        self._tokens: NDArray[np.int64] = np.zeros(_round_up(vocabulary, self._multiple), np.int64)
        self._end = 0  # places that were given
        self._free: NDArray[np.int64] = np.zeros(vocabulary, np.int64)  # places given back, the first `_freed`
        self._freed = 0
        self._placed: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []  # since `forget_placed`

    @property
    def placed(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens [n] that got a place since `forget_placed` was called, and their places [n, 1]."""
        tokens, places = zip((_NONE, _NONE), *self._placed, strict=False)
        return np.concatenate(tokens), np.concatenate(places)[:, None]

    def forget_placed(self) -> None:
        """Notes that a step has written the weights of all tokens that got a place."""
        self._placed.clear()

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Token ids of all shortlists [listed], and of places that are not in use. Later calls of `use` change it."""
        return self._tokens[: _round_up(self._end, self._multiple)]

    @property
    def most(self) -> int:
        """The most tokens that `tokens` can have."""
        return len(self._tokens)

    @property
    def distinct(self) -> int:
        """Number of tokens in use."""
        return self._end - self._freed

    def use(self, vocabularies: Sequence[Sequence[int]]) -> None:
        """Sets the shortlists of the next step's rows.

        Args:
            vocabularies: Sorted token ids of each list; the same object as long as the list is the same.
        """
        wanted = {id(vocabulary): vocabulary for vocabulary in vocabularies}
        if wanted.keys() == self._lists.keys():
            return
        if self._placed:  # a step has failed: no place gets another token before the first one is written
            self._move_together()
        for key in self._lists.keys() - wanted.keys():
            self._remove(self._lists.pop(key))
        if self.distinct * SPARSE < self._end:
            self._move_together()
        for key, vocabulary in wanted.items():
            if key not in self._lists:
                self._lists[key] = self._add(vocabulary)
        longest = max((len(listed.ids) for listed in self._lists.values()), default=-1)
        self.width = _round_up(longest + 1, COLUMNS)

    def __getitem__(self, vocabulary: Sequence[int]) -> ListedTokens:
        """Returns a shortlist in use."""
        return self._lists[id(vocabulary)]

    def _add(self, vocabulary: Sequence[int]) -> ListedTokens:
        ids = to_array(vocabulary)
        uses = self._uses[ids]
        self._uses[ids] = uses + 1
        new = ids[uses == 0]
        reused = min(len(new), self._freed)
        places = np.arange(self._end - reused, self._end - reused + len(new))
        self._freed -= reused
        places[:reused] = self._free[self._freed : self._freed + reused]
        self._end += len(new) - reused
        self._places[new] = places
        self._tokens[places] = new
        if len(new):
            self._placed.append((new, places))
        return ListedTokens(vocabulary, ids, self._places[ids])

    def _remove(self, listed: ListedTokens) -> None:
        uses = self._uses[listed.ids] - 1
        self._uses[listed.ids] = uses
        places = listed.places[uses == 0]
        self._free[self._freed : self._freed + len(places)] = places
        self._freed += len(places)

    def _move_together(self) -> None:
        self._placed.clear()
        self._uses[:] = 0
        self._end = self._freed = 0
        self._lists = {key: self._add(listed.vocabulary) for key, listed in self._lists.items()}


class ListedRows:
    """What each head row of a step may choose, in arrays that the graph reads.

    Args:
        shortlists: The shortlists in use.
        capacity: Most head rows expected; more make the arrays grow.
        weights: Where the graph keeps the weights of `Shortlists.tokens` [most, d_model]; None if it keeps none.

    Attributes:
        columns: Places of each row's tokens in `Shortlists.tokens` [capacity, width].
        mask: Numbers added to the logits [capacity, width]: 0, or -inf beyond the row's list.
        ids: Token ids [capacity, width].
        generation: Number of times that the arrays were replaced.
    """

    def __init__(self, shortlists: Shortlists, capacity: int, weights: Array | None = None) -> None:
        self.shortlists = shortlists
        self.weights = weights
        self.generation = 0
        self._allocate(capacity, 0)

    def use(self, vocabularies: Sequence[Sequence[int]], rows: int) -> None:
        """Sets the shortlists of the next step's rows.

        Args:
            vocabularies: The shortlist of each head row.
            rows: Number of head rows; those beyond `vocabularies` may choose nothing.
        """
        lists = self.shortlists
        lists.use(vocabularies)
        if lists.width != self.mask.shape[1] or rows > len(self.mask):
            self._allocate(max(rows, len(self.mask)), lists.width)
        wanted: list[ListedTokens | None] = [lists[vocabulary] for vocabulary in vocabularies]
        wanted += [None] * (rows - len(wanted))
        held = self._held
        for row, listed in enumerate(wanted):
            if held[row] is listed:
                continue
            held[row] = listed
            count = 0
            if listed is not None:
                count = len(listed.ids)
                self.columns[row, :count], self.ids[row, :count], self.mask[row, :count] = listed.places, listed.ids, 0
            self.columns[row, count:] = self.ids[row, count:] = 0
            self.mask[row, count:] = -np.inf

    def tokens(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Converts the graph's indices into each row's list [rows, k] to token ids."""
        ids: NDArray[np.int64] = self._flat_ids[indices + self._starts[: len(indices)]]
        return ids

    def _allocate(self, capacity: int, width: int) -> None:
        self.columns: NDArray[np.int64] = np.zeros((capacity, width), np.int64)
        self.ids: NDArray[np.int64] = np.zeros((capacity, width), np.int64)
        self.mask: NDArray[np.float32] = np.full((capacity, width), -np.inf, np.float32)
        self._flat_ids = self.ids.reshape(-1)
        self._starts = np.arange(capacity)[:, None] * width
        self._held: list[ListedTokens | None] = [None] * capacity
        self.generation += 1


def _round_up(number: int, multiple: int) -> int:
    return number + -number % multiple
