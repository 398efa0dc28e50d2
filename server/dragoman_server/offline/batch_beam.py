"""Beam search for a batch of sources that start together, in arrays: hardly any Python for each of them.

The answers are those of decoding/beam.py, which explains the rules.
"""

import math
from collections.abc import Sequence

import numpy as np

from dragoman_server.core.requests import GenerationResult
from dragoman_server.core.search_options import UNCONSTRAINED, SearchOptions
from dragoman_server.offline.batch_hypotheses import BatchHypotheses, Booleans, Continuations, Floats, Integers
from dragoman_server.offline.batch_rows import close_ranks
from dragoman_server.runtime.runtime import Runtime


def is_plain_beam(options: SearchOptions) -> bool:
    """Returns whether a search is a beam search that only has a width, a length penalty and a way to end."""
    beam, rules = options.beam, options.conventions
    return (
        beam is not None
        and (beam.groups, beam.coverage_penalty) == (1, 0.0)
        and not (options.sampling or options.alternatives or options.top_tokens)
        and options.constraints == UNCONSTRAINED
        and rules.forced_first is None
        and not (rules.forces_end or rules.begin_suppressed)
    )


class BeamBatch:
    """The beam searches of a batch.

    Ranks number the running hypotheses of a search by falling probability. Each rank has a cache row of its own, also
    one that is not in use, whose results do not count.

    Args:
        runtime: Runtime with `beam_size` rows for each source.
        options: A plain beam search.
    """

    def __init__(self, runtime: Runtime, options: SearchOptions) -> None:
        assert options.beam is not None
        self._runtime, self._options = runtime, options
        self._end = runtime.manifest.tokens.end
        self._width = options.beam.beam_size
        self._choices = 2 * self._width  # continuations of a hypothesis that can matter
        self._ranks = np.arange(self._width)
        self._lower = self._ranks[:, None] > self._ranks

    def answers(self, sources: Sequence[Sequence[int]]) -> list[GenerationResult]:
        """Returns the answers to sources, best of similar lengths."""
        count, width = len(sources), self._width
        hypotheses = BatchHypotheses(count, self._options, self._end)
        self._runtime.encode(sources, 0)
        alive = np.arange(count)  # the source of each search
        found = self._first_step(count)
        rows = alive[:, None]  # of each rank
        shared = np.ones((count, width, width), np.int64)  # leading positions that the rows of two ranks share
        before = np.zeros((count, 1))  # sums of log-probabilities of the running hypotheses
        for position in range(self._options.max_new_tokens):
            if position:
                found = self._step(before, rows)
            goes_on, finishing = self._sort_out(found, position)
            hypotheses.finish(alive, position, finishing, found)
            children = found.take(np.argsort(~goes_on, axis=1, kind="stable")[:, :width])
            valid = self._ranks < goes_on.sum(1)[:, None]
            children.totals[~valid] = -math.inf
            hypotheses.run_on(alive, position, children)
            done = self._done(hypotheses, alive, position, children, before)
            if done.all():
                break
            if done.any():
                rows, keep = close_ranks(self._runtime, done, rows), ~done
                alive, children, valid = alive[keep], children.of(keep), valid[keep]
                shared, before = shared[keep], before[keep]
            if position:
                rows, shared = self._branch(position, rows, shared, before > -math.inf, children.parents, valid)
            else:
                rows = self._spread(rows)
                shared = (valid[:, :, None] & valid[:, None, :]).astype(np.int64)  # the begin token
            before = children.totals
            self._runtime.tokens[rows, 0] = children.tokens
        return [hypotheses.result(source) for source in range(count)]

    def _first_step(self, searches: int) -> Continuations:
        """Runs the first step, in which each search has one row, and returns the continuations of the empty target."""
        result = self._runtime.top(searches, self._choices)
        self._runtime.positions[:searches] += 1
        values, ids = result.log_probabilities.astype(np.float64), result.ids.copy()
        return Continuations(values, ids, values, np.zeros_like(ids))

    def _step(self, totals: Floats, rows: Integers) -> Continuations:
        """Runs a step and returns the best continuations of each search.

        Args:
            totals: Sums of log-probabilities by search and rank, -inf where no hypothesis runs, [searches, ranks].
            rows: Row of each rank, [searches, ranks].
        """
        searches, used = len(rows), rows.size
        result = self._runtime.top(used, self._choices)
        self._runtime.positions[:used] += 1
        log_probabilities = result.log_probabilities[rows].astype(np.float64)
        values = (totals[:, :, None] + log_probabilities).reshape(searches, -1)
        # Stable: of equal sums the better hypothesis comes first, then the better token.
        best = np.argsort(-values, axis=1, kind="stable")[:, : 2 * self._width]
        flat = best + np.arange(0, values.size, values.shape[1])[:, None]
        ids = result.ids[rows]
        return Continuations(values.take(flat), ids.take(flat), log_probabilities.take(flat), best // self._choices)

    def _sort_out(self, found: Continuations, position: int) -> tuple[Booleans, Booleans]:
        """Returns which continuations can go on, of which the first `width` will, and which finish."""
        possible, ends = found.totals > -math.inf, found.tokens == self._end
        if position == self._options.max_new_tokens - 1:
            ends[:] = True
        finishing = possible & ends
        finishing[:, self._width :] = False
        return possible & ~ends, finishing

    def _done(
        self, hypotheses: BatchHypotheses, alive: Integers, position: int, children: Continuations, before: Floats
    ) -> Booleans:
        """Returns which searches are over."""
        done = []
        for search, (source, best) in enumerate(zip(alive.tolist(), children.totals[:, 0].tolist(), strict=True)):
            if best == -math.inf:
                hypotheses.give_up(source, position, before[search].tolist())
                done.append(True)
            else:
                done.append(hypotheses.is_over(source, best, position))
        return np.array(done)

    def _spread(self, rows: Integers) -> Integers:
        """Gives each search its rows, after the first step, in which each had one; returns the row of each rank."""
        searches = len(rows)
        for rank in range(1, self._width):
            self._runtime.copy_rows(0, rank * searches, searches)
        return rows + self._ranks * searches

    def _branch(
        self,
        position: int,
        rows: Integers,
        shared: Integers,
        running: Booleans,
        parents: Integers,
        valid: Booleans,
    ) -> tuple[Integers, Integers]:
        """Copies hypotheses to the rows where they go on. The first that continues another one stays in its row.

        Args:
            rows, shared, running: Of the hypotheses before, by their ranks.
            parents: Rank that each hypothesis continues, [searches, ranks].
            valid: Which ranks are in use.

        Returns:
            the rows and the shared positions of the new ranks.
        """
        searches, width = rows.shape
        same_parent = parents[:, :, None] == parents[:, None, :]
        again = (same_parent & self._lower).any(2)
        stays = valid & ~again
        own = np.arange(searches)[:, None]
        # The old ranks whose rows nobody stays in come first, by rank.
        taken = np.zeros((searches, width), bool)
        which, ranks = stays.nonzero()
        taken[which, parents[which, ranks]] = True
        free = np.argsort(taken, axis=1, kind="stable")
        place = np.where(stays, parents, free[own, np.maximum((~stays).cumsum(1) - 1, 0)])  # old rank with the row
        new_rows = rows[own, place]
        shared.reshape(searches, -1)[:, :: width + 1] = np.where(running, position + 1, 0)
        which, ranks = (valid & again).nonzero()
        copied = parents[which, ranks]
        starts = shared[which, place[which, ranks], copied]
        for source, target, start in zip(
            rows[which, copied].tolist(), new_rows[which, ranks].tolist(), starts.tolist(), strict=True
        ):
            self._runtime.copy_target(source, target, start)
        both = valid[:, :, None] & valid[:, None, :]
        return new_rows, np.where(both, shared[own[:, :, None], parents[:, :, None], parents[:, None, :]], 0)
