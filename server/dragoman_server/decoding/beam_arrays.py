"""The beam searches of one beam size, in arrays: a step of many takes little longer than a step of one.

What every step has to do for every search is done for all of them at once: to rank the candidates, and to sort out
which end and which run on. What happens to few of them in a step, such as an end or a second hypothesis of the same
parent, is done one by one. The answers are those of beam.py, which explains the rules.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman_server.core.requests import FinishReason, HypothesisResult
from dragoman_server.core.search import StepRequest, StepResult
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.beam_steps import BeamHistory, BeamStep, Ending, RunningBeam

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]


class BeamMoves(NamedTuple):
    """What an engine does after a step.

    Attributes:
        over: A row of each search that is over, and the search.
        moves: Whole rows to copy: from row, to row.
        copies: Target positions to copy: from row, to row, leading positions that they have in common.
        rows, tokens: Rows, and the tokens with which they go on.
        requests: Rows with another step request from now on, and that request.
    """

    over: list[tuple[int, BeamSearch]]
    moves: list[tuple[int, int]]
    copies: list[tuple[int, int, int]]
    rows: Integers
    tokens: Integers
    requests: list[tuple[int, StepRequest]]


class Candidates(NamedTuple):
    """The best continuations of each search, best first: [searches, at most 2 * width].

    Attributes:
        totals: Sums of log-probabilities; -inf where there is none.
        tokens, log_probabilities: Their last tokens.
        parents: Ranks of the hypotheses that they continue.
    """

    totals: Floats
    tokens: Integers
    log_probabilities: NDArray[np.float32]
    parents: Integers


class BeamArrays:
    """Running beam searches, each of which has one row until its first step and `width` rows from then on.

    Ranks number the running hypotheses of a search by falling probability. A rank that is not in use has a row all the
    same, whose results do not count.

    Args:
        width: Beam size.
        end: Id of the end token.
    """

    def __init__(self, width: int, end: int) -> None:
        self.width, self._end = width, end
        self._beams: list[RunningBeam] = []  # by place
        self._joining: list[RunningBeam] = []  # from the next step on
        self._history = BeamHistory()
        self._soonest = 0  # before this step none is at its maximum length, or gets another step request
        self._rows: Integers = np.zeros((0, width), np.int64)  # by place and rank
        self._totals: Floats = np.zeros((0, width))  # sums of log-probabilities, -inf for a rank that is not in use
        self._ranks = np.arange(width)

    def __len__(self) -> int:
        return len(self._beams) + len(self._joining)

    def add(self, row: int, search: BeamSearch) -> None:
        """Adds a search that has one row."""
        self._joining.append(RunningBeam(search, row))

    def remove(self, search: BeamSearch) -> None:
        """Removes a search that is not over."""
        self._joining = [beam for beam in self._joining if beam.search is not search]
        self._keep([beam.place for beam in self._beams if beam.search is not search])

    def move(self, places: Integers) -> None:
        """Follows moves of the cache: `places` is the new row of each row."""
        self._rows = places.take(self._rows)
        for beam in self._joining:
            beam.row = places.item(beam.row)

    def stop(self, search: BeamSearch, reason: FinishReason) -> None:
        """Gives a search the answer that it has now: what has finished, then what runs. It is not removed."""
        for beam in self._beams:
            if beam.search is search:
                search.set_answer(self._answer(beam, self._history.next - 1, reason))
        for beam in self._joining:
            if beam.search is search:
                search.stop(reason)

    def advance(self, result: StepResult, grow: Callable[[int], int]) -> BeamMoves:
        """Chooses the next tokens of all searches. Those that are over get their answers, and are removed.

        Args:
            result: Result of the step.
            grow: Gives the search that owns a row another row, and returns that.
        """
        step = self._history.next
        if self._joining:
            self._join(step)
        due = self._due(step) if step >= self._soonest else []
        found = self._best(result)
        chosen, valid = self._sort_out(found, due, step)
        flat = chosen + _starts(*found.totals.shape)
        totals, parents, tokens = found.totals.take(flat), found.parents.take(flat), found.tokens.take(flat)
        if valid is not None:
            totals[~valid] = -math.inf
        self._history.append(BeamStep(found.tokens, found.log_probabilities, found.parents, chosen))
        over = [
            beam
            for beam, total in zip(self._beams, totals[:, 0].tolist(), strict=True)
            if total == -math.inf or (beam.contested and beam.is_over(total, step))
        ]
        over += self._force_ends([beam for beam in due if beam.last == step and beam not in over], totals, chosen, step)
        ended: list[tuple[int, BeamSearch]] = []
        if over:
            for beam in over:
                ended.append((self._rows.item(beam.place, 0), beam.search))
                beam.search.set_answer(self._answer(beam, step - 1, None if beam.finished else FinishReason.DEAD_END))
            gone = set(over)
            kept = [beam.place for beam in self._beams if beam not in gone]
            totals, parents, tokens = totals[kept], parents[kept], tokens[kept]
            valid = None if valid is None else valid[kept]
            self._keep(kept)
        moves, copies = self._branch(parents, valid, grow, due, step)
        self._totals = totals
        requests = self._new_requests(due, step)
        return BeamMoves(ended, moves, copies, self._rows.reshape(-1), tokens.reshape(-1), requests)

    def _join(self, step: int) -> None:
        """Gives new searches their places, before their first step."""
        new, self._joining = self._joining, []
        for place, beam in enumerate(new, len(self._beams)):
            plan, rules = beam.search.plan, beam.search.rules
            beam.start, beam.last = step, step + plan.max_new_tokens - 1
            beam.changes = step + rules.min_length - len(rules.prefix) - 1
            beam.places.append((step, place))
        rows, totals = np.empty((len(new), self.width), np.int64), np.full((len(new), self.width), -math.inf)
        rows[:], totals[:, 0] = np.array([beam.row for beam in new])[:, None], 0.0
        self._rows, self._totals = np.concatenate((self._rows, rows)), np.concatenate((self._totals, totals))
        self._beams += new
        self._soonest = step

    def _due(self, step: int) -> list[RunningBeam]:
        """Returns the searches that are at their maximum length, or new, or get another step request after the step."""
        moments = [moment for beam in self._beams for moment in (beam.last, beam.changes) if moment > step]
        self._soonest = min(moments, default=step + 1)
        return [beam for beam in self._beams if step in (beam.start, beam.last, beam.changes)]

    def _best(self, result: StepResult) -> Candidates:
        """Returns the 2 * width best continuations of each search."""
        count, width = self._rows.shape
        ids, log_probabilities = result.top_rows(self._rows.reshape(-1), 2 * width)
        columns = ids.shape[1]
        sums = log_probabilities.reshape(count, width, columns) + self._totals[:, :, None]
        sums = sums.reshape(count, width * columns)
        # Stable: of equal sums the better hypothesis comes first, then the better token.
        order = np.argsort(-sums, axis=1, kind="stable")[:, : 2 * width]
        flat = order + _starts(count, width * columns)
        return Candidates(sums.take(flat), ids.take(flat), log_probabilities.take(flat), order // columns)

    def _sort_out(self, found: Candidates, due: list[RunningBeam], step: int) -> tuple[Integers, Booleans | None]:
        """Finishes hypotheses, and chooses those that run on.

        Returns:
            Which candidates run on, by search and rank; and which ranks are in use, None if all are.
        """
        width, ends = self.width, found.tokens == self._end
        for beam in due:
            if beam.last == step and not beam.search.plan.forces_end:
                ends[beam.place] = True
        if found.totals[:, -1].min() > -math.inf and not ends.any():
            return np.broadcast_to(self._ranks, (len(ends), width)), None
        possible = found.totals > -math.inf
        places, ranks = (possible & ends)[:, :width].nonzero()
        if len(places):
            finishing = zip(
                places.tolist(),
                ranks.tolist(),
                found.totals[places, ranks].tolist(),
                found.tokens[places, ranks].tolist(),
                strict=True,
            )
            for place, rank, total, token in finishing:
                reason = FinishReason.EOS if token == self._end else FinishReason.LENGTH
                self._beams[place].finish(total, step, rank, reason)
        going = possible & ~ends
        numbers = going.cumsum(1)
        if numbers[:, -1].min() >= width:
            return (going & (numbers <= width)).nonzero()[1].reshape(-1, width), None
        return np.argsort(~going, axis=1, kind="stable")[:, :width], self._ranks < numbers[:, -1:]

    def _force_ends(self, last: list[RunningBeam], totals: Floats, chosen: Integers, step: int) -> list[RunningBeam]:
        """Finishes what still runs at the maximum length, where the model then gives it the end token."""
        for beam in last:
            for rank, total in enumerate(totals[beam.place].tolist()):
                if total > -math.inf:
                    beam.finish(total, step, chosen.item(beam.place, rank), FinishReason.LENGTH, 1)
        return last

    def _branch(
        self,
        parents: Integers,
        valid: Booleans | None,
        grow: Callable[[int], int],
        due: list[RunningBeam],
        step: int,
    ) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
        """Gives each hypothesis a row: its parent's to the first of a parent, and free ones to the others.

        Returns:
            the whole rows and the target positions to copy, see BeamMoves.
        """
        moves: list[tuple[int, int]] = []
        copies: list[tuple[int, int, int]] = []
        rows = self._rows.take(parents + _starts(*parents.shape))
        for beam in due:
            if beam.start == step and not beam.over:
                row = self._rows.item(beam.place, 0)
                new = [grow(row) for _ in range(self.width - 1)]
                moves += [(row, target) for target in new]
                rows[beam.place] = [row, *new]
        pairs = (parents[:, :, None] == parents[:, None, :]).sum((1, 2))
        for place in (pairs > self.width).nonzero()[0].tolist():
            beam = self._beams[place]
            if beam.start != step:
                used = [True] * self.width if valid is None else valid[place].tolist()
                rows[place] = self._assign(beam, parents[place].tolist(), used, copies, step - 1)
        self._rows = rows
        return moves, copies

    def _assign(
        self, beam: RunningBeam, parents: list[int], used: list[bool], copies: list[tuple[int, int, int]], step: int
    ) -> list[int]:
        """Returns the row of each rank, where hypotheses have the same parent.

        Args:
            copies: Receives the copies to make.
            step: Number of the last step of the parents.
        """
        rows = self._rows[beam.place].tolist()
        before = self._totals[beam.place].tolist()
        assigned, moved = [-1] * self.width, []
        free = dict.fromkeys(range(self.width))
        for rank, parent in enumerate(parents):
            if used[rank] and parent in free:
                del free[parent]
                assigned[rank] = rows[parent]
            else:
                moved.append(rank)
        for rank, target in zip(moved, free, strict=True):
            assigned[rank] = rows[target]
            if used[rank]:
                parent = parents[rank]
                known = before[target] > -math.inf
                shared = self._history.shared_positions(beam, step, parent, target) if known else 0
                copies.append((rows[parent], rows[target], shared))
        return assigned

    def _new_requests(self, due: list[RunningBeam], step: int) -> list[tuple[int, StepRequest]]:
        """Returns the rows whose step request is another one than in the step before."""
        found: list[tuple[int, StepRequest]] = []
        for beam in due:
            if step in (beam.start, beam.changes) and not beam.over:
                request = beam.search.request_at(step + 1 - beam.start)
                found += [(row, request) for row in self._rows[beam.place].tolist()]
        return found

    def _answer(self, beam: RunningBeam, step: int, reason: FinishReason | None) -> list[HypothesisResult]:
        """Returns the answer of a search.

        Args:
            step: Number of the last step of the hypotheses that run.
            reason: Why these end; None if they do not count.
        """
        plan = beam.search.plan
        answer, size = beam.finished[: plan.sizes.answer], plan.sizes.answer
        if reason is not None and len(answer) < size:
            length = step + 1 - beam.start
            totals = [total for total in self._totals[beam.place].tolist() if total > -math.inf]
            scores = [plan.score.score(total, length + plan.counted, None) for total in totals]
            for rank in sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[: size - len(answer)]:
                candidate = self._history.candidate(beam, step, rank) if length else -1
                answer.append(Ending(scores[rank], step, candidate, reason))
        return [self._history.hypothesis(beam, ending) for ending in answer]

    def _keep(self, places: list[int]) -> None:
        """Removes all other searches."""
        if len(places) == len(self._beams):
            return
        before, self._beams = self._beams, [self._beams[place] for place in places]
        self._rows, self._totals = self._rows[places], self._totals[places]
        for beam in set(before).difference(self._beams):
            beam.over = True
        for place, beam in enumerate(self._beams):
            if beam.place != place:
                beam.places.append((self._history.next, place))
        self._history.forget(min((beam.start for beam in self._beams), default=self._history.next))


def _starts(count: int, columns: int) -> Integers:
    """Returns the flat index of each row's first entry, [count, 1]."""
    return np.arange(0, count * columns, columns)[:, None]
