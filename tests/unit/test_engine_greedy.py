"""Greedy searches that go on together answer as each would alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dragoman_server.core.requests import FinishReason
from dragoman_server.core.search import StepResult
from dragoman_server.core.search_options import BeamOptions, Constraints, SamplingOptions, SearchOptions
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.greedy import FIRST_CAPACITY, GreedyRows, GreedySearch
from dragoman_server.decoding.single_hypothesis import SingleHypothesisSearch
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.job import Job
from dragoman_server.engine.rows import RowTable
from dragoman_server.runtime.step_results import HeadOutputs, MixedResult, TopKResult
from tests.support.counting_engines import END, request
from tests.support.fake_engines import letters_bundle

SLOTS, VOCABULARY = 12, 9


def plain(ids: Any, log_probabilities: Any) -> StepResult:
    return TopKResult(ids[:, None], log_probabilities[:, None])


def mixed(ids: Any, log_probabilities: Any) -> StepResult:
    """As where another row has edits: the head's rows are in another order than those of the cache."""
    order = np.arange(len(ids))[::-1]
    head = HeadOutputs(ids[order, None], log_probabilities[order, None].copy(), np.zeros((len(ids), 0), np.float32))
    return MixedResult([(head, len(ids) - 1 - row) for row in range(len(ids))], {}, {}, {})


@pytest.mark.parametrize("scores_of", [plain, mixed])
@pytest.mark.parametrize("greedy_share", [1.0, 0.6])
def test_rows_that_come_go_and_move_answer_as_searches_led_one_by_one(
    scores_of: Callable[[Any, Any], StepResult], greedy_share: float
) -> None:
    draw = np.random.default_rng(5)
    table, greedy = RowTable(SLOTS), GreedyRows(SLOTS)
    tokens, positions = np.zeros((SLOTS, 1), np.int64), np.zeros(SLOTS, np.int32)
    alone: dict[Job, GreedySearch] = {}  # led one by one, for every job
    together: set[Job] = set()
    reasons: list[FinishReason | None] = []
    for _ in range(600):
        while table.used < SLOTS and draw.random() < 0.5:
            search = GreedySearch(END, int(draw.choice([1, 2, 5, 30, FIRST_CAPACITY + 10])))
            job = Job(request(5), search, 0.0)
            row = table.add(job)
            positions[row] = 0
            alone[job] = GreedySearch(END, search.last_position + 1)
            if draw.random() < greedy_share:
                together.add(job)
                greedy.add(row, search)
        rows = table.used
        if not rows:
            continue
        ids = draw.choice(VOCABULARY, rows, p=[0, 0, 0, 0.06, *[0.188] * 5]).astype(np.int64)
        log_probabilities = np.where(draw.random(rows) < 0.03, -np.inf, -draw.random(rows)).astype(np.float32)
        scores = scores_of(ids, log_probabilities)
        tokens[:rows] = -1
        over = {table.owners[row] for row in greedy.advance(scores, positions[:rows], tokens[:rows])}
        positions[:rows] += 1
        gone = []
        for job, owned in table.rows.items():
            continuations = alone[job].advance(scores, owned)
            if job in together:
                assert (job in over) == (continuations is None)
                if continuations is not None:
                    assert tokens[owned[0], 0] == continuations[0].token
            else:
                assert tokens[owned[0], 0] == -1, "not its row"
            if continuations is None:
                gone.append(job)
            elif draw.random() < 0.05:  # its time is over
                gone.append(job)
                if job in together:
                    greedy.update_search(owned[0], int(positions[owned[0]]))
                for each in (job.search, alone[job]):
                    each.stop(FinishReason.TIME_LIMIT)
        for job in gone:
            if job in together:
                assert job.search.hypotheses() == alone[job].hypotheses()
                reasons.append(job.search.hypotheses()[0].reason)
                greedy.remove(*table.rows[job])
        moves = table.remove(gone)
        greedy.move(moves)
        for source, target in moves:
            positions[target] = positions[source]
        assert greedy.count == sum(job in together for job in table.rows)
    assert set(reasons) == {
        FinishReason.EOS,
        FinishReason.LENGTH,
        FinishReason.DEAD_END,
        FinishReason.TIME_LIMIT,
    }


@pytest.mark.parametrize(
    ("options", "greedy"),
    [
        (SearchOptions(5), True),
        (SearchOptions(5, log_probabilities=True), True),
        (SearchOptions(5, constraints=Constraints()), True),
        (SearchOptions(5, constraints=Constraints(min_new_tokens=1)), False),
        (SearchOptions(5, constraints=Constraints(prefix=(5,))), False),
        (SearchOptions(5, constraints=Constraints(stop_sequences=("a",))), False),
        (SearchOptions(5, constraints=Constraints(vocabulary=(3, 5))), False),
        (SearchOptions(5, top_tokens=1), False),
        (SearchOptions(5, alternatives=True), False),
        (SearchOptions(5, beam=BeamOptions(1)), False),
        (SearchOptions(5, sampling=SamplingOptions(1)), False),
    ],
)
def test_only_those_that_want_nothing_else_are_greedy(options: SearchOptions, greedy: bool) -> None:
    bundle = letters_bundle()
    search = make_search(options, bundle.manifest.tokens, 30, TargetDecoder(bundle.target_tokenizer))
    assert isinstance(search, GreedySearch) == greedy


def test_it_is_the_sequence_search_without_what_that_can_do_besides() -> None:
    draw = np.random.default_rng(3)
    bundle = letters_bundle()
    decoder = TargetDecoder(bundle.target_tokenizer)
    for _ in range(50):
        limit = int(draw.integers(1, 12))
        greedy = GreedySearch(END, limit)
        other = make_search(SearchOptions(limit, alternatives=True), bundle.manifest.tokens, VOCABULARY, decoder)
        assert isinstance(other, SingleHypothesisSearch)
        while True:
            ids = draw.choice(VOCABULARY, 1, p=[0, 0, 0, 0.1, *[0.18] * 5]).astype(np.int64)
            scores = plain(ids, -draw.random(1).astype(np.float32))
            mine, its = greedy.advance(scores, [0]), other.advance(scores, [0])
            assert mine == its
            assert list(greedy.progress()) == list(other.progress())
            if mine is None:
                break
        assert greedy.hypotheses() == other.hypotheses()
