"""Several searches of one request, which share rows as long as they go the same way."""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, Progress
from dragoman_server.core.search import Continuation, RowScores, Search, StepRequest
from dragoman_server.decoding.hypothesis import Hypothesis
from dragoman_server.decoding.placement import place


class Branch(NamedTuple):
    """Searches that have gone the same way so far, and the rows that they share, in their order."""

    searches: list[Search]
    rows: list[Hypothesis]


class Fork:
    """Samples of one request, or alternatives: each of the searches gives one hypothesis of the answer.

    All begin in one row. Those that answer a step with the same continuations stay together; where they differ, they
    part, each with a copy of the rows. So samples that happen to begin alike cost no more than one until they differ.

    Args:
        searches: equal but for what they choose: step requests for a row differ in the number of candidates alone.
        alternatives: whether to leave out of the answer, but for the first, those that have not begun with a token of
            their own, because there was none or the search was stopped before.

    Attributes:
        searches: as given.
        rows: see Search.
    """

    def __init__(self, searches: Sequence[Search], alternatives: bool = False) -> None:
        root = Hypothesis(None, 0, 0.0, 0.0)
        self.searches = list(searches)
        self._alternatives = alternatives
        self._branches = [Branch(list(searches), [root])]
        self._rows = [root]
        self._length = 0  # tokens of each hypothesis
        self._beams: dict[Search, BeamProgress] = {}
        self.rows = sum(search.rows for search in searches)

    def step_requests(self) -> Sequence[StepRequest]:
        step_requests = [StepRequest(0)] * len(self._rows)
        for branch in self._branches:
            for row, *wanted in zip(branch.rows, *(search.step_requests() for search in branch.searches), strict=True):
                step_requests[row.row] = max(wanted, key=attrgetter("candidates"))
        return step_requests

    def needs_more(self, scores: RowScores, rows: Sequence[int]) -> bool:
        needs_more = False
        for branch in self._branches:
            places = [rows[row.row] for row in branch.rows]
            for search in branch.searches:  # each of them, for each notes what it lacks
                needs_more |= search.needs_more(scores, places)
        return needs_more

    def advance(self, scores: RowScores, rows: Sequence[int]) -> Sequence[Continuation] | None:
        children: list[Hypothesis] = []
        branches: list[Branch] = []
        for branch in self._branches:
            places = [rows[row.row] for row in branch.rows]
            parts: dict[tuple[tuple[int, int], ...], list[Search]] = {}
            for search in branch.searches:
                continuations = search.advance(scores, places)
                if continuations is not None:
                    way = tuple((parent, token) for parent, token, _ in continuations)
                    parts.setdefault(way, []).append(search)
            for way, searches in parts.items():
                branch_rows = [Hypothesis(branch.rows[parent], token, 0.0, 0.0) for parent, token in way]
                branches.append(Branch(searches, branch_rows))
                children += branch_rows
        self._branches = branches
        self.rows = sum(search.rows for branch in branches for search in branch.searches)
        if not branches:
            return None
        self._rows, moves = place(children, self._rows, self._length)
        self._length += 1
        return moves

    def stop(self, reason: FinishReason) -> None:
        for branch in self._branches:
            for search in branch.searches:
                search.stop(reason)
        self._branches = []

    def progress(self) -> Sequence[Progress | BeamProgress]:
        events: list[Progress | BeamProgress] = []
        counted = False
        for search in self.searches:
            for event in search.progress():
                if isinstance(event, BeamProgress):
                    self._beams[search] = event
                    counted = True
                else:
                    events.append(event)
        if counted:
            beams = self._beams.values()
            events.append(
                BeamProgress(
                    max(beam.tokens for beam in beams),
                    sum(beam.running for beam in beams),
                    sum(beam.finished for beam in beams),
                )
            )
        return events

    def hypotheses(self) -> list[HypothesisResult]:
        answers = [search.hypotheses()[0] for search in self.searches]
        if self._alternatives:
            return answers[:1] + [one for one in answers[1:] if one.log_probabilities or len(one.ids) > one.prefix]
        return answers
