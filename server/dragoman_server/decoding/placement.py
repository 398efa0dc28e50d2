"""Which row of the cache each hypothesis of a beam search goes to, so that little must be copied."""

from collections.abc import Sequence

from dragoman_server.core.search import Continuation
from dragoman_server.decoding.hypothesis import Hypothesis


def place(
    children: Sequence[Hypothesis], rows: Sequence[Hypothesis], length: int
) -> tuple[list[Hypothesis], list[Continuation]]:
    """Finds rows for the hypotheses that run on, and sets their `row`.

    The first child of a hypothesis stays in its row. The others go to rows whose hypotheses nobody continues, then to
    new ones. Where there are fewer children than rows, the last rows are given back, and who would stay there moves.

    Args:
        children: hypotheses that run on, each a token longer than its parent.
        rows: the parents, and others of their length, by row.
        length: tokens of each hypothesis in `rows`.

    Returns:
        the children by row, and how each row gets there.
    """
    placed: list[Hypothesis | None] = [None] * len(children)
    movers: list[Hypothesis] = []
    for child in children:
        assert child.parent is not None
        row = child.parent.row
        if row < len(placed) and placed[row] is None:
            child.row = row
            placed[row] = child
        else:
            movers.append(child)
    if movers:
        free = [row for row, child in enumerate(placed) if child is None]
        for row, child in zip(free, movers, strict=True):
            child.row = row
            placed[row] = child

    running: list[Hypothesis] = []
    continuations: list[Continuation] = []
    for row, placed_child in enumerate(placed):
        assert placed_child is not None
        assert placed_child.parent is not None
        parent = placed_child.parent
        moved = parent.row != row and row < len(rows)
        shared = shared_positions(rows[row], parent, length) if moved else 0
        running.append(placed_child)
        continuations.append(Continuation(parent.row, placed_child.token, shared))
    return running, continuations


def shared_positions(one: Hypothesis, other: Hypothesis, length: int) -> int:
    """Positions of the cache that two hypotheses have in common, from the start: that of the begin token, and one for
    each token before the first that differs.

    Args:
        length: tokens of each.
    """
    shared = length + 1
    while one is not other:
        assert one.parent is not None
        assert other.parent is not None
        if one.token != other.token:
            shared = length
        one, other = one.parent, other.parent
        length -= 1
    return shared
