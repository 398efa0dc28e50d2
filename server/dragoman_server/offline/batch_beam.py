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

    Ranks number the running hypotheses of a search by falling probability. Those of search number a are in the rows
    a * width to (a + 1) * width - 1; a rank that is not in use still has a row there, whose results do not count.

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

    def answers(self, sources: Sequence[Sequence[int]]) -> list[GenerationResult]:
        """Returns the answers to sources, best of similar lengths."""
        count, width = len(sources), self._width
        hypotheses = BatchHypotheses(count, self._options, self._end)
        self._runtime.encode(sources, 0)
        alive = np.arange(count)  # the source of each search
        found = self._first_step(count)
        rows = np.tile(np.arange(width), (count, 1))  # of each rank, within those of its search
        shared = np.ones((count, width, width), np.int64)  # leading positions that the rows of two ranks share
        before = np.zeros((count, 1))  # sums of log-probabilities of the running hypotheses
        for position in range(self._options.max_new_tokens):
            if position:
                found = self._step(before, rows)
            goes_on, finishing = self._sort_out(found, position)
            hypotheses.finish(alive, position, finishing, found)
            children = found.take(np.argsort(~goes_on, axis=1, kind="stable")[:, :width])
            valid = np.arange(width) < goes_on.sum(1)[:, None]
            children.totals[~valid] = -math.inf
            hypotheses.run_on(alive, position, children)
            done = self._done(hypotheses, alive, position, children, before)
            if done.all():
                break
            if done.any():
                keep = close_ranks(self._runtime, done, width if position else 1)
                alive, children, valid = alive[keep], children.of(keep), valid[keep]
                rows, shared, before = rows[keep], shared[keep], before[keep]
            if position:
                rows, shared = self._branch(position, rows, shared, before > -math.inf, children.parents, valid)
            else:
                self._spread(len(alive))
                shared = (valid[:, :, None] & valid[:, None, :]).astype(np.int64)  # the begin token
            before = children.totals
            tokens = np.empty_like(children.tokens)
            tokens[np.arange(len(alive))[:, None], rows] = children.tokens
            self._runtime.tokens[: len(alive) * width, 0] = tokens.reshape(-1)
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
        searches, width = rows.shape
        used, flat = searches * width, (searches, width * self._choices)
        result = self._runtime.top(used, self._choices)
        self._runtime.positions[:used] += 1
        of_ranks = (np.arange(0, used, width)[:, None] + rows).reshape(-1)
        ids = result.ids[of_ranks].reshape(flat)
        log_probabilities = result.log_probabilities[of_ranks].astype(np.float64).reshape(flat)
        values = (totals[:, :, None] + log_probabilities.reshape(searches, width, -1)).reshape(flat)
        # Stable: of equal sums the better hypothesis comes first, then the better token.
        best = np.argsort(-values, axis=1, kind="stable")[:, : 2 * width]
        parents = np.broadcast_to(np.arange(flat[1]) // self._choices, flat)
        return Continuations(values, ids, log_probabilities, parents).take(best)

    def _sort_out(self, found: Continuations, position: int) -> tuple[Booleans, Booleans]:
        """Returns which continuations go on, at most `width`, and which finish, of the first `width`."""
        possible, ends = found.totals > -math.inf, found.tokens == self._end
        if position == self._options.max_new_tokens - 1:
            ends[:] = True
        goes_on, finishing = possible & ~ends, possible & ends
        goes_on &= goes_on.cumsum(1) <= self._width
        finishing[:, self._width :] = False
        return goes_on, finishing

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

    def _spread(self, searches: int) -> None:
        """Gives each search its rows, after the first step, in which each had one."""
        for search in range(searches - 1, -1, -1):
            for row in range((search + 1) * self._width - 1, search * self._width - 1, -1):
                if row != search:
                    self._runtime.move_row(search, row)

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
        again = np.tril(parents[:, :, None] == parents[:, None, :], -1).any(2)
        stays = valid & ~again
        own = np.arange(searches)[:, None]
        old_rows = rows[own, parents]
        taken = np.zeros((searches, width), bool)
        which, ranks = stays.nonzero()
        taken[which, old_rows[which, ranks]] = True
        free = np.argsort(taken, axis=1, kind="stable")
        new_rows = np.where(stays, old_rows, free[own, np.maximum((~stays).cumsum(1) - 1, 0)])
        rank_of = np.argsort(rows, axis=1)
        np.einsum("aii->ai", shared)[:] = np.where(running, position + 1, 0)
        which, ranks = (valid & again).nonzero()
        sources = which * width + old_rows[which, ranks]
        targets = which * width + new_rows[which, ranks]
        starts = shared[which, rank_of[which, new_rows[which, ranks]], parents[which, ranks]]
        for source, target, start in zip(sources.tolist(), targets.tolist(), starts.tolist(), strict=True):
            self._runtime.copy_target(source, target, start)
        both = valid[:, :, None] & valid[:, None, :]
        return new_rows, np.where(both, shared[own[:, :, None], parents[:, :, None], parents[:, None, :]], 0)
