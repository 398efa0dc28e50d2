"""Samples and alternatives share rows while they are equal, and hypotheses get rows such that little is copied."""

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, Progress
from dragoman_server.core.search import Continuation, Search
from dragoman_server.core.search_options import BeamOptions, Constraints, SamplingOptions, SearchOptions
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.greedy import GreedySearch
from dragoman_server.decoding.hypothesis import Hypothesis, assign_rows, shared_positions
from dragoman_server.decoding.shared_prefix import SharedPrefixSearch
from dragoman_server.decoding.single_hypothesis import SingleHypothesisSearch
from tests.support.scripted_search import END, Run, Script, letters_decoder, random_model, run

SIZE = 12
DECODER = letters_decoder("abcdefghijk")
EOS, DEAD_END, TIME_LIMIT = FinishReason.EOS, FinishReason.DEAD_END, FinishReason.TIME_LIMIT
PREFIXES = st.lists(st.integers(1, SIZE - 1), max_size=3).map(tuple)


def make(options: SearchOptions, size: int = SIZE) -> Search:
    return make_search(options, SpecialTokens(pad=1, unknown=1, begin=1, end=END), size, DECODER)


def decode(options: SearchOptions, seed: int = 1, stop_after: int | None = None) -> Run:
    return run(make(options), random_model(seed, SIZE, 1.0), stop_after=stop_after)


def alone(options: SearchOptions, index: int, script: Script, size: int = SIZE) -> HypothesisResult:
    """Returns the answer of one of the searches when it runs by itself."""
    shared = make(replace(options, num_hypotheses=max(index + 1, 2)), size)
    assert isinstance(shared, SharedPrefixSearch)
    return run(shared.searches[index], script).hypothesis


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    samples=st.integers(2, 6),
    spread=st.sampled_from([0.5, 2.0, 5.0]),
    temperature=st.sampled_from([0.3, 1.0]),
    prefix=PREFIXES,
    stops=st.sampled_from([(), ("ab", "c")]),
)
def test_samples_are_what_each_is_alone_and_share_rows_while_they_are_equal(
    seed: int, samples: int, spread: float, temperature: float, prefix: tuple[int, ...], stops: tuple[str, ...]
) -> None:
    options = SearchOptions(
        max_new_tokens=6,
        num_hypotheses=samples,
        sampling=SamplingOptions(seed, temperature=temperature),
        constraints=Constraints(prefix=prefix, stop_sequences=stops, no_repeat_ngram_size=2),
        log_probabilities=True,
        top_tokens=2,
    )
    script = random_model(seed, SIZE, spread)
    played = run(make(options), script)
    assert played.hypotheses == [alone(options, index, script) for index in range(samples)]
    for step, rows in enumerate(played.rows):  # one row for each different hypothesis that runs
        running = {
            tuple(answer.ids[:step])
            for answer in played.hypotheses
            if len(answer.ids) > step or (len(answer.ids) == step and answer.reason in (EOS, DEAD_END))
        }
        assert rows == len(running)


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(2, 6),
    prefix=PREFIXES,
    beam=st.none() | st.builds(BeamOptions, beam_size=st.integers(1, 3)),
)
def test_alternatives_are_what_each_is_alone(
    seed: int, count: int, prefix: tuple[int, ...], beam: BeamOptions | None
) -> None:
    options = SearchOptions(
        5, num_hypotheses=count, alternatives=True, beam=beam, constraints=Constraints(prefix=prefix)
    )
    script = random_model(seed, SIZE, 1.5)
    played = run(make(options), script)
    assert played.hypotheses == [alone(options, rank, script) for rank in range(count)]
    best = np.argsort(-np.asarray(script(prefix)))[:count].tolist()
    length = len(prefix)
    assert [answer.ids[length] if len(answer.ids) > length else END for answer in played.hypotheses] == best
    assert played.rows[: length + 1] == [1] * (length + 1)


def test_rows_of_finished_hypotheses_are_freed() -> None:
    """The first alternative ends after two tokens, the second after four, the third after six."""

    def script(so_far: tuple[int, ...]) -> list[float]:
        probabilities = [0.01] * SIZE
        if not so_far:
            probabilities[1:4] = [3.0, 2.0, 1.0]
        else:
            probabilities[END if len(so_far) >= 2 * so_far[0] else 5] = 10.0
        return probabilities

    search = make(SearchOptions(9, num_hypotheses=3, alternatives=True))
    assert search.rows == 3
    played = run(search, script)
    assert played.ids() == [[1, 5], [2, 5, 5, 5], [3, 5, 5, 5, 5, 5]]
    assert played.rows == [1, 3, 3, 2, 2, 1, 1]
    assert search.rows == 0


@pytest.mark.parametrize("beam", [None, BeamOptions(2)])
def test_alternatives_without_a_token_are_dropped(beam: BeamOptions | None) -> None:
    constraints = Constraints(vocabulary=(END, 4, 7))
    answers = decode(SearchOptions(3, num_hypotheses=5, alternatives=True, beam=beam, constraints=constraints)).ids()
    assert len(answers) == 3
    assert {tuple(ids[:1]) for ids in answers} == {(), (4,), (7,)}


def test_alternatives_that_reach_a_dead_end_later_are_kept() -> None:
    constraints = Constraints(vocabulary=(END, 4, 7), no_repeat_ngram_size=1, min_new_tokens=3)
    played = decode(SearchOptions(3, num_hypotheses=2, alternatives=True, constraints=constraints))
    assert sorted(played.endings()) == [([4, 7], DEAD_END), ([7, 4], DEAD_END)]


@pytest.mark.parametrize("beam", [None, BeamOptions(2)])
def test_alternatives_that_are_stopped_within_the_prefix_are_one(beam: BeamOptions | None) -> None:
    constraints = Constraints(prefix=(4, 5, 6))
    options = SearchOptions(5, num_hypotheses=3, alternatives=True, beam=beam, constraints=constraints)
    assert decode(options, stop_after=3).ids() == [[4, 5, 6]]
    assert len({tuple(ids) for ids in decode(options, stop_after=4).ids()}) == 3


def test_without_any_token_there_is_one_alternative_and_every_sample() -> None:
    options = SearchOptions(3, num_hypotheses=3, constraints=Constraints(vocabulary=(END, 4), suppressed=(4, END)))
    assert decode(replace(options, alternatives=True)).endings() == [([], DEAD_END)]
    assert decode(replace(options, sampling=SamplingOptions(1))).endings() == [([], DEAD_END)] * 3


@pytest.mark.parametrize("prefix", [(), (4, 5)])
@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(6, num_hypotheses=4, sampling=SamplingOptions(2)),
        SearchOptions(3, num_hypotheses=5, alternatives=True, constraints=Constraints(vocabulary=(END, 4, 7))),
    ],
)
def test_progress_is_that_of_the_hypotheses_in_the_answer(options: SearchOptions, prefix: tuple[int, ...]) -> None:
    played = decode(replace(options, constraints=replace(options.constraints, prefix=prefix)), seed=3)
    assert len(played.hypotheses) == 4 - options.alternatives
    for index, ids in enumerate([*played.ids(), *[[]] * 2]):
        events = played.progress(index)
        assert [token for event in events for token in event.ids] == ids
        if prefix and ids:
            assert events[0] == Progress(list(prefix), [], [], index)
    if options.sampling is not None:  # the first step reports the prefix
        assert len(played.events[0]) == (4 if prefix else sum(map(bool, played.ids())))


@pytest.mark.parametrize("after", [0, 1, 2, 4, 6])
def test_a_search_can_be_stopped_after_any_step(after: int) -> None:
    options = SearchOptions(
        9, num_hypotheses=4, sampling=SamplingOptions(2), constraints=Constraints(prefix=(4, 5), suppressed=(END,))
    )
    played = decode(options, seed=3, stop_after=after)
    assert len(played.hypotheses) == 4
    for index, answer in enumerate(played.hypotheses):
        assert (len(answer.ids), answer.reason) == (max(after, 2), TIME_LIMIT)
        assert answer.ids == alone(options, index, random_model(3, SIZE, 1.0)).ids[: len(answer.ids)]


def test_stopping_leaves_finished_hypotheses_as_they_are() -> None:
    options = SearchOptions(9, num_hypotheses=6, sampling=SamplingOptions(0))

    def script(so_far: tuple[int, ...]) -> list[float]:
        return [5.0] + [1.0] * 11

    complete, stopped = run(make(options), script).hypotheses, run(make(options), script, stop_after=4).hypotheses
    assert {answer.reason for answer in stopped} == {EOS, TIME_LIMIT}
    for one, other in zip(complete, stopped, strict=True):
        assert other == one if other.reason is EOS else other.ids == one.ids[:4]


def test_a_search_that_needs_more_candidates_repeats_the_step_of_all() -> None:
    """A number in the tail needs more candidates; the answers are those of each search alone."""
    size = 600

    def script(so_far: tuple[int, ...]) -> NDArray[np.float64]:
        return np.random.default_rng([5, *so_far]).permutation(np.exp(-np.arange(size) / 40))

    options = SearchOptions(6, num_hypotheses=4, sampling=SamplingOptions(9))
    played = run(make(options, size), script)
    assert played.repeated > 0
    assert played.hypotheses == [alone(options, index, script, size) for index in range(4)]


def test_all_searches_that_need_more_candidates_request_them_at_once() -> None:
    options = SearchOptions(6, num_hypotheses=3, sampling=SamplingOptions(9, top_p=0.9))
    played = run(make(options, 600), lambda so_far: [1e-9, *[1.0] * 599])
    assert [request.candidates for step in played.step_requests for request in step] == [600] * (1 + 5 * 3)
    assert played.repeated == 2  # 64, 512, 600


def test_progress_of_beams_is_their_sum() -> None:
    played = decode(SearchOptions(5, num_hypotheses=3, alternatives=True, beam=BeamOptions(beam_size=2)), seed=3)
    by_step = [[event for event in events if isinstance(event, BeamProgress)] for events in played.events]
    assert all(len(events) <= 1 for events in by_step)
    counts = [event for events in by_step for event in events]
    assert [count.tokens for count in counts] == sorted(count.tokens for count in counts)
    assert counts[-1].running == 0
    assert counts[-1].finished >= 3
    assert max(count.running for count in counts) > 2


@pytest.mark.parametrize(
    ("options", "kind", "rows"),
    [
        (SearchOptions(5), GreedySearch, 1),
        (SearchOptions(5, sampling=SamplingOptions(1)), SingleHypothesisSearch, 1),
        (SearchOptions(5, sampling=SamplingOptions(1), num_hypotheses=3), SharedPrefixSearch, 3),
        (SearchOptions(5, alternatives=True), SingleHypothesisSearch, 1),
        (SearchOptions(5, alternatives=True, num_hypotheses=3), SharedPrefixSearch, 3),
        (SearchOptions(5, beam=BeamOptions(4), num_hypotheses=3), BeamSearch, 4),
        (SearchOptions(5, beam=BeamOptions(4), alternatives=True, num_hypotheses=3), SharedPrefixSearch, 12),
    ],
)
def test_which_search_is_created(options: SearchOptions, kind: type[Search], rows: int) -> None:
    search = make(options)
    assert type(search) is kind
    assert search.rows == rows


def in_rows(*hypotheses: Hypothesis) -> list[Hypothesis]:
    for row, hypothesis in enumerate(hypotheses):
        hypothesis.row = row
    return [*hypotheses]


def chain(start: Hypothesis, *ids: int) -> Hypothesis:
    for token in ids:
        start = Hypothesis(start, token)
    return start


# Rows of three hypotheses, and children as (parent's row, token); the continuations by row.
FLAT, FAMILY = ((5,), (6,), (7,)), ((4, 5), (3, 6), (4, 7))


@pytest.mark.parametrize(
    ("rows", "children", "expected"),
    [
        (FLAT, [(1, 1), (2, 2), (0, 3)], [(0, 3, 0), (1, 1, 0), (2, 2, 0)]),  # each stays in its row
        # Row 0 differs from row 2 in its last token, row 1 from the first on.
        (FAMILY, [(2, 1), (2, 2), (2, 3)], [(2, 2, 2), (2, 3, 1), (2, 1, 0)]),
        (((),), [(0, 5), (0, 6), (0, 7)], [(0, 5, 0), (0, 6, 0), (0, 7, 0)]),  # new rows
        (FLAT, [(2, 1)], [(2, 1, 1)]),  # the last rows are freed
        (FLAT, [(2, 1), (1, 2)], [(2, 1, 1), (1, 2, 0)]),
        (FLAT, [(2, 1), (2, 2)], [(2, 1, 1), (2, 2, 1)]),
    ],
)
def test_rows_of_children(
    rows: Sequence[Sequence[int]], children: list[tuple[int, int]], expected: list[Continuation]
) -> None:
    nodes: dict[tuple[int, ...], Hypothesis] = {(): Hypothesis.root()}
    for ids in rows:
        for length in range(1, len(ids) + 1):
            nodes.setdefault(tuple(ids[:length]), Hypothesis(nodes[tuple(ids[: length - 1])], ids[length - 1]))
    parents = in_rows(*(nodes[tuple(ids)] for ids in rows))
    running, continuations = assign_rows(
        [Hypothesis(parents[row], token) for row, token in children], parents, len(rows[0])
    )
    assert continuations == expected
    assert [h.row for h in running] == list(range(len(children)))
    assert [h.token for h in running] == [continuation.token for continuation in continuations]


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [([], [], 1), ([3], [4], 1), ([3, 4], [3, 5], 2), ([3, 4, 5], [2, 4, 5], 1), ([3, 4, 5], [3, 4, 5], 4)],
)
def test_shared_positions_are_equal_decoder_inputs(one: list[int], other: list[int], shared: int) -> None:
    """The begin token and the tokens before the first difference, whether they are the same nodes or not."""
    root = Hypothesis.root()
    assert shared_positions(chain(root, *one), chain(root, *other), len(one)) == shared
    same = chain(root, *one)
    assert shared_positions(same, same, len(one)) == len(one) + 1


@pytest.mark.parametrize("seed", range(20))
def test_every_row_holds_its_hypothesis_after_random_steps(seed: int) -> None:
    draw = random.Random(seed)
    running = in_rows(Hypothesis.root())
    cache: list[list[int]] = [[-1]]  # decoder inputs, by row
    for length in range(12):
        children = [Hypothesis(draw.choice(running), draw.randrange(3)) for _ in range(draw.randint(1, 6))]
        before = [held.copy() for held in cache]
        parents = {child.parent.row for child in children if child.parent is not None}
        placed, continuations = assign_rows(children, running, length)
        assert sorted(map(id, placed)) == sorted(map(id, children))
        cache = (cache + [[] for _ in children])[: len(children)]
        for row, (parent, token, shared) in enumerate(continuations):
            if parent != row:
                assert row not in parents, "it would be overwritten before it is copied"
                equal = zip(before[row] if row < len(before) else [], before[parent], strict=False)
                limit = length + 1 if row < len(before) else 0
                assert shared == next((n for n, (a, b) in enumerate(equal) if a != b), limit)
                cache[row] = cache[row][:shared] + before[parent][shared:]
            cache[row] = [*cache[row], token]
            assert cache[row] == [-1, *(node.token for node in placed[row].path())]
        stay = sum(parent == row for row, (parent, *_) in enumerate(continuations))
        assert stay == sum(row < len(children) for row in parents), "each row that can stays with its hypothesis"
        running = placed
