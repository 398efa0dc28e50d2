"""Greedy search with options, samples and alternatives decode as the reference, which sees the whole vocabulary."""

import math
from collections.abc import Sequence
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
from tests.support.scripted_search import END, Run, Script, ids_of, letters_decoder, random_model, run, spell

SIZE = 27
DECODER = letters_decoder()
EOS, LENGTH, STOP, DEAD_END = (
    FinishReason.EOS,
    FinishReason.LENGTH,
    FinishReason.STOP_SEQUENCE,
    FinishReason.DEAD_END,
)
LIKELY, UNLIKELY = math.log(8 / 34), math.log(1 / 34)  # tokens of `spell`


def search(
    options: SearchOptions, size: int = SIZE, index: int = 0, decoder: TargetDecoder = DECODER
) -> SingleHypothesisSearch:
    constraints = options.constraints
    stops = StopTracker(decoder, constraints) if constraints.stop_sequences else None
    return SingleHypothesisSearch(options, END, size, TokenRules(constraints, END), stops, index)


def prefix(text: str, bias: float | None = None, min_new_tokens: int = 0) -> Constraints:
    return Constraints(prefix=tuple(ids_of(text)), prefix_bias=bias, min_new_tokens=min_new_tokens)


def assert_as_reference(played: Run, script: Script, options: SearchOptions, index: int) -> None:
    def forward(rows: Sequence[Sequence[int]]) -> tuple[Matrix, Matrix]:
        return np.log(np.array([script(tuple(ids)) for ids in rows])), np.zeros((len(rows), 1))

    model: Forward = forward
    reference = decode(model, replace(options, num_hypotheses=index + 1), END, DECODER.decode)
    assume(reference.margin > 1e-4)
    assume(len(reference.hypotheses) == index + 1)  # otherwise there are fewer alternatives
    expected, actual = reference.hypotheses[index], played.hypothesis
    assert (actual.ids, actual.reason) == (expected.ids, expected.reason)
    assert (actual.prefix, actual.characters) == (expected.prefix, expected.characters)
    if options.log_probabilities:
        np.testing.assert_allclose(actual.log_probabilities, expected.log_probabilities, atol=1e-4)
        assert actual.score == pytest.approx(expected.score, abs=1e-3)
    assert len(actual.alternatives) == len(expected.alternatives)
    for choices, others in zip(actual.alternatives, expected.alternatives, strict=True):
        assert [choice.id for choice in choices] == [choice.id for choice in others]
        np.testing.assert_allclose(
            [choice.log_probability for choice in choices], [choice.log_probability for choice in others], atol=1e-4
        )


def constraints_of(size: int) -> st.SearchStrategy[Constraints]:
    tokens = st.integers(1, min(size, SIZE) - 1)
    return st.builds(
        Constraints,
        min_new_tokens=st.integers(0, 4),
        prefix=st.lists(tokens, max_size=4).map(tuple),
        prefix_bias=st.none() | st.floats(0.05, 0.95),
        suppressed=st.sets(tokens, max_size=2).map(tuple),
        suppressed_sequences=st.lists(st.lists(tokens, min_size=2, max_size=3).map(tuple), max_size=3).map(tuple),
        repetition_penalty=st.sampled_from([1.0, 1.0, 0.7, 1.5]),
        no_repeat_ngram_size=st.integers(0, 3),
        vocabulary=st.none() | st.sets(tokens, min_size=3).map(lambda ids: tuple(sorted({END, *ids}))),
    )


SAMPLINGS = st.builds(
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
def test_any_options_decode_as_the_reference(
    sampled: bool, data: st.DataObject, seed: int, size: int, index: int
) -> None:
    script = random_model(seed, size, data.draw(st.sampled_from([0.3, 1.5, 4.0])))
    constraints = data.draw(constraints_of(size))
    if not constraints.prefix:
        constraints = replace(constraints, prefix_bias=None)
    options = SearchOptions(
        max_new_tokens=data.draw(st.integers(1, 8)),
        sampling=data.draw(SAMPLINGS) if sampled else None,
        constraints=constraints,
        alternatives=not sampled,
        log_probabilities=data.draw(st.booleans()),
    )
    if options.log_probabilities:
        options = replace(options, top_tokens=data.draw(st.integers(0, 5)))
    played = run(search(options, size, index), script, delivered=data.draw(st.integers(0, size)))
    assert_as_reference(played, script, options, index)


@settings(deadline=None)
@given(data=st.data(), text=st.text("abc", min_size=1, max_size=10))
def test_stop_sequences_end_where_the_reference_finds_them(data: st.DataObject, text: str) -> None:
    options = SearchOptions(
        max_new_tokens=data.draw(st.integers(1, 12)),
        constraints=Constraints(
            stop_sequences=tuple(data.draw(st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3))),
            include_stop_sequence=data.draw(st.booleans()),
            prefix=tuple(data.draw(st.lists(st.integers(1, 3), max_size=3))),
        ),
    )
    assert_as_reference(run(search(options), spell(text)), spell(text), options, 0)


@pytest.mark.parametrize(
    ("options", "spelled", "text", "reason", "generated", "candidates"),
    [
        (SearchOptions(10), "dog", "dog", EOS, 4, [1] * 4),
        (SearchOptions(4), "dog", "dog", EOS, 4, [1] * 4),
        (SearchOptions(3), "dog", "dog", LENGTH, 3, [1] * 3),
        (SearchOptions(2), "dog", "do", LENGTH, 2, [1] * 2),
        (SearchOptions(5, constraints=Constraints(min_new_tokens=5)), "dog", "dogaa", LENGTH, 5, [1] * 5),
        (SearchOptions(10, constraints=prefix("cat", None, 1)), "cattle", "cattle", EOS, 4, [0] * 3 + [1] * 4),
        (SearchOptions(3, constraints=prefix("xyz", 0.9)), "dog", "xyz", LENGTH, 3, [1] * 3),
        (SearchOptions(3, constraints=prefix("xyz", 0.01)), "dog", "dog", LENGTH, 3, [1] * 3),
        (SearchOptions(9, constraints=Constraints(stop_sequences=("gg",))), "doggone", "dogg", STOP, 4, [1] * 4),
        (SearchOptions(9, top_tokens=3), "dog", "dog", EOS, 4, [3] * 4),
    ],
)
def test_greedy_search(
    options: SearchOptions, spelled: str, text: str, reason: FinishReason, generated: int, candidates: list[int]
) -> None:
    played = run(search(options), spell(spelled))
    answer = played.hypothesis
    assert (answer.ids, answer.reason) == (ids_of(text), reason)
    forced = 0 if options.constraints.prefix_bias else len(options.constraints.prefix)
    assert answer.prefix == forced
    assert len(answer.log_probabilities) == generated
    assert played.candidates() == candidates
    assert played.rows == [1] * len(candidates)
    assert answer.characters == (2 if reason is STOP else None)
    # Tokens are reported as soon as they are chosen, a forced prefix by itself.
    expected = [ids_of(text)[:forced]] * bool(forced) + [[token] for token in ids_of(text)[forced:]]
    assert [event.ids for event in played.progress()] == expected


@pytest.mark.parametrize(
    ("bias", "first"), [(None, LIKELY), (0.9, math.log(0.1 / 34 + 0.9)), (0.01, math.log(0.99 * 8 / 34))]
)
def test_log_probabilities_of_greedy_search(bias: float | None, first: float) -> None:
    constraints = Constraints() if bias is None else prefix("xyz", bias)
    answer = run(search(SearchOptions(10, constraints=constraints)), spell("dog")).hypothesis
    assert answer.log_probabilities[0] == pytest.approx(first, abs=1e-6)
    assert answer.score == pytest.approx(sum(answer.log_probabilities))
    if bias is None:
        assert answer.log_probabilities == pytest.approx([LIKELY] * 4)


def test_greedy_search_without_constraints_requests_the_same_object_at_every_step() -> None:
    played = run(search(SearchOptions(10)), spell("dogs"))
    assert len({id(requests[0]) for requests in played.step_requests}) == 1
    assert played.step_requests[0][0].edits is None


def test_top_tokens_are_reported_at_each_position_without_forbidden_ones() -> None:
    alternatives = run(search(SearchOptions(10, top_tokens=3)), spell("ab")).hypothesis.alternatives
    for choices, ids in zip(alternatives, ([1, 0, 2], [2, 0, 1], [0, 1, 2]), strict=True):
        assert [choice.id for choice in choices] == ids
        assert [choice.log_probability for choice in choices] == pytest.approx([LIKELY, UNLIKELY, UNLIKELY], abs=1e-6)
    options = SearchOptions(2, top_tokens=5, constraints=Constraints(vocabulary=(0, 1, 2), suppressed=(0,)))
    alternatives = run(search(options), spell("ab")).hypothesis.alternatives
    assert [[choice.id for choice in choices] for choices in alternatives] == [[1, 2], [2, 1]]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_an_alternative_starts_with_the_token_of_its_rank_and_goes_on_greedily(rank: int) -> None:
    options = SearchOptions(4, alternatives=True, constraints=Constraints(prefix=(5,)))
    played = run(search(options, index=rank), lambda so_far: [0.5, 4.0, 3.0, 2.0, 1.0] + [0.1] * 22)
    assert played.hypothesis.ids == [5, rank + 1, 1, 1, 1]
    assert played.candidates() == [0, rank + 1, 1, 1, 1]


@pytest.mark.parametrize(("rank", "reason", "generated"), [(0, EOS, 2), (1, EOS, 1), (2, DEAD_END, 0)])
def test_an_alternative_without_a_token_of_its_rank_is_a_dead_end(
    rank: int, reason: FinishReason, generated: int
) -> None:
    options = SearchOptions(4, alternatives=True, constraints=Constraints(vocabulary=(0, 3)))
    answer = run(search(options, index=rank), spell("c")).hypothesis
    assert (answer.ids, answer.reason) == ([3] * (generated == 2), reason)
    assert len(answer.log_probabilities) == generated


@pytest.mark.parametrize("sampling", [None, SamplingOptions(3), SamplingOptions(3, temperature=0.5, typical_p=0.5)])
@pytest.mark.parametrize("top_tokens", [0, 3])
def test_a_hypothesis_without_a_possible_token_is_a_dead_end(sampling: SamplingOptions | None, top_tokens: int) -> None:
    constraints = Constraints(vocabulary=(0, 1, 2), no_repeat_ngram_size=1, min_new_tokens=9)
    options = SearchOptions(
        9, sampling=sampling, constraints=constraints, log_probabilities=True, top_tokens=top_tokens
    )
    played = run(search(options), spell("abc"))
    assert sorted(played.hypothesis.ids) == [1, 2]
    assert played.hypothesis.reason is DEAD_END
    assert len(played.hypothesis.log_probabilities) == 2
    assert played.steps == 3


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
def test_a_seed_means_the_same_however_many_candidates_are_delivered(sampling: SamplingOptions) -> None:
    options = SearchOptions(20, sampling=sampling, log_probabilities=True, constraints=Constraints(min_new_tokens=20))
    script = random_model(5, 700, 1.5)
    answers = []
    for delivered in (0, 65, 200, 699, 700):
        played = run(search(options, 700), script, delivered=delivered)
        answers.append(played.hypothesis)
        assert (played.repeated == 0) or delivered < 512
    assert len(answers[0].ids) == 20
    assert all(answer == answers[0] for answer in answers)
    other_seed = run(search(replace(options, sampling=replace(sampling, seed=12)), 700), script).hypothesis
    other_sample = run(search(options, 700, 1), script).hypothesis
    assert len({tuple(answer.ids) for answer in (answers[0], other_seed, other_sample)}) == 3


def test_candidates_grow_where_they_do_not_suffice_and_fall_again() -> None:
    def script(so_far: tuple[int, ...]) -> list[float]:
        return [1.0, 1.0 if len(so_far) == 1 else 1e9, *[1.0] * 4998]

    played = run(search(SearchOptions(4, sampling=SamplingOptions(0, top_p=0.5)), 5000), script)
    assert played.repeated == 2
    assert played.candidates() == [64, 4096, 4096, 64]


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_log_probabilities_are_those_before_temperature_and_truncation(temperature: float) -> None:
    sampling = SamplingOptions(1, temperature=temperature, top_k=2)
    options = SearchOptions(5, sampling=sampling, log_probabilities=True)
    with_them, without = (
        run(search(o), spell("abcdefgh")) for o in (options, replace(options, log_probabilities=False))
    )
    assert with_them.step_requests[0][0].untempered
    for value in with_them.hypothesis.log_probabilities:
        assert min(abs(value - LIKELY), abs(value - UNLIKELY)) < 1e-6
    assert not without.step_requests[0][0].untempered
    assert without.hypothesis.ids == with_them.hypothesis.ids
    assert (without.hypothesis.log_probabilities, without.hypothesis.score) == ([], 0)


def test_the_bias_of_a_soft_prefix_applies_at_temperature_1_to_a_token_that_is_no_candidate() -> None:
    """The bias makes the token the best one at the temperature, but not at temperature 1."""
    options = SearchOptions(
        1,
        sampling=SamplingOptions(1, temperature=4.0, top_k=1),
        constraints=Constraints(prefix=(20,), prefix_bias=0.3),
        top_tokens=1,
    )
    played = run(search(options), spell("a", weight=81))
    assert played.candidates() == [1]
    assert played.hypothesis.ids == [20]
    assert played.hypothesis.log_probabilities == pytest.approx([math.log(0.7 / 107 + 0.3)], abs=1e-6)
    assert [choice.id for choice in played.hypothesis.alternatives[0]] == [1]


@pytest.mark.parametrize("after", range(6))
@pytest.mark.parametrize("sampling", [None, SamplingOptions(3)])
def test_a_search_can_be_stopped_after_any_step(after: int, sampling: SamplingOptions | None) -> None:
    options = SearchOptions(10, sampling=sampling, constraints=prefix("do"))
    played = run(search(options), spell("doggone", weight=1e6), stop_after=after)
    generated = max(after - 2, 0)
    answer = played.hypothesis
    assert (answer.ids, answer.reason) == (ids_of("doggone")[: 2 + generated], FinishReason.TIME_LIMIT)
    assert (answer.prefix, len(answer.log_probabilities)) == (2, generated)
    assert [token for event in played.progress() for token in event.ids] == answer.ids


def test_stopping_a_search_that_is_over_changes_nothing() -> None:
    over = search(SearchOptions(10))
    played = run(over, spell("dog"))
    over.stop(FinishReason.CANCELLED)
    assert over.hypotheses() == played.hypotheses
    assert played.hypothesis.reason is EOS


@pytest.mark.parametrize("forced", ["", "do"])
@pytest.mark.parametrize(("sampling", "index"), [(None, 0), (SamplingOptions(3, temperature=0.9), 4)])
def test_progress_adds_up_to_the_answer(forced: str, sampling: SamplingOptions | None, index: int) -> None:
    options = SearchOptions(10, sampling=sampling, top_tokens=2, log_probabilities=True, constraints=prefix(forced))
    played = run(search(options, index=index), spell("doggone", weight=500.0))
    events, answer = played.progress(index), played.hypothesis
    assert events == played.progress()
    if forced:
        assert events[0] == Progress(ids_of(forced), [], [], index)
    assert [token for event in events for token in event.ids] == answer.ids
    generated = len(answer.ids) - len(forced)
    assert [value for event in events for value in event.log_probabilities] == answer.log_probabilities[:generated]
    assert [choices for event in events for choices in event.alternatives] == answer.alternatives[:generated]
    assert all(len(event.ids) == len(event.log_probabilities) for event in events[bool(forced) :])
    assert len(events) == generated + bool(forced)
    assert isinstance(answer.alternatives[0][0], TokenChoice)


def bytes_decoder() -> TargetDecoder:
    """Tokens 1 to 3 are x and the two bytes of é, whose text is certain only when no other byte follows."""
    tokens = ["</s>", "x", *(f"<0x{byte:02X}>" for byte in "é".encode())]
    tokenizer = Tokenizer(models.WordLevel({token: n for n, token in enumerate(tokens)}, "</s>"))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["</s>"])
    return TargetDecoder(tokenizer)


@pytest.mark.parametrize(
    ("stop", "max_new_tokens", "after", "reason", "characters", "generated"),
    [
        ("xé", 9, None, STOP, 0, 3),  # an end token is then no part of the hypothesis
        ("xé", 3, None, STOP, 0, 3),
        ("xé", 9, 3, STOP, 0, 3),
        ("éx", 9, None, EOS, None, 4),
    ],
)
def test_text_that_is_certain_only_at_the_end_may_complete_a_stop_sequence(
    stop: str, max_new_tokens: int, after: int | None, reason: FinishReason, characters: int | None, generated: int
) -> None:
    constraints = Constraints(stop_sequences=(stop,))
    options = SearchOptions(max_new_tokens, log_probabilities=True, top_tokens=1, constraints=constraints)
    spelled = [1, 2, 3, END]
    played = run(
        search(options, 4, decoder=bytes_decoder()),
        lambda so_far: [9.0 if token == spelled[len(so_far)] else 1.0 for token in range(4)],
        stop_after=after,
    )
    answer = played.hypothesis
    assert (answer.ids, answer.reason, answer.characters) == ([1, 2, 3], reason, characters)
    assert len(answer.log_probabilities) == len(answer.alternatives) == generated
