"""Several searches of one request that share rows as long as they choose the same tokens."""

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, Progress
from dragoman_server.core.search import Continuation, Search, StepRequest, StepResult
from dragoman_server.decoding.hypothesis import Hypothesis, assign_rows


class PrefixGroup(NamedTuple):
    """Searches that have chosen the same tokens so far, and the rows that they share, in their order."""

    searches: list[Search]
    rows: list[Hypothesis]


class SharedPrefixSearch:
    """The samples or alternatives of one request: each search contributes one hypothesis to the answer.

    All start in one row. Searches that answer a step with the same continuations stay together; where they differ,
    they separate, each with a copy of the rows. So samples with a common prefix cost no more than one sample until
    they differ.

    Args:
        searches: Searches that differ only in what they choose: their step requests for a shared row differ only in
            the number of candidates.
        alternatives: Whether to drop from the answer all but the first search that did not start with a token of its
            own, because there was none or because the search was stopped before.

    Attributes:
        searches: The searches.
        rows: See Search.
    """

    def __init__(self, searches: Sequence[Search], alternatives: bool = False) -> None:
        root = Hypothesis.root()
        self.searches = list(searches)
        self._alternatives = alternatives
        self._groups = [PrefixGroup(list(searches), [root])]
        self._rows = [root]
        self._length = 0  # tokens of each hypothesis
        self._beam_progress: dict[Search, BeamProgress] = {}
        self.rows = sum(search.rows for search in searches)

    def step_requests(self) -> Sequence[StepRequest]:
        step_requests = [StepRequest(0)] * len(self._rows)
        for group in self._groups:
            of_searches = [search.step_requests() for search in group.searches]
            for hypothesis, *requests in zip(group.rows, *of_searches, strict=True):
                step_requests[hypothesis.row] = max(requests, key=attrgetter("candidates"))
        return step_requests

    def needs_more(self, result: StepResult, rows: Sequence[int]) -> bool:
        needs_more = False
        for group in self._groups:
            group_rows = [rows[hypothesis.row] for hypothesis in group.rows]
            for search in group.searches:  # no short cut: each search notes how many candidates it needs
                needs_more |= search.needs_more(result, group_rows)
        return needs_more

    def advance(self, result: StepResult, rows: Sequence[int]) -> Sequence[Continuation] | None:
        children: list[Hypothesis] = []
        groups: list[PrefixGroup] = []
        for group in self._groups:
            group_rows = [rows[hypothesis.row] for hypothesis in group.rows]
            by_choice: dict[tuple[tuple[int, int], ...], list[Search]] = {}
            for search in group.searches:
                continuations = search.advance(result, group_rows)
                if continuations is not None:
                    choice = tuple((parent, token) for parent, token, _ in continuations)
                    by_choice.setdefault(choice, []).append(search)
            for choice, searches in by_choice.items():
                hypotheses = [Hypothesis(group.rows[parent], token) for parent, token in choice]
                groups.append(PrefixGroup(searches, hypotheses))
                children += hypotheses
        self._groups = groups
        self.rows = sum(search.rows for group in groups for search in group.searches)
        if not groups:
            return None
        self._rows, moves = assign_rows(children, self._rows, self._length)
        self._length += 1
        return moves

    def stop(self, reason: FinishReason) -> None:
        for group in self._groups:
            for search in group.searches:
                search.stop(reason)
        self._groups = []

    def progress(self) -> Sequence[Progress | BeamProgress]:
        """Returns token events by hypothesis, and the counts of several beam searches as one sum."""
        events: list[Progress | BeamProgress] = []
        beams_changed = False
        for search in self.searches:
            for event in search.progress():
                if isinstance(event, BeamProgress):
                    self._beam_progress[search] = event
                    beams_changed = True
                else:
                    events.append(event)
        if beams_changed:
            beams = self._beam_progress.values()
            events.append(
                BeamProgress(
                    max(beam.tokens for beam in beams),
                    sum(beam.running for beam in beams),
                    sum(beam.finished for beam in beams),
                )
            )
        return events

    def hypotheses(self) -> list[HypothesisResult]:
        best = [search.hypotheses()[0] for search in self.searches]
        if self._alternatives:
            return best[:1] + [h for h in best[1:] if h.log_probabilities or len(h.ids) > h.prefix]
        return best
