"""Greedy searches advanced together give the answers that each gives alone, and end where finish.py says."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dragoman_server.core.requests import FinishReason
from dragoman_server.core.search import StepResult
from dragoman_server.core.search_options import BeamOptions, Constraints, SamplingOptions, SearchOptions
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.finish import finish_reason, finishes
from dragoman_server.decoding.greedy import FIRST_CAPACITY, GreedyRows, GreedySearch
from dragoman_server.decoding.single_hypothesis import SingleHypothesisSearch
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.job import Job
from dragoman_server.engine.rows import RowTable
from dragoman_server.runtime.step_results import HeadOutputs, MixedResult, TopKResult
from tests.support.counting_engines import END, request
from tests.support.fake_engines import letters_bundle

MAX_ROWS, VOCABULARY = 12, 9
EOS, LENGTH, DEAD_END, TIME_LIMIT = (
    FinishReason.EOS,
    FinishReason.LENGTH,
    FinishReason.DEAD_END,
    FinishReason.TIME_LIMIT,
)


def top_result(ids: Any, log_probabilities: Any) -> StepResult:
    return TopKResult(ids[:, None], log_probabilities[:, None])


def mixed_result(ids: Any, log_probabilities: Any) -> StepResult:
    """Returns the result of a step with edits in another row: head rows are in another order than cache rows."""
    order = np.arange(len(ids))[::-1]
    head = HeadOutputs(ids[order, None], log_probabilities[order, None].copy(), np.zeros((len(ids), 0), np.float32))
    return MixedResult([(head, len(ids) - 1 - row) for row in range(len(ids))], {}, {}, {})


@pytest.mark.parametrize(
    ("token", "log_probability", "position", "reason"),
    [
        (5, -0.1, 3, None),
        (5, -0.1, 7, LENGTH),
        (END, -0.1, 3, EOS),
        (END, -0.1, 7, EOS),
        (5, -np.inf, 3, DEAD_END),
        (END, -np.inf, 7, DEAD_END),
        (5, -0.1, 8, None),
    ],
)
def test_where_a_hypothesis_ends(
    token: int, log_probability: float, position: int, reason: FinishReason | None
) -> None:
    assert finish_reason(token, log_probability, position, END, 7) is reason
    finished = finishes(
        np.array([token, 4]),
        np.array([log_probability, -1], np.float32),
        np.array([position, 0]),
        np.array([END, END]),
        np.array([7, 7]),
    )
    assert finished.tolist() == [reason is not None, False]


@pytest.mark.parametrize("result_of", [top_result, mixed_result])
@pytest.mark.parametrize("greedy_share", [1.0, 0.6])
def test_rows_that_join_leave_and_move_give_the_answers_of_single_searches(
    result_of: Callable[[Any, Any], StepResult], greedy_share: float
) -> None:
    draw = np.random.default_rng(5)
    table, greedy = RowTable(MAX_ROWS), GreedyRows(MAX_ROWS)
    tokens, positions = np.zeros((MAX_ROWS, 1), np.int64), np.zeros(MAX_ROWS, np.int32)
    alone: dict[Job, GreedySearch] = {}  # advanced one by one, for every job
    together: set[Job] = set()
    reasons: list[FinishReason | None] = []
    for _ in range(600):
        while table.used < MAX_ROWS and draw.random() < 0.5:
            limit = int(draw.choice([1, 2, 5, 30, FIRST_CAPACITY + 10]))
            search = GreedySearch(END, limit)
            job = Job(request(5), search, 0.0)
            row = table.add(job)
            positions[row] = 0
            alone[job] = GreedySearch(END, limit)
            if draw.random() < greedy_share:
                together.add(job)
                greedy.add(row, search)
        rows = table.used
        if not rows:
            continue
        ids = draw.choice(VOCABULARY, rows, p=[0, 0, 0, 0.06, *[0.188] * 5]).astype(np.int64)
        log_probabilities = np.where(draw.random(rows) < 0.03, -np.inf, -draw.random(rows)).astype(np.float32)
        result = result_of(ids, log_probabilities)
        tokens[:rows] = -1
        over = {table.owners[row] for row in greedy.advance(result, positions[:rows], tokens[:rows])}
        positions[:rows] += 1
        gone = []
        for job, (row,) in table.rows.items():
            continuations = alone[job].advance(result, [row])
            if job in together:
                assert (job in over) == (continuations is None)
                if continuations is not None:
                    assert tokens[row, 0] == continuations[0].token
            else:
                assert tokens[row, 0] == -1, "not a greedy row"
            if continuations is None:
                gone.append(job)
            elif draw.random() < 0.05:  # its time limit has passed
                gone.append(job)
                if job in together:
                    greedy.update_search(row, int(positions[row]))
                for stopped in (job.search, alone[job]):
                    stopped.stop(TIME_LIMIT)
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
    assert set(reasons) == {EOS, LENGTH, DEAD_END, TIME_LIMIT}


@pytest.mark.parametrize(
    ("options", "greedy"),
    [
        (SearchOptions(5), True),
        (SearchOptions(5, log_probabilities=True), True),
        (SearchOptions(5, constraints=Constraints()), True),
        (SearchOptions(5, constraints=Constraints(min_new_tokens=1)), False),
        (SearchOptions(5, constraints=Constraints(prefix=(5,))), False),
        (SearchOptions(5, constraints=Constraints(stop_sequences=("a",))), False),
        (SearchOptions(5, constraints=Constraints(vocabulary=(3, 5))), True),
        (SearchOptions(5, top_tokens=1), False),
        (SearchOptions(5, alternatives=True), False),
        (SearchOptions(5, beam=BeamOptions(1)), False),
        (SearchOptions(5, sampling=SamplingOptions(1)), False),
    ],
)
def test_only_requests_without_other_options_use_greedy_rows(options: SearchOptions, greedy: bool) -> None:
    bundle = letters_bundle()
    search = make_search(options, bundle.manifest.tokens, 30, TargetDecoder(bundle.target_tokenizer))
    assert isinstance(search, GreedySearch) == greedy


def test_greedy_search_equals_the_general_search_without_options() -> None:
    draw = np.random.default_rng(3)
    bundle = letters_bundle()
    decoder = TargetDecoder(bundle.target_tokenizer)
    for _ in range(50):
        limit = int(draw.integers(1, 12))
        greedy = GreedySearch(END, limit)
        general = make_search(SearchOptions(limit, alternatives=True), bundle.manifest.tokens, VOCABULARY, decoder)
        assert isinstance(general, SingleHypothesisSearch)
        continuations: Any = ()
        while continuations is not None:
            ids = draw.choice(VOCABULARY, 1, p=[0, 0, 0, 0.1, *[0.18] * 5]).astype(np.int64)
            result = top_result(ids, -draw.random(1).astype(np.float32))
            continuations = greedy.advance(result, [0])
            assert continuations == general.advance(result, [0])
            assert list(greedy.progress()) == list(general.progress())
        assert greedy.hypotheses() == general.hypotheses()
