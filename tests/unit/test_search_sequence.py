"""One hypothesis, greedy or drawn: decided as a plain decoder with the whole vocabulary would, and told as it is."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from dragoman_server.core.requests import FinishReason, Progress, TokenChoice
from dragoman_server.core.search_options import Constraints, SamplingOptions, SearchOptions
from dragoman_server.decoding.single_hypothesis import SingleHypothesisSearch
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.decoding.token_rules import TokenRules
from tests.reference.decoding import decode
from tests.reference.model import Forward, Matrix
from tests.support.scripted_scores import Run, Script, run

END = 0
LETTERS = "abcdefghijklmnopqrstuvwxyz"  # tokens 1 to 26


def letters() -> TargetDecoder:
    made = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["</s>", *LETTERS])}, "</s>"))
    made.decoder = decoders.Fuse()
    made.add_special_tokens(["</s>"])
    return TargetDecoder(made)


LETTERS_DECODER = letters()


def search(options: SearchOptions, size: int, index: int = 0) -> SingleHypothesisSearch:
    constraints = options.constraints
    stops = StopTracker(LETTERS_DECODER, constraints) if constraints.stop_sequences else None
    return SingleHypothesisSearch(options, END, size, TokenRules(constraints, END), stops, index)


def spell(text: str, size: int = 27, weight: float = 8.0) -> Script:
    """A model that writes this and then the end token: each with probability weight / (weight + size - 1)."""
    ids = [LETTERS.index(letter) + 1 for letter in text] + [END]

    def probabilities(so_far: tuple[int, ...]) -> list[float]:
        likely = ids[min(len(so_far), len(ids) - 1)]
        return [weight if token == likely else 1.0 for token in range(size)]

    return probabilities


def ids_of(text: str) -> list[int]:
    return [LETTERS.index(letter) + 1 for letter in text]


def random_model(seed: int, size: int, spread: float) -> Script:
    """Logits drawn anew for every hypothesis. They are of both signs."""

    def probabilities(so_far: tuple[int, ...]) -> Matrix:
        return np.exp(np.random.default_rng([seed, *so_far]).normal(scale=spread, size=size))

    return probabilities


def forward(script: Script) -> Forward:
    """The same model for the reference."""

    def logits(rows: Sequence[Sequence[int]]) -> tuple[Matrix, Matrix]:
        return np.log(np.array([script(tuple(ids)) for ids in rows])), np.zeros((len(rows), 1))

    return logits


def check(made: Run, script: Script, options: SearchOptions, index: int) -> None:
    """Compares an answer with the reference's."""
    expected = decode(forward(script), replace(options, num_hypotheses=index + 1), END, LETTERS_DECODER.decode)
    assume(expected.margin > 1e-4)
    assume(len(expected.hypotheses) == index + 1)  # else there are not so many alternatives
    wanted, answer = expected.hypotheses[index], made.hypothesis
    assert answer.ids == wanted.ids
    assert answer.reason == wanted.reason
    assert answer.prefix == wanted.prefix
    assert answer.characters == wanted.characters
    if options.log_probabilities:
        np.testing.assert_allclose(answer.log_probabilities, wanted.log_probabilities, atol=1e-4)
        assert answer.score == pytest.approx(wanted.score, abs=1e-3)
    assert [[choice.id for choice in place] for place in answer.alternatives] == [
        [choice.id for choice in place] for place in wanted.alternatives
    ]
    for told, true in zip(answer.alternatives, wanted.alternatives, strict=True):
        np.testing.assert_allclose(
            [choice.log_probability for choice in told], [choice.log_probability for choice in true], atol=1e-4
        )


def some_constraints(size: int) -> st.SearchStrategy[Constraints]:
    tokens = st.integers(1, min(size, 27) - 1)
    vocabularies = st.sets(tokens, min_size=3).map(lambda ids: tuple(sorted({END, *ids})))
    return st.builds(
        Constraints,
        min_new_tokens=st.integers(0, 4),
        prefix=st.lists(tokens, max_size=4).map(tuple),
        prefix_bias=st.none() | st.floats(0.05, 0.95),
        suppressed=st.sets(tokens, max_size=2).map(tuple),
        suppressed_sequences=st.lists(st.lists(tokens, min_size=2, max_size=3).map(tuple), max_size=3).map(tuple),
        repetition_penalty=st.sampled_from([1.0, 1.0, 0.7, 1.5]),
        no_repeat_ngram_size=st.integers(0, 3),
        vocabulary=st.none() | vocabularies,
    )


def some_sampling() -> st.SearchStrategy[SamplingOptions]:
    return st.builds(
        SamplingOptions,
        seed=st.integers(0, 2**64 - 1),
        temperature=st.sampled_from([1.0, 0.5, 1.7]),
        top_k=st.none() | st.integers(1, 100),
        top_p=st.none() | st.floats(0.3, 1.0),
        min_p=st.none() | st.floats(0.0, 0.2),
        typical_p=st.none() | st.floats(0.2, 1.0),
    )


@settings(deadline=None, max_examples=200)
@given(data=st.data(), seed=st.integers(0, 10_000), size=st.sampled_from([9, 150]), index=st.integers(0, 3))
@pytest.mark.parametrize("sampled", [False, True])
def test_any_options_decode_as_the_reference_does(
    sampled: bool, data: st.DataObject, seed: int, size: int, index: int
) -> None:
    script = random_model(seed, size, data.draw(st.sampled_from([0.3, 1.5, 4.0])))
    constraints = data.draw(some_constraints(size))
    if not constraints.prefix:
        constraints = replace(constraints, prefix_bias=None)
    options = SearchOptions(
        max_new_tokens=data.draw(st.integers(1, 8)),
        sampling=data.draw(some_sampling()) if sampled else None,
        constraints=constraints,
        alternatives=not sampled,
        log_probabilities=data.draw(st.booleans()),
    )
    if options.log_probabilities:
        options = replace(options, top_tokens=data.draw(st.integers(0, 5)))
    check(run(search(options, size, index), script, delivered=data.draw(st.integers(0, size))), script, options, index)


@settings(deadline=None)
@given(data=st.data(), text=st.text("abc", min_size=1, max_size=10))
def test_stop_sequences_as_the_reference_finds_them(data: st.DataObject, text: str) -> None:
    options = SearchOptions(
        max_new_tokens=data.draw(st.integers(1, 12)),
        constraints=Constraints(
            stop_sequences=tuple(data.draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3))),
            include_stop_sequence=data.draw(st.booleans()),
            prefix=tuple(data.draw(st.lists(st.integers(1, 3), max_size=3))),
        ),
    )
    check(run(search(options, 27), spell(text)), spell(text), options, 0)


def test_greedy_takes_the_best_token_until_the_end_token() -> None:
    made = run(search(SearchOptions(10), 27), spell("dog"))
    assert made.hypothesis.ids == ids_of("dog")
    assert made.hypothesis.reason is FinishReason.EOS
    assert made.hypothesis.log_probabilities == pytest.approx([math.log(8 / 34)] * 4)
    assert made.hypothesis.score == pytest.approx(4 * math.log(8 / 34))
    assert made.steps == 4
    assert made.rows == [1] * 4


@pytest.mark.parametrize(
    ("most", "reason"), [(2, FinishReason.LENGTH), (3, FinishReason.LENGTH), (4, FinishReason.EOS)]
)
def test_the_maximum_ends_a_hypothesis_without_a_look_at_what_would_come(most: int, reason: FinishReason) -> None:
    made = run(search(SearchOptions(most), 27), spell("dog"))
    assert made.hypothesis.ids == ids_of("dog")[:most]
    assert made.hypothesis.reason is reason
    assert len(made.hypothesis.log_probabilities) == made.steps == min(most, 4)


def test_minimum_and_maximum_can_be_the_same() -> None:
    options = SearchOptions(5, constraints=Constraints(min_new_tokens=5))
    made = run(search(options, 27), spell("dog"))
    assert len(made.hypothesis.ids) == 5
    assert made.hypothesis.reason is FinishReason.LENGTH


def test_plain_greedy_search_demands_the_same_object_every_time() -> None:
    made = run(search(SearchOptions(10), 27), spell("dogs"))
    assert len({id(step_requests[0]) for step_requests in made.step_requests}) == 1
    assert made.step_requests[0][0].candidates == 1
    assert made.step_requests[0][0].edits is None


def test_a_forced_prefix_is_fed_without_scores() -> None:
    options = SearchOptions(10, constraints=Constraints(prefix=tuple(ids_of("cat")), min_new_tokens=1))
    made = run(search(options, 27), spell("cattle"))
    assert made.hypothesis.ids == ids_of("cattle")
    assert made.hypothesis.prefix == 3
    assert len(made.hypothesis.log_probabilities) == 4  # of "tle" and the end token
    assert [step_requests[0].candidates for step_requests in made.step_requests] == [0, 0, 0, 1, 1, 1, 1]
    assert made.events[0] == [Progress(ids_of("cat"), [])]
    assert [event for events in made.events[1:3] for event in events] == []


@pytest.mark.parametrize(("bias", "text", "first"), [(0.9, "xyz", 0.1 * 1 / 34 + 0.9), (0.01, "dog", 0.99 * 8 / 34)])
def test_a_soft_prefix_is_generated_or_left(bias: float, text: str, first: float) -> None:
    options = SearchOptions(3, constraints=Constraints(prefix=tuple(ids_of("xyz")), prefix_bias=bias))
    made = run(search(options, 27), spell("dog"))
    assert made.hypothesis.ids == ids_of(text)
    assert made.hypothesis.prefix == 0
    assert made.hypothesis.log_probabilities[0] == pytest.approx(math.log(first), abs=1e-6)


def test_top_tokens_tell_of_each_place_the_end_tokens_too() -> None:
    options = SearchOptions(10, log_probabilities=True, top_tokens=3)
    made = run(search(options, 27), spell("ab"))
    best, other = math.log(8 / 34), math.log(1 / 34)
    for place, ids in zip(made.hypothesis.alternatives, ([1, 0, 2], [2, 0, 1], [0, 1, 2]), strict=True):
        assert [choice.id for choice in place] == ids
        assert [choice.log_probability for choice in place] == pytest.approx([best, other, other], abs=1e-6)


def test_what_is_forbidden_is_no_alternative() -> None:
    options = SearchOptions(2, top_tokens=5, constraints=Constraints(vocabulary=(0, 1, 2), suppressed=(0,)))
    made = run(search(options, 27), spell("ab"))
    assert [[choice.id for choice in place] for place in made.hypothesis.alternatives] == [[1, 2], [2, 1]]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_alternative_begins_with_a_worse_token_and_goes_on_with_the_best(rank: int) -> None:
    options = SearchOptions(4, alternatives=True, constraints=Constraints(prefix=(5,)))

    def script(so_far: tuple[int, ...]) -> list[float]:
        return [0.5, 4.0, 3.0, 2.0, 1.0] + [0.1] * 22

    made = run(search(options, 27, rank), script)
    assert made.hypothesis.ids == [5, rank + 1, 1, 1, 1]
    assert [step_requests[0].candidates for step_requests in made.step_requests] == [0, rank + 1, 1, 1, 1]


def test_no_token_for_an_alternative_is_a_dead_end() -> None:
    options = SearchOptions(4, alternatives=True, constraints=Constraints(vocabulary=(0, 3)))
    assert run(search(options, 27, 1), spell("cat")).hypothesis.ids == []
    made = run(search(options, 27, 2), spell("cat"))
    assert made.hypothesis.reason is FinishReason.DEAD_END
    assert made.hypothesis.log_probabilities == []


@pytest.mark.parametrize("sampling", [None, SamplingOptions(3), SamplingOptions(3, temperature=0.5, typical_p=0.5)])
@pytest.mark.parametrize("top_tokens", [0, 3])
def test_a_hypothesis_without_a_possible_token_is_at_a_dead_end(
    sampling: SamplingOptions | None, top_tokens: int
) -> None:
    constraints = Constraints(vocabulary=(0, 1, 2), no_repeat_ngram_size=1, min_new_tokens=9)
    options = SearchOptions(
        9, sampling=sampling, constraints=constraints, log_probabilities=True, top_tokens=top_tokens
    )
    made = run(search(options, 27), spell("abc"))
    assert sorted(made.hypothesis.ids) == [1, 2]
    assert made.hypothesis.reason is FinishReason.DEAD_END
    assert len(made.hypothesis.log_probabilities) == 2
    assert made.steps == 3


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingOptions(11),
        SamplingOptions(11, top_p=0.97),
        SamplingOptions(11, temperature=1.5, min_p=0.01),
        SamplingOptions(11, typical_p=0.95),
        SamplingOptions(11, top_k=100),
    ],
)
def test_a_seed_gives_the_same_whatever_candidates_are_delivered(sampling: SamplingOptions) -> None:
    options = SearchOptions(20, sampling=sampling, log_probabilities=True, constraints=Constraints(min_new_tokens=20))
    script = random_model(5, 700, 1.5)
    answers = []
    for delivered in (0, 65, 200, 699, 700):
        made = run(search(options, 700), script, delivered=delivered)
        answers.append(made.hypothesis)
        assert (made.repeated == 0) or delivered < 512
    assert len(answers[0].ids) == 20
    assert all(answer == answers[0] for answer in answers)
    other = run(search(replace(options, sampling=replace(sampling, seed=12)), 700), script).hypothesis
    another = run(search(options, 700, 1), script).hypothesis
    assert len({tuple(answer.ids) for answer in (answers[0], other, another)}) == 3


def test_candidates_grow_where_they_do_not_suffice_and_fall_again() -> None:
    def script(so_far: tuple[int, ...]) -> list[float]:
        best = 1.0 if len(so_far) == 1 else 1e9
        return [1.0, best, *[1.0] * 4998]

    made = run(search(SearchOptions(4, sampling=SamplingOptions(0, top_p=0.5)), 5000), script)
    assert made.repeated == 2
    assert [step_requests[0].candidates for step_requests in made.step_requests] == [64, 4096, 4096, 64]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_log_probabilities_are_those_before_temperature_and_truncation(temperature: float) -> None:
    sampling = SamplingOptions(1, temperature=temperature, top_k=2)
    options = SearchOptions(5, sampling=sampling, log_probabilities=True)
    made = run(search(options, 27), spell("abcdefgh"))
    assert made.step_requests[0][0].untempered
    for told in made.hypothesis.log_probabilities:
        assert min(abs(told - math.log(8 / 34)), abs(told - math.log(1 / 34))) < 1e-6
    untold = run(search(replace(options, log_probabilities=False), 27), spell("abcdefgh"))
    assert not untold.step_requests[0][0].untempered
    assert untold.hypothesis.ids == made.hypothesis.ids
    assert untold.hypothesis.log_probabilities == []
    assert untold.hypothesis.score == 0


def test_a_soft_prefix_outside_the_candidates_is_told_at_temperature_1_too() -> None:
    """The bias makes it the best at the temperature, but not at temperature 1."""
    sampling = SamplingOptions(1, temperature=4.0, top_k=1)
    constraints = Constraints(prefix=(20,), prefix_bias=0.3)
    options = SearchOptions(1, sampling=sampling, constraints=constraints, top_tokens=1)
    made = run(search(options, 27), spell("a", weight=81))
    assert made.step_requests[0][0].candidates == 1
    assert made.hypothesis.ids == [20]
    assert made.hypothesis.log_probabilities == pytest.approx([math.log(0.7 / 107 + 0.3)], abs=1e-6)
    assert [choice.id for choice in made.hypothesis.alternatives[0]] == [1]


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("sampling", [None, SamplingOptions(3)])
def test_it_can_be_stopped_at_any_moment(after: int, sampling: SamplingOptions | None) -> None:
    options = SearchOptions(10, sampling=sampling, constraints=Constraints(prefix=tuple(ids_of("do"))))
    script = spell("doggone", weight=1e6)
    made = run(search(options, 27), script, stop_after=after)
    generated = max(after - 2, 0)
    assert made.hypothesis.ids == ids_of("doggone")[: 2 + generated]
    assert made.hypothesis.prefix == 2
    assert made.hypothesis.reason is FinishReason.TIME_LIMIT
    assert len(made.hypothesis.log_probabilities) == generated
    told = [event for events in made.events for event in events]
    assert [index for event in told if isinstance(event, Progress) for index in event.ids] == made.hypothesis.ids


def test_stopping_what_is_over_changes_nothing() -> None:
    over = search(SearchOptions(10), 27)
    made = run(over, spell("dog"))
    over.stop(FinishReason.CANCELLED)
    assert over.hypotheses() == made.hypotheses
    assert made.hypothesis.reason is FinishReason.EOS


@pytest.mark.parametrize("prefix", ["", "do"])
@pytest.mark.parametrize("sampling", [None, SamplingOptions(3, temperature=0.9)])
def test_progress_tells_everything_once_the_prefix_by_itself(prefix: str, sampling: SamplingOptions | None) -> None:
    options = SearchOptions(
        10,
        sampling=sampling,
        top_tokens=2,
        log_probabilities=True,
        constraints=Constraints(prefix=tuple(ids_of(prefix))),
    )
    made = run(search(options, 27, 0 if sampling is None else 4), spell("doggone", weight=500.0))
    events = [event for events in made.events for event in events if isinstance(event, Progress)]
    answer = made.hypothesis
    assert {event.hypothesis for event in events} == {0 if sampling is None else 4}
    if prefix:
        assert events[0].ids == ids_of(prefix)
        assert (events[0].log_probabilities, events[0].alternatives) == ([], [])
    assert [index for event in events for index in event.ids] == answer.ids
    generated = len(answer.ids) - len(prefix)
    assert [one for event in events for one in event.log_probabilities] == answer.log_probabilities[:generated]
    assert [one for event in events for one in event.alternatives] == answer.alternatives[:generated]
    assert all(len(event.ids) == len(event.log_probabilities) for event in events[bool(prefix) :])
    assert len(events) == generated + bool(prefix)  # each token as soon as it was decided
    assert isinstance(answer.alternatives[0][0], TokenChoice)


def test_a_stop_sequence_ends_the_hypothesis_with_the_token_that_completes_it() -> None:
    options = SearchOptions(10, log_probabilities=True, constraints=Constraints(stop_sequences=("gg",)))
    made = run(search(options, 27), spell("doggone"))
    assert made.hypothesis.ids == ids_of("dogg")
    assert made.hypothesis.characters == 2
    assert made.hypothesis.reason is FinishReason.STOP_SEQUENCE
    assert len(made.hypothesis.log_probabilities) == 4
    assert [event.ids for events in made.events for event in events if isinstance(event, Progress)] == [
        [index] for index in ids_of("dogg")
    ]


BYTES = [f"<0x{byte:02X}>" for byte in "é".encode()]


def byte_search(options: SearchOptions) -> tuple[SingleHypothesisSearch, Callable[[tuple[int, ...]], list[float]]]:
    """Over a model that writes x and é, spelled in bytes, and then the end token."""
    made = Tokenizer(models.WordLevel({token: n for n, token in enumerate(["</s>", "x", *BYTES])}, "</s>"))
    made.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(["</s>"])
    stops = StopTracker(TargetDecoder(made), options.constraints)
    written = [1, 2, 3, END]

    def script(so_far: tuple[int, ...]) -> list[float]:
        return [9.0 if token == written[len(so_far)] else 1.0 for token in range(4)]

    return SingleHypothesisSearch(options, END, 4, TokenRules(options.constraints, END), stops), script


@pytest.mark.parametrize(("most", "after"), [(9, None), (3, None), (9, 3)], ids=["end token", "length", "time limit"])
def test_text_that_is_certain_at_the_end_only_may_complete_a_stop_sequence(most: int, after: int | None) -> None:
    options = SearchOptions(most, log_probabilities=True, top_tokens=1, constraints=Constraints(stop_sequences=("xé",)))
    made = run(*byte_search(options), stop_after=after)
    assert made.hypothesis.ids == [1, 2, 3]
    assert made.hypothesis.reason is FinishReason.STOP_SEQUENCE
    assert made.hypothesis.characters == 0
    # Where the model produced the end token, it is no part of the hypothesis.
    assert len(made.hypothesis.log_probabilities) == len(made.hypothesis.alternatives) == 3


def test_other_text_at_the_end_completes_nothing() -> None:
    made = run(*byte_search(SearchOptions(9, constraints=Constraints(stop_sequences=("éx",)))))
    assert made.hypothesis.reason is FinishReason.EOS
    assert made.hypothesis.characters is None
    assert len(made.hypothesis.log_probabilities) == 4
