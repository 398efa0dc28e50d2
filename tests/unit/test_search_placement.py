"""Hypotheses find rows where little has to be copied, and no row is overwritten that another continues."""

import random
from collections.abc import Sequence

import pytest

from dragoman_server.core.search import Continuation
from dragoman_server.decoding.hypothesis import Hypothesis, assign_rows, shared_positions


def root() -> Hypothesis:
    return Hypothesis(None, -1, 0.0, 0.0)


def child(parent: Hypothesis, token: int) -> Hypothesis:
    return Hypothesis(parent, token, 0.0, 0.0)


def in_rows(*hypotheses: Hypothesis) -> list[Hypothesis]:
    for row, hypothesis in enumerate(hypotheses):
        hypothesis.row = row
    return [*hypotheses]


def tokens(hypothesis: Hypothesis) -> list[int]:
    return [one.token for one in hypothesis.path()]


def moves(children: Sequence[Hypothesis], rows: Sequence[Hypothesis], length: int) -> list[Continuation]:
    """Row by row: the parent's row, the token, and the positions that need not be copied."""
    running, continuations = assign_rows(children, rows, length)
    assert [one.row for one in running] == list(range(len(children)))
    assert [one.token for one in running] == [continuation.token for continuation in continuations]
    return continuations


def test_each_stays_where_it_is() -> None:
    start = root()
    a, b, c = in_rows(child(start, 5), child(start, 6), child(start, 7))
    children = [child(b, 1), child(c, 2), child(a, 3)]
    assert moves(children, [a, b, c], 1) == [(0, 3, 0), (1, 1, 0), (2, 2, 0)]


def test_the_first_stays_and_others_take_the_rows_that_nobody_continues() -> None:
    start = root()
    first = child(start, 4)
    a, b, c = in_rows(child(first, 5), child(child(start, 3), 6), child(first, 7))
    children = [child(c, 1), child(c, 2), child(c, 3)]
    # Row 0 differs from row 2 in its last token, row 1 from the first on.
    assert moves(children, [a, b, c], 2) == [(2, 2, 2), (2, 3, 1), (2, 1, 0)]


def test_new_rows_have_nothing_yet() -> None:
    (start,) = in_rows(root())
    children = [child(start, token) for token in (5, 6, 7)]
    assert moves(children, [start], 0) == [(0, 5, 0), (0, 6, 0), (0, 7, 0)]


def test_the_last_rows_are_given_back() -> None:
    start = root()
    a, b, c = in_rows(child(start, 5), child(start, 6), child(start, 7))
    assert moves([child(c, 1)], [a, b, c], 1) == [(2, 1, 1)]
    assert moves([child(c, 1), child(b, 2)], [a, b, c], 1) == [(2, 1, 1), (1, 2, 0)]
    assert moves([child(c, 1), child(c, 2)], [a, b, c], 1) == [(2, 1, 1), (2, 2, 1)]


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [([], [], 1), ([3], [4], 1), ([3, 4], [3, 5], 2), ([3, 4, 5], [2, 4, 5], 1), ([3, 4, 5], [3, 4, 5], 4)],
)
def test_shared_positions_are_equal_inputs(one: list[int], other: list[int], shared: int) -> None:
    """The begin token's and those of the tokens up to the first that differs, be they the same objects or not."""
    start = root()

    def grow(ids: list[int]) -> Hypothesis:
        hypothesis = start
        for token in ids:
            hypothesis = child(hypothesis, token)
        return hypothesis

    assert shared_positions(grow(one), grow(other), len(one)) == shared
    same = grow(one)
    assert shared_positions(same, same, len(one)) == len(one) + 1


@pytest.mark.parametrize("seed", range(20))
def test_every_row_ends_with_what_it_shall_hold(seed: int) -> None:
    draw = random.Random(seed)
    running = in_rows(root())
    cache: list[list[int]] = [[-1]]  # decoder inputs, by row
    for length in range(12):
        children = [child(draw.choice(running), draw.randrange(3)) for _ in range(draw.randint(1, 6))]
        before = [held.copy() for held in cache]
        parents = {one.parent.row for one in children if one.parent is not None}
        placed, continuations = assign_rows(children, running, length)
        assert sorted(map(id, placed)) == sorted(map(id, children))
        cache = (cache + [[] for _ in children])[: len(children)]
        for row, (parent, token, shared) in enumerate(continuations):
            if parent != row:
                assert row not in parents, "it would be overwritten before it is copied"
                equal = zip(before[row] if row < len(before) else [], before[parent], strict=False)
                assert shared == next(
                    (n for n, (a, b) in enumerate(equal) if a != b), length + 1 if row < len(before) else 0
                )
                cache[row] = cache[row][:shared] + before[parent][shared:]
            cache[row] = [*cache[row], token]
            assert cache[row] == [-1, *tokens(placed[row])]
        stay = sum(parent == row for row, (parent, *_) in enumerate(continuations))
        assert stay == sum(row < len(children) for row in parents), "whoever can stay does"
        running = placed
