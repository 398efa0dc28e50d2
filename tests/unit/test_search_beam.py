"""Beam search on models whose probabilities stand in the test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from tokenizers import Tokenizer, decoders, models

from dragoman_server.core.requests import BeamProgress, FinishReason, HypothesisResult, TokenChoice
from dragoman_server.core.search_options import BeamOptions, Constraints, LengthNormalization, SearchOptions
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.decoding.token_rules import TokenRules
from tests.support.scripted_scores import Script, run

PAD, END, A, B, C = range(5)
VOCABULARY = 5
log = math.log
NONE, LENGTH, GNMT = LengthNormalization.NONE, LengthNormalization.LENGTH, LengthNormalization.GNMT


def table(rows: Mapping[tuple[int, ...], Mapping[int, float]], otherwise: Mapping[int, float] | None = None) -> Script:
    """A model of the probabilities that stand there; all others are 0."""

    def probabilities(ids: tuple[int, ...]) -> Sequence[float]:
        row = rows[ids] if otherwise is None else rows.get(ids, otherwise)
        assert math.isclose(sum(row.values()), 1.0)
        return [row.get(token, 0.0) for token in range(VOCABULARY)]

    return probabilities


def decoder(*after: decoders.Decoder) -> TargetDecoder:
    """A, B and C are a letter each."""
    tokenizer = Tokenizer(models.WordLevel({"<pad>": PAD, "</s>": END, "a": A, "b": B, "c": C}, "<pad>"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), *after])
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    return TargetDecoder(tokenizer)


def search(options: SearchOptions, rank: int = 0) -> BeamSearch:
    constraints = options.constraints
    stops = StopTracker(decoder(), constraints) if constraints.stop_sequences else None
    return BeamSearch(options, END, VOCABULARY, TokenRules(constraints, END), stops, rank)


def ids(results: Sequence[HypothesisResult]) -> list[list[int]]:
    return [result.ids for result in results]


SHORT_OR_LONG = table(
    {
        (): {END: 0.4, A: 0.6},
        (A,): {B: 0.8, C: 0.2},
        (A, B): {END: 0.8, C: 0.2},
    },
    otherwise={C: 1.0},
)


@pytest.mark.parametrize(
    ("normalization", "length_penalty", "best", "score"),
    [
        (NONE, 1.0, [], log(0.4)),
        (LENGTH, 0.0, [], log(0.4)),
        (LENGTH, 1.0, [A, B], log(0.6 * 0.8 * 0.8) / 3),
        (LENGTH, 0.1, [A, B], log(0.6 * 0.8 * 0.8) / 3**0.1),
        (LENGTH, -1.0, [], log(0.4)),
        (GNMT, 1.0, [A, B], log(0.6 * 0.8 * 0.8) / (8 / 6)),
    ],
)
def test_the_short_hypothesis_finishes_first_and_the_better_one_wins(
    normalization: LengthNormalization, length_penalty: float, best: list[int], score: float
) -> None:
    made = run(search(SearchOptions(4, beam=BeamOptions(2, normalization, length_penalty))), SHORT_OR_LONG)
    assert made.hypothesis.ids == best
    assert made.hypothesis.reason is FinishReason.EOS
    assert made.hypothesis.score == pytest.approx(score, abs=1e-6)


def test_the_end_token_may_come_first() -> None:
    script = table({(): {END: 0.9, A: 0.06, B: 0.04}}, otherwise={END: 0.7, C: 0.3})
    made = run(search(SearchOptions(5, beam=BeamOptions(2, NONE))), script)
    assert (made.hypothesis.ids, made.steps) == ([], 1)
    assert made.hypothesis.log_probabilities == pytest.approx([log(0.9)], abs=1e-6)

    # All that runs wants the end token in the second step: both are finished, and none of the others is better.
    made = run(search(SearchOptions(5, 2, BeamOptions(2, NONE))), script)
    assert (ids(made.hypotheses), made.steps) == ([[], [A]], 2)


def test_all_hypotheses_want_the_end_token_at_once_and_the_others_go_on() -> None:
    script = table({(): {A: 0.6, B: 0.4}}, otherwise={END: 0.7, A: 0.2, B: 0.1})
    made = run(search(SearchOptions(3, 2, BeamOptions(2, LENGTH, 3.0))), script)
    assert made.events[1] == [BeamProgress(2, 2, 2)]
    assert ids(made.hypotheses) == [[A, A], [B, A]]  # log(.4 * .2 * .7) / 3^3 > log(.6 * .7) / 2^3


def test_hypotheses_that_descend_from_one() -> None:
    script = table(
        {
            (): {A: 0.5, B: 0.3, C: 0.2},
            (A,): {A: 0.4, B: 0.3, C: 0.3},
            (B,): {A: 0.3, B: 0.3, C: 0.4},
            (C,): {A: 0.5, B: 0.5},
        },
        otherwise={END: 1.0},
    )
    made = run(search(SearchOptions(5, 3, BeamOptions(3, NONE))), script)
    assert ids(made.hypotheses) == [[A, A], [A, B], [A, C]]
    assert made.rows == [1, 3, 3]
    # Two new rows get the begin token's position; then B's and C's rows get A's second one, the first being shared.
    assert made.copied == 2 + 2


UNIFORM = [0.0, 0.0, *[0.1] * 10]  # of ten tokens, without the end token


@pytest.mark.parametrize(
    ("normalization", "length_penalty", "steps"),
    [
        # The sum after t steps is log(.7) + (t - 1) log(.1); the only finished one has log(.3).
        (NONE, 1.0, 2),
        (LENGTH, 0.0, 2),
        (LENGTH, 1.0, 7),  # the first t with sum / 10 <= log(.3)
        (LENGTH, 0.5, 3),  # sum / 10^0.5
        (LENGTH, -1.0, 2),  # sum * (t + 1)
        (GNMT, 1.0, 3),  # sum / (15 / 6)
    ],
)
def test_ends_when_nothing_can_be_better_any_more(
    normalization: LengthNormalization, length_penalty: float, steps: int
) -> None:
    options = SearchOptions(10, beam=BeamOptions(2, normalization, length_penalty))
    made = run(
        BeamSearch(options, END, len(UNIFORM), TokenRules(options.constraints, END), None),
        lambda ids: UNIFORM if ids else [0.0, 0.3, 0.7, *[0.0] * 9],
    )
    assert (made.hypothesis.ids, made.steps) == ([], steps)


def test_as_good_is_not_better() -> None:
    script = table({(): {END: 0.5, A: 0.5}}, otherwise={A: 1.0})
    made = run(search(SearchOptions(9, beam=BeamOptions(2, NONE))), script)
    assert (made.hypothesis.ids, made.steps) == ([], 1)


@pytest.mark.parametrize(
    ("beam", "patience", "count", "steps"),
    [(1, 1.0, 1, 1), (1, 2.4, 1, 2), (1, 2.5, 1, 3), (1, 0.2, 1, 1), (2, 1.0, 1, 2), (2, 0.2, 2, 2), (2, 2.0, 1, 3)],
)
def test_early_stopping_counts_what_has_finished(beam: int, patience: float, count: int, steps: int) -> None:
    # Each step finishes the best hypothesis of each that runs: 1 in the first, then as many as the beam is wide.
    script = table({}, otherwise={END: 0.5, A: 0.3, B: 0.2})
    options = SearchOptions(20, count, BeamOptions(beam, early_stopping=True, patience=patience))
    made = run(search(options), script)
    assert made.steps == steps
    assert len(made.hypotheses) == count
    assert run(search(SearchOptions(20, count, BeamOptions(beam)), 0), script).steps > 10


def test_an_end_token_behind_the_first_ones_is_dropped() -> None:
    script = table({(): {A: 0.4, B: 0.35, END: 0.25}, (A,): {END: 1.0}, (B,): {END: 1.0}})
    made = run(search(SearchOptions(3, 2, BeamOptions(2))), script)
    assert ids(made.hypotheses) == [[A], [B]]
    assert made.events[0] == [BeamProgress(1, 2, 0)]
    made = run(search(SearchOptions(3, 3, BeamOptions(3))), script)
    assert [] in ids(made.hypotheses)


def test_at_the_limit_what_runs_has_finished() -> None:
    script = table({(B,): {C: 1.0}}, otherwise={END: 0.3, A: 0.5, B: 0.2})
    made = run(search(SearchOptions(2, 3, BeamOptions(3))), script)
    assert [(result.ids, result.reason) for result in made.hypotheses] == [
        ([A, A], FinishReason.LENGTH),
        ([B, C], FinishReason.LENGTH),
        ([A], FinishReason.EOS),
    ]
    assert [result.score for result in made.hypotheses] == pytest.approx(
        [log(0.5 * 0.5) / 2, log(0.2 * 1.0) / 2, log(0.5 * 0.3) / 2], abs=1e-6
    )


def test_the_end_token_waits_for_the_minimum() -> None:
    script = table({}, otherwise={END: 0.9, A: 0.06, B: 0.04})
    constraints = Constraints(min_new_tokens=2)
    made = run(search(SearchOptions(5, 2, BeamOptions(2, NONE), constraints=constraints)), script)
    assert ids(made.hypotheses) == [[A, A], [A, B]]
    # Without the end token, A has 6 of 10.
    assert made.hypotheses[0].log_probabilities == pytest.approx([log(0.6), log(0.6), log(0.9)], abs=1e-6)


def test_a_forced_prefix_costs_nothing_and_counts_for_nothing() -> None:
    script = table({(C, C): {A: 0.7, B: 0.3}}, otherwise={END: 0.9, A: 0.1})
    constraints = Constraints(prefix=(C, C), min_new_tokens=1)
    made = run(search(SearchOptions(2, 2, BeamOptions(2), constraints=constraints)), script)
    assert ids(made.hypotheses) == [[C, C, A], [C, C, B]]
    assert [result.prefix for result in made.hypotheses] == [2, 2]
    best = made.hypotheses[0]
    assert best.log_probabilities == pytest.approx([log(0.7), log(0.9)], abs=1e-6)
    assert best.score == pytest.approx(log(0.7 * 0.9) / 2, abs=1e-6)
    assert [[step_request.candidates for step_request in step] for step in made.step_requests[:3]] == [[0], [0], [4]]
    assert made.events[:3] == [[], [], [BeamProgress(1, 2, 0)]]


def test_a_soft_prefix_is_followed_or_left() -> None:
    script = table({(): {A: 0.5, B: 0.49, C: 0.01}}, otherwise={A: 0.6, END: 0.38, B: 0.02})
    constraints = Constraints(prefix=(C, B), prefix_bias=0.5)
    made = run(search(SearchOptions(2, 2, BeamOptions(2, NONE), constraints=constraints)), script)
    # C has .5 * .01 + .5, and B behind it .5 * .02 + .5. What began with A is free of the prefix.
    assert made.hypotheses[0].ids == [C, B]
    assert made.hypotheses[0].log_probabilities == pytest.approx([log(0.505), log(0.51)], abs=1e-6)
    assert made.hypotheses[1].ids == [C, A]
    assert made.hypotheses[1].log_probabilities == pytest.approx([log(0.505), log(0.3)], abs=1e-6)
    left = run(search(SearchOptions(2, 4, BeamOptions(4, NONE), constraints=constraints)), script).hypotheses
    assert left[2].log_probabilities == pytest.approx([log(0.25), log(0.6)], abs=1e-6)


STOPPING = table({(): {A: 0.6, B: 0.4}, (A,): {B: 0.7, C: 0.3}, (B,): {C: 0.9, A: 0.1}}, otherwise={C: 0.9, END: 0.1})


@pytest.mark.parametrize(("include", "characters"), [(False, 0), (True, 2)])
def test_a_stop_sequence_finishes_a_hypothesis(include: bool, characters: int) -> None:
    constraints = Constraints(stop_sequences=("ab",), include_stop_sequence=include)
    made = run(search(SearchOptions(6, 1, BeamOptions(2, NONE), constraints=constraints)), STOPPING)
    result = made.hypothesis
    assert (result.ids, result.reason, result.characters) == ([A, B], FinishReason.STOP_SEQUENCE, characters)
    assert result.log_probabilities == pytest.approx([log(0.6), log(0.7)], abs=1e-6)
    assert result.score == pytest.approx(log(0.6 * 0.7), abs=1e-6)
    assert made.steps == 2, "B C has .36 and can't become more probable than A B with .42"


def test_a_stop_sequence_at_the_limit_is_one() -> None:
    constraints = Constraints(stop_sequences=("b", "cc"))
    made = run(search(SearchOptions(2, 2, BeamOptions(2, NONE), constraints=constraints)), STOPPING)
    assert [(result.ids, result.reason, result.characters) for result in made.hypotheses] == [
        ([A, B], FinishReason.STOP_SEQUENCE, 1),
        ([B], FinishReason.STOP_SEQUENCE, 0),
    ]


def test_a_stop_sequence_behind_the_first_ones_is_dropped() -> None:
    # Of the best four, A is first and C third; B and the end token finish the second and the fourth, which is dropped.
    script = table({(): {A: 0.4, B: 0.3, C: 0.2, END: 0.1}}, otherwise={END: 1.0})
    constraints = Constraints(stop_sequences=("b",))
    made = run(search(SearchOptions(6, 2, BeamOptions(2), constraints=constraints)), script)
    assert made.events[0] == [BeamProgress(1, 2, 1)]
    made = run(search(SearchOptions(6, 1, BeamOptions(1), constraints=constraints)), script)
    assert made.events[0] == [BeamProgress(1, 1, 0)]


def test_only_the_best_two_beams_go_on() -> None:
    # The four best are the end token and the stop sequence of both; their third ones are not looked at.
    script = table(
        {(): {A: 0.5, C: 0.5}, (A,): {END: 0.4, B: 0.35, C: 0.25}, (C,): {END: 0.4, B: 0.35, A: 0.25}},
        otherwise={END: 1.0},
    )
    options = SearchOptions(6, 2, BeamOptions(2, LENGTH, 3.0), constraints=Constraints(stop_sequences=("b",)))
    made = run(search(options), script)
    assert (ids(made.hypotheses), made.steps) == ([[A], [C]], 2)
    made = run(search(replace(options, constraints=Constraints())), script)
    assert (ids(made.hypotheses), made.steps) == ([[A, B], [C, B]], 3)


def test_a_stop_sequence_may_begin_in_the_prefix() -> None:
    constraints = Constraints(stop_sequences=("ab",), prefix=(A,))
    made = run(search(SearchOptions(6, 1, BeamOptions(2, NONE), constraints=constraints)), STOPPING)
    result = made.hypothesis
    assert (result.ids, result.prefix, result.reason, result.characters) == ([A, B], 1, FinishReason.STOP_SEQUENCE, 0)


@pytest.mark.parametrize(("limit", "last"), [(5, END), (2, B)])
def test_a_stop_sequence_that_shows_at_the_end(limit: int, last: int) -> None:
    """Its text is certain only when there is all of it, for a later token might change it."""
    script = table({(): {A: 1.0}, (A,): {B: 1.0}, (A, B): {END: 0.6, C: 0.4}}, otherwise={END: 1.0})
    constraints = Constraints(stop_sequences=("xb",))
    options = SearchOptions(limit, 1, BeamOptions(2, NONE), constraints=constraints)
    stops = StopTracker(decoder(decoders.Replace("a", "x")), constraints)
    made = run(BeamSearch(options, END, VOCABULARY, TokenRules(constraints, END), stops), script)
    result = made.hypothesis
    assert (result.ids, result.reason, result.characters) == ([A, B], FinishReason.STOP_SEQUENCE, 0)
    assert result.log_probabilities == pytest.approx([0.0, 0.0])
    assert result.score == pytest.approx(log(0.6) if last == END else 0.0)


def test_groups_keep_apart() -> None:
    script = table({(): {A: 0.5, B: 0.3, C: 0.2}}, otherwise={END: 1.0})
    for penalty, second in ((0.0, A), (0.4, A), (0.6, B), (9.0, B)):
        beam = BeamOptions(2, NONE, groups=2, diversity_penalty=penalty)
        made = run(search(SearchOptions(4, 2, beam)), script)
        assert made.rows == [1, 2]
        if second == A:  # the second group finds what the first one has found already, and no more
            assert ids(made.hypotheses) == [[A]]
        else:
            assert ids(made.hypotheses) == [[A], [second]]
            assert [result.score for result in made.hypotheses] == pytest.approx([log(0.5), log(0.3)], abs=1e-6)


def test_a_choice_counts_as_often_as_it_was_made() -> None:
    script = table({(): {A: 0.5, B: 0.3, C: 0.2}}, otherwise={A: 0.8, C: 0.2})
    # The penalty of one choice leaves A before B, that of two does not.
    beam = BeamOptions(3, NONE, groups=3, diversity_penalty=0.4)
    made = run(search(SearchOptions(1, 3, beam)), script)
    assert ids(made.hypotheses) == [[A]], "at the limit nothing runs on, so that nothing is penalised"
    made = run(search(SearchOptions(2, 3, beam)), script)
    assert ids(made.hypotheses)[:2] == [[A, A], [B, A]]


def test_a_group_that_is_over_gives_its_rows_back() -> None:
    script = table({(): {A: 0.6, B: 0.4}, (A,): {END: 1.0}, (B,): {B: 0.6, C: 0.4}}, otherwise={B: 0.5, END: 0.5})
    beam = BeamOptions(2, NONE, groups=2, diversity_penalty=1.0)
    made = run(search(SearchOptions(4, 2, beam)), script)
    assert made.rows == [1, 2, 1]
    assert ids(made.hypotheses) == [[A], [B, B]]
    half = search(SearchOptions(4, 2, beam))
    run(half, script, stop_after=2)
    assert half.rows == 1
    made = run(search(SearchOptions(4, 1, beam)), script)
    assert made.rows == [1, 2], "B B has .24 and is no rival of A with .6"
    assert ids(made.hypotheses) == [[A]]


def test_what_a_group_does_not_give_another_may() -> None:
    # The first group gives the empty answer, and finishes A and A A, too; A is the best that the second can give.
    beam = BeamOptions(2, groups=2, diversity_penalty=0.1)
    made = run(search(SearchOptions(4, 2, beam)), table({}, otherwise={END: 0.6, A: 0.4}))
    assert ids(made.hypotheses) == [[], [A]]


def test_coverage_makes_the_better_translation_win() -> None:
    script = table({(): {A: 0.6, B: 0.4}}, otherwise={END: 1.0})
    looks = {(): [0.6, 0.4], (A,): [0.98, 0.02], (B,): [0.1, 0.9]}
    made = run(search(SearchOptions(3, 2, BeamOptions(2, NONE))), script, attention=looks.__getitem__)
    assert ids(made.hypotheses) == [[A], [B]]
    assert not any(step_request.attention for step in made.step_requests for step_request in step)

    beam = BeamOptions(2, NONE, coverage_penalty=1.0)
    made = run(search(SearchOptions(3, 2, beam)), script, attention=looks.__getitem__)
    assert ids(made.hypotheses) == [[B], [A]]
    # Steps of A saw (.6 + .98, .4 + .02) of the source, those of B (.6 + .1, .4 + .9): beyond 1 counts for no more.
    assert [result.score for result in made.hypotheses] == pytest.approx(
        [log(0.4) + log(0.7), log(0.6) + log(0.42)], abs=1e-6
    )


def test_alternatives_at_each_place() -> None:
    constraints = Constraints(suppressed=(PAD,))
    script = table({(): {A: 0.6, B: 0.3, END: 0.1}, (A,): {END: 0.8, C: 0.2}, (B,): {C: 1.0}}, otherwise={END: 1.0})
    options = SearchOptions(4, 2, BeamOptions(2, NONE), constraints=constraints, top_tokens=3)
    best, second = run(search(options), script).hypotheses
    assert (best.ids, second.ids) == ([A], [B, C])
    found = [
        [(choice.id, round(math.exp(choice.log_probability), 5)) for choice in place] for place in best.alternatives
    ]
    assert found == [[(A, 0.6), (B, 0.3), (END, 0.1)], [(END, 0.8), (C, 0.2)]], "what is forbidden is no alternative"
    assert [place[0] for place in second.alternatives] == [
        best.alternatives[0][0],
        TokenChoice(C, 0),
        TokenChoice(END, 0),
    ]
    assert len(run(search(SearchOptions(4, 1, BeamOptions(2))), script).hypothesis.alternatives) == 0


@pytest.mark.parametrize(
    ("rank", "best", "reason"),
    [
        (0, [C, A, C], FinishReason.EOS),
        (1, [C, B], FinishReason.EOS),
        (2, [C], FinishReason.EOS),
        (3, [C], FinishReason.DEAD_END),
        (9, [C], FinishReason.DEAD_END),
    ],
)
def test_a_search_from_another_first_token(rank: int, best: list[int], reason: FinishReason) -> None:
    script = table(
        {(C,): {A: 0.6, B: 0.3, END: 0.1}, (C, A): {C: 0.9, B: 0.1}, (C, B): {END: 0.6, B: 0.4}}, otherwise={END: 1.0}
    )
    options = SearchOptions(5, 4, BeamOptions(2, NONE), constraints=Constraints(prefix=(C,)), alternatives=True)
    made = run(search(options, rank), script)
    assert (made.hypothesis.ids, made.hypothesis.reason) == (best, reason)
    assert made.step_requests[1][0].candidates == min(max(4, rank + 1), VOCABULARY)
    assert all(step_request.candidates == 4 for step in made.step_requests[2:] for step_request in step)


def test_time_is_up() -> None:
    script = table({(): {END: 0.4, A: 0.35, B: 0.25}}, otherwise={A: 0.9, B: 0.1})
    options = SearchOptions(9, 3, BeamOptions(3))
    made = run(search(options), script, stop_after=2)
    assert [(result.ids, result.reason) for result in made.hypotheses] == [
        ([], FinishReason.EOS),
        ([A, A], FinishReason.TIME_LIMIT),
        ([B, A], FinishReason.TIME_LIMIT),
    ], "what has finished goes before what is only begun"
    assert made.hypotheses[1].score == pytest.approx(log(0.35 * 0.9) / 2, abs=1e-6)
    assert len(made.hypotheses[1].log_probabilities) == 2
    assert made.events[-1] == [BeamProgress(2, 0, 1)]

    made = run(search(SearchOptions(9, 1, BeamOptions(3))), script, stop_after=2)
    assert ids(made.hypotheses) == [[]]

    made = run(search(options), script, stop_after=0, reason=FinishReason.CANCELLED)
    assert [(result.ids, result.reason, result.score) for result in made.hypotheses] == [
        ([], FinishReason.CANCELLED, 0.0)
    ]


@pytest.mark.parametrize("after", [0, 1, 2])
def test_time_is_up_within_the_prefix(after: int) -> None:
    options = SearchOptions(9, 2, BeamOptions(2), constraints=Constraints(prefix=(A, B)))
    made = run(search(options), table({}, otherwise={END: 1.0}), stop_after=after)
    assert (made.hypothesis.ids, made.hypothesis.prefix, made.hypothesis.log_probabilities) == ([A, B], 2, [])


def test_groups_that_run_the_same_give_it_once_when_time_is_up() -> None:
    script = table({}, otherwise={A: 0.9, B: 0.1})
    options = SearchOptions(9, 2, BeamOptions(2, groups=2, diversity_penalty=0.1))
    made = run(search(options), script, stop_after=2)
    assert made.rows == [1, 2]
    assert ids(made.hypotheses) == [[A, A]]


def test_nothing_is_left_to_go_on_with() -> None:
    # Each token once: behind all three only the end token is left, which the minimum forbids.
    script = table({}, otherwise={END: 0.1, A: 0.5, B: 0.3, C: 0.1})
    constraints = Constraints(no_repeat_ngram_size=1, min_new_tokens=5)
    made = run(search(SearchOptions(9, 2, BeamOptions(2, NONE), constraints=constraints)), script)
    assert [(result.ids, result.reason) for result in made.hypotheses] == [
        ([A, B, C], FinishReason.DEAD_END),
        ([B, A, C], FinishReason.DEAD_END),
    ]
    assert len(made.hypotheses[0].log_probabilities) == 3
    assert made.hypotheses[0].score == sum(made.hypotheses[0].log_probabilities)


def test_a_dead_end_is_no_answer_where_there_is_another() -> None:
    script = table({(): {A: 0.7, B: 0.3}, (A,): {PAD: 1.0}, (B,): {END: 1.0}})
    constraints = Constraints(suppressed=(PAD,))
    made = run(search(SearchOptions(9, 2, BeamOptions(2, NONE), constraints=constraints)), script)
    assert [(result.ids, result.reason) for result in made.hypotheses] == [([B], FinishReason.EOS)]


def test_what_is_over_is_not_stopped() -> None:
    beam_search = search(SearchOptions(9, 2, BeamOptions(2, NONE), constraints=Constraints(suppressed=(PAD,))))
    made = run(beam_search, table({(): {A: 1.0}}, otherwise={PAD: 1.0}))
    beam_search.stop(FinishReason.CANCELLED)
    assert beam_search.hypotheses() == made.hypotheses
    assert made.hypothesis.reason is FinishReason.DEAD_END


def test_progress_tells_each_step_once() -> None:
    script = table({(): {A: 0.6, B: 0.4}, (A,): {END: 0.8, C: 0.2}, (B,): {C: 0.9, B: 0.1}}, otherwise={END: 1.0})
    beam_search = search(SearchOptions(5, 2, BeamOptions(2, NONE)))
    assert beam_search.progress() == ()
    made = run(beam_search, script)
    assert made.events == [
        [BeamProgress(1, 2, 0)],
        [BeamProgress(2, 2, 1)],
        [BeamProgress(2, 0, 3)],
        [],
    ]
    assert ids(made.hypotheses) == [[A], [B, C]]
