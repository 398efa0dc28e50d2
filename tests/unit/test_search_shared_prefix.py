"""Searches that share rows give what each gives alone, with as few rows as there are different hypotheses."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models

from dragoman_server.bundle.manifest import SpecialTokens
from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, Progress
from dragoman_server.core.search import Search
from dragoman_server.core.search_options import BeamOptions, Constraints, SamplingOptions, SearchOptions
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.greedy import GreedySearch
from dragoman_server.decoding.shared_prefix import SharedPrefixSearch
from dragoman_server.decoding.single_hypothesis import SingleHypothesisSearch
from dragoman_server.decoding.text_stream import TargetDecoder
from tests.support.scripted_search import Run, Script, run

END, SIZE = 0, 12


def letters() -> TargetDecoder:
    made = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["</s>", *"abcdefghijk"])}, "</s>"))
    made.decoder = decoders.Fuse()
    made.add_special_tokens(["</s>"])
    return TargetDecoder(made)


DECODER = letters()


def make(options: SearchOptions) -> Search:
    return make_search(options, SpecialTokens(pad=1, unknown=1, begin=1, end=END), SIZE, DECODER)


def alone(options: SearchOptions, index: int, script: Script) -> HypothesisResult:
    """What one search of the fork answers by itself."""
    fork = make(replace(options, num_hypotheses=max(index + 1, 2)))
    assert isinstance(fork, SharedPrefixSearch)
    return run(fork.searches[index], script).hypothesis


def random_model(seed: int, spread: float) -> Script:
    def probabilities(so_far: tuple[int, ...]) -> NDArray[np.float64]:
        return np.exp(np.random.default_rng([seed, *so_far]).normal(scale=spread, size=SIZE))

    return probabilities


def prefixes(answers: Sequence[HypothesisResult], length: int) -> set[tuple[int, ...]]:
    """The different hypotheses of those that run on behind this many tokens."""
    return {tuple(answer.ids[:length]) for answer in answers if len(answer.ids) >= length}


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    samples=st.integers(2, 6),
    spread=st.sampled_from([0.5, 2.0, 5.0]),
    temperature=st.sampled_from([0.3, 1.0]),
    prefix=st.lists(st.integers(1, SIZE - 1), max_size=3).map(tuple),
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
    script = random_model(seed, spread)
    made = run(make(options), script)
    assert made.hypotheses == [alone(options, index, script) for index in range(samples)]
    # A row for each different hypothesis that goes on: a finished one's token has no row.
    for step, rows in enumerate(made.rows):
        going = [
            answer
            for answer in made.hypotheses
            if len(answer.ids) > step or (len(answer.ids) == step and answer.reason in (EOS, DEAD_END))
        ]
        assert rows == len(prefixes(going, step))


EOS, DEAD_END = FinishReason.EOS, FinishReason.DEAD_END


@settings(deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(2, 6),
    prefix=st.lists(st.integers(1, SIZE - 1), max_size=3).map(tuple),
    beam=st.none() | st.builds(BeamOptions, beam_size=st.integers(1, 3)),
)
def test_alternatives_are_what_each_is_alone(
    seed: int, count: int, prefix: tuple[int, ...], beam: BeamOptions | None
) -> None:
    options = SearchOptions(
        5, num_hypotheses=count, alternatives=True, beam=beam, constraints=Constraints(prefix=prefix)
    )
    script = random_model(seed, 1.5)
    made = run(make(options), script)
    assert made.hypotheses == [alone(options, rank, script) for rank in range(count)]
    best = np.argsort(-np.asarray(script(prefix)))[:count].tolist()
    place = len(prefix)
    assert [answer.ids[place] if len(answer.ids) > place else END for answer in made.hypotheses] == best
    assert made.rows[: place + 1] == [1] * (place + 1)  # until they part


def test_rows_of_what_is_finished_are_given_back() -> None:
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
    made = run(search, script)
    assert [answer.ids for answer in made.hypotheses] == [[1, 5], [2, 5, 5, 5], [3, 5, 5, 5, 5, 5]]
    assert made.rows == [1, 3, 3, 2, 2, 1, 1]
    assert search.rows == 0


def test_alternatives_for_which_there_is_no_token_are_left_out() -> None:
    constraints = Constraints(vocabulary=(END, 4, 7))
    for beam in (None, BeamOptions(beam_size=2)):
        options = SearchOptions(3, num_hypotheses=5, alternatives=True, beam=beam, constraints=constraints)
        made = run(make(options), random_model(1, 1.0))
        assert len(made.hypotheses) == 3
        assert {tuple(answer.ids[:1]) for answer in made.hypotheses} == {(), (4,), (7,)}


def test_alternatives_that_come_to_a_dead_end_later_are_kept() -> None:
    constraints = Constraints(vocabulary=(END, 4, 7), no_repeat_ngram_size=1, min_new_tokens=3)
    options = SearchOptions(3, num_hypotheses=2, alternatives=True, constraints=constraints)
    answers = run(make(options), random_model(1, 1.0)).hypotheses
    assert sorted(answer.ids for answer in answers) == [[4, 7], [7, 4]]
    assert [answer.reason for answer in answers] == [DEAD_END] * 2


@pytest.mark.parametrize("beam", [None, BeamOptions(2)])
def test_alternatives_that_are_stopped_before_they_part_are_one(beam: BeamOptions | None) -> None:
    options = SearchOptions(
        5, num_hypotheses=3, alternatives=True, beam=beam, constraints=Constraints(prefix=(4, 5, 6))
    )
    early = run(make(options), random_model(1, 1.0), stop_after=3).hypotheses
    assert [one.ids for one in early] == [[4, 5, 6]]
    assert len({tuple(one.ids) for one in run(make(options), random_model(1, 1.0), stop_after=4).hypotheses}) == 3


def test_where_there_is_no_token_at_all_one_alternative_says_so_and_so_does_each_sample() -> None:
    constraints = Constraints(vocabulary=(END, 4), suppressed=(4, END))
    options = SearchOptions(3, num_hypotheses=3, constraints=constraints)
    (only,) = run(make(replace(options, alternatives=True)), random_model(1, 1.0)).hypotheses
    assert only.reason is DEAD_END
    samples = run(make(replace(options, sampling=SamplingOptions(1))), random_model(1, 1.0)).hypotheses
    assert [sample.reason for sample in samples] == [DEAD_END] * 3


def told(made: Run, hypothesis: int) -> list[Progress]:
    return [
        event
        for events in made.events
        for event in events
        if isinstance(event, Progress) and event.hypothesis == hypothesis
    ]


@pytest.mark.parametrize("prefix", [(), (4, 5)])
def test_progress_is_told_by_hypothesis(prefix: tuple[int, ...]) -> None:
    options = SearchOptions(6, num_hypotheses=4, sampling=SamplingOptions(2), constraints=Constraints(prefix=prefix))
    made = run(make(options), random_model(3, 1.0))
    for index, answer in enumerate(made.hypotheses):
        events = told(made, index)
        assert [token for event in events for token in event.ids] == answer.ids
        if prefix:
            assert events[0] == Progress(list(prefix), [], [], index)
    # The prefix is told with the first step.
    assert len(made.events[0]) == (4 if prefix else sum(bool(answer.ids) for answer in made.hypotheses))


@pytest.mark.parametrize("prefix", [(), (4, 5)])
def test_progress_is_told_only_of_alternatives_that_are_part_of_the_answer(prefix: tuple[int, ...]) -> None:
    constraints = Constraints(vocabulary=(END, 4, 7), prefix=prefix)
    made = run(make(SearchOptions(3, num_hypotheses=5, alternatives=True, constraints=constraints)), random_model(1, 1))
    assert len(made.hypotheses) == 3
    for index, answer in enumerate([h.ids for h in made.hypotheses] + [[]] * 2):
        assert [token for event in told(made, index) for token in event.ids] == answer


@pytest.mark.parametrize("after", [0, 1, 2, 4, 6])
def test_it_can_be_stopped_at_any_moment(after: int) -> None:
    options = SearchOptions(
        9, num_hypotheses=4, sampling=SamplingOptions(2), constraints=Constraints(prefix=(4, 5), suppressed=(END,))
    )
    made = run(make(options), random_model(3, 1.0), stop_after=after)
    assert len(made.hypotheses) == 4
    for index, answer in enumerate(made.hypotheses):
        assert answer.reason is FinishReason.TIME_LIMIT
        assert len(answer.ids) == max(after, 2)
        assert answer.ids == alone(options, index, random_model(3, 1.0)).ids[: len(answer.ids)]


def test_a_stop_leaves_those_that_are_finished_as_they_are() -> None:
    options = SearchOptions(9, num_hypotheses=6, sampling=SamplingOptions(0))

    def script(so_far: tuple[int, ...]) -> list[float]:
        return [5.0] + [1.0] * 11

    whole = run(make(options), script).hypotheses
    stopped = run(make(options), script, stop_after=4).hypotheses
    reasons = {answer.reason for answer in stopped}
    assert reasons == {FinishReason.EOS, FinishReason.TIME_LIMIT}
    for one, other in zip(whole, stopped, strict=True):
        assert other == one if other.reason is FinishReason.EOS else other.ids == one.ids[:4]


def test_one_that_lacks_candidates_makes_all_ask_again() -> None:
    """Whoever draws a number in the tail needs more candidates; the answers are those of each alone."""
    size = 600

    def script(so_far: tuple[int, ...]) -> NDArray[np.float64]:
        return np.random.default_rng([5, *so_far]).permutation(np.exp(-np.arange(size) / 40))

    def make_large(samples: int) -> Search:
        options = SearchOptions(6, num_hypotheses=samples, sampling=SamplingOptions(9))
        return make_search(options, SpecialTokens(pad=1, unknown=1, begin=1, end=END), size, DECODER)

    made = run(make_large(4), script)
    assert made.repeated > 0
    fork = make_large(4)
    assert isinstance(fork, SharedPrefixSearch)
    assert made.hypotheses == [run(search, script).hypothesis for search in fork.searches]


def test_all_that_lack_candidates_ask_at_once() -> None:
    options = SearchOptions(6, num_hypotheses=3, sampling=SamplingOptions(9, top_p=0.9))
    search = make_search(options, SpecialTokens(pad=1, unknown=1, begin=1, end=END), 600, DECODER)
    made = run(search, lambda so_far: [1e-9, *[1.0] * 599])
    assert [step_request.candidates for step_requests in made.step_requests for step_request in step_requests] == [
        600
    ] * (1 + 5 * 3)
    assert made.repeated == 2  # 64, 512, 600


def test_progress_of_beams_is_added_up() -> None:
    options = SearchOptions(5, num_hypotheses=3, alternatives=True, beam=BeamOptions(beam_size=2))
    made = run(make(options), random_model(3, 1.0))
    counts = [event for events in made.events for event in events if isinstance(event, BeamProgress)]
    assert all(len([e for e in events if isinstance(e, BeamProgress)]) <= 1 for events in made.events)
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
def test_what_searches_are_made(options: SearchOptions, kind: type[Search], rows: int) -> None:
    search = make(options)
    assert type(search) is kind
    assert search.rows == rows
