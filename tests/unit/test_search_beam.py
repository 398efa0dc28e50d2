"""Beam search and its scores, on models with a few probabilities."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models

from dragoman_server.core.requests import BeamProgress, FinishReason, TokenChoice
from dragoman_server.core.search_options import (
    BeamOptions,
    Constraints,
    LengthNormalization,
    SearchOptions,
    Stopping,
)
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.beam_plan import BeamPlan
from dragoman_server.decoding.hypothesis_score import HypothesisScore
from dragoman_server.decoding.stop_sequences import StopTracker
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.decoding.token_rules import TokenRules
from tests.support import scripted_search
from tests.support.scripted_search import Run, Script, run

PAD, END, A, B, C = range(5)
VOCABULARY = 5
NONE, LENGTH, GNMT = LengthNormalization.NONE, LengthNormalization.LENGTH, LengthNormalization.GNMT
NO_PAD = Constraints(suppressed=(PAD,))
EOS, CUT, STOP, DEAD_END = (
    FinishReason.EOS,
    FinishReason.LENGTH,
    FinishReason.STOP_SEQUENCE,
    FinishReason.DEAD_END,
)
log = math.log


def table(rows: dict[tuple[int, ...], dict[int, float]], otherwise: dict[int, float] | None = None) -> Script:
    return scripted_search.table(rows, otherwise, size=VOCABULARY)


def decoder(*steps: decoders.Decoder) -> TargetDecoder:
    tokenizer = Tokenizer(models.WordLevel({"<pad>": PAD, "</s>": END, "a": A, "b": B, "c": C}, "<pad>"))
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), *steps])
    tokenizer.add_special_tokens(["<pad>", "</s>"])
    return TargetDecoder(tokenizer)


def search(options: SearchOptions, rank: int = 0, text: TargetDecoder | None = None) -> BeamSearch:
    constraints = options.constraints
    stops = StopTracker(text or decoder(), constraints) if constraints.stop_sequences else None
    return BeamSearch(
        BeamPlan(options, END, VOCABULARY, rank), TokenRules(constraints, END, options.conventions), stops
    )


def decode(script: Script, options: SearchOptions) -> Run:
    return run(search(options), script)


@pytest.mark.parametrize(
    ("normalization", "length_penalty", "divisor"),
    [
        (NONE, 3.0, 1.0),
        (LENGTH, 0.0, 1.0),
        (LENGTH, 1.0, 4.0),
        (LENGTH, 2.0, 16.0),
        (LENGTH, 0.5, 2.0),
        (LENGTH, -1.0, 0.25),
        (GNMT, 1.0, 1.5),
        (GNMT, 2.0, 2.25),
        (GNMT, 0.0, 1.0),
    ],
)
def test_length_divisors(normalization: LengthNormalization, length_penalty: float, divisor: float) -> None:
    score = HypothesisScore(BeamOptions(1, normalization, length_penalty), 9)
    assert score.divisor(4) == pytest.approx(divisor, rel=1e-15)
    assert score.score(-3.0, 4, None) == pytest.approx(-3.0 / divisor, rel=1e-15)
    assert score.score(0.0, 0, None) == 0.0, "nothing generated has no length"


@pytest.mark.parametrize("length_penalty", [1e9, 700.0, -700.0, -1e9])
@pytest.mark.parametrize("normalization", [LENGTH, GNMT])
def test_no_length_penalty_overflows(normalization: LengthNormalization, length_penalty: float) -> None:
    score = HypothesisScore(BeamOptions(1, normalization, length_penalty), 1000)
    for length in (1, 2, 999, 1000):
        assert score.score(-20.0, length, None) <= 0.0
        assert score.upper_bound(-20.0, length - 1, None) <= 0.0
        assert score.score(0.0, length, None) == 0.0


def test_coverage_counts_up_to_1() -> None:
    score = HypothesisScore(BeamOptions(1, NONE, coverage_penalty=2.0), 5)
    assert score.score(-1.0, 3, np.array([0.5, 1.0, 1.5])) == pytest.approx(-1.0 + 2 * log(0.5))
    assert -1000 < score.score(-1.0, 3, np.array([0.0, 3.0])) < -100, "no attention at all is bad but finite"


@pytest.mark.parametrize("coverage_penalty", [0.0, 0.4, -0.4])
@pytest.mark.parametrize(
    ("normalization", "length_penalty"),
    [(NONE, 1.0), (LENGTH, 0.0), (LENGTH, 1.3), (LENGTH, -1.3), (GNMT, 1), (GNMT, -1)],
)
def test_the_upper_bound_is_the_best_of_all_ends(
    normalization: LengthNormalization, length_penalty: float, coverage_penalty: float
) -> None:
    score = HypothesisScore(BeamOptions(1, normalization, length_penalty, coverage_penalty), 8)
    coverage = np.array([0.2, 0.9, 1.4])
    # At best the sum stays as it is; the coverage term stays as it is, or becomes 0.
    ends = [score.score(-2.5, length, covered) for length in range(5, 9) for covered in (coverage, np.ones(3))]
    assert score.upper_bound(-2.5, 4, coverage) == pytest.approx(max(ends), rel=1e-12)


SHORT_OR_LONG = table({(): {END: 0.4, A: 0.6}, (A,): {B: 0.8, C: 0.2}, (A, B): {END: 0.8, C: 0.2}}, otherwise={C: 1.0})


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
    answer = decode(SHORT_OR_LONG, SearchOptions(4, beam=BeamOptions(2, normalization, length_penalty))).hypothesis
    assert (answer.ids, answer.reason) == (best, EOS)
    assert answer.score == pytest.approx(score, abs=1e-6)


ONE_PARENT = table(
    {
        (): {A: 0.5, B: 0.3, C: 0.2},
        (A,): {A: 0.4, B: 0.3, C: 0.3},
        (B,): {A: 0.3, B: 0.3, C: 0.4},
        (C,): {A: 0.5, B: 0.5},
    },
    otherwise={END: 1.0},
)
THREE_TOKENS: dict[tuple[int, ...], dict[int, float]] = {(): {A: 0.5, B: 0.3, C: 0.2}}
STOPPING = table({(): {A: 0.6, B: 0.4}, (A,): {B: 0.7, C: 0.3}, (B,): {C: 0.9, A: 0.1}}, otherwise={C: 0.9, END: 0.1})
# Of the best four, A is first and C third; B and the end token finish the second and the fourth, which is dropped.
FOURTH_END = table({(): {A: 0.4, B: 0.3, C: 0.2, END: 0.1}}, otherwise={END: 1.0})
# The best four are the end token and the stop sequence of both hypotheses; their third ones are not considered.
BOTH_STOP = table(
    {(): {A: 0.5, C: 0.5}, (A,): {END: 0.4, B: 0.35, C: 0.25}, (C,): {END: 0.4, B: 0.35, A: 0.25}}, otherwise={END: 1.0}
)
GROUP_ENDS = table({(): {A: 0.6, B: 0.4}, (A,): {END: 1.0}, (B,): {B: 0.6, C: 0.4}}, otherwise={B: 0.5, END: 0.5})
STOP_B = Constraints(stop_sequences=("b",))
SOFT = Constraints(prefix=(C, B), prefix_bias=0.5)
ONCE = Constraints(no_repeat_ngram_size=1, min_new_tokens=5)  # each token once, and no end token after all of them
WIDE, TWO_GROUPS = BeamOptions(2, LENGTH, 3.0), BeamOptions(2, NONE, groups=2, diversity_penalty=0.6)
OPTIONS = {
    "the end token first": SearchOptions(5, 1, BeamOptions(2, NONE)),
    "one parent": SearchOptions(5, 3, BeamOptions(3, NONE)),
    "as good is not better": SearchOptions(9, 1, BeamOptions(2, NONE)),
    "an end token behind the first ones": SearchOptions(3, 2, BeamOptions(2)),
    "at the limit": SearchOptions(2, 3, BeamOptions(3)),
    "soft prefix": SearchOptions(2, 2, BeamOptions(2, NONE), constraints=SOFT),
    "stop sequence": SearchOptions(6, 1, BeamOptions(2, NONE), constraints=Constraints(stop_sequences=("ab",))),
    "stop sequence at the limit": SearchOptions(
        2, 2, BeamOptions(2, NONE), constraints=Constraints(stop_sequences=("b", "cc"))
    ),
    "stop sequence among the first ones": SearchOptions(6, 2, BeamOptions(2), constraints=STOP_B),
    "stop sequence behind the first ones": SearchOptions(6, 1, BeamOptions(1), constraints=STOP_B),
    "2 * beam_size candidates": SearchOptions(6, 2, WIDE, constraints=STOP_B),
    "2 * beam_size candidates, no stop": SearchOptions(6, 2, WIDE),
    "groups": SearchOptions(4, 2, TWO_GROUPS),
    "a group that is over": SearchOptions(4, 2, replace(TWO_GROUPS, diversity_penalty=1.0)),
    "groups at the limit": SearchOptions(1, 3, BeamOptions(3, NONE, groups=3, diversity_penalty=0.4)),
    "no continuation": SearchOptions(9, 2, BeamOptions(2, NONE), constraints=ONCE),
}


@pytest.mark.parametrize(
    ("name", "script", "endings", "scores", "steps", "rows", "first_event"),
    [
        ("the end token first", table({(): {END: 0.9, A: 0.06, B: 0.04}}), "-", [0.9], 1, [1], (0, 0, 1)),
        ("one parent", ONE_PARENT, "aa- ab- ac-", [0.2, 0.15, 0.15], 3, [1, 3, 3], (1, 3, 0)),
        ("as good is not better", table({(): {END: 0.5, A: 0.5}}), "-", [0.5], 1, [1], (0, 0, 1)),
        (
            "an end token behind the first ones",
            table({(): {A: 0.4, B: 0.35, END: 0.25}}, otherwise={END: 1.0}),
            "a- b-", [0.4**0.5, 0.35**0.5], 2, [1, 2], (1, 2, 0),
        ),
        (
            "at the limit",
            table({(B,): {C: 1.0}}, otherwise={END: 0.3, A: 0.5, B: 0.2}),
            "aa bc a-", [0.25**0.5, 0.2**0.5, 0.15**0.5], 2, [1, 2], (1, 2, 1),
        ),
        (  # C has .5 * .01 + .5, and B behind it .5 * .02 + .5.
            "soft prefix",
            table({(): {A: 0.5, B: 0.49, C: 0.01}}, otherwise={A: 0.6, END: 0.38, B: 0.02}),
            "cb ca", [0.505 * 0.51, 0.505 * 0.3], 2, [1, 2], (1, 2, 0),
        ),
        # B C has .36 and cannot become more probable than A B with .42.
        ("stop sequence", STOPPING, "ab!", [0.42], 2, [1, 2], (1, 2, 0)),
        ("stop sequence at the limit", STOPPING, "ab! b!", [0.42, 0.4], 2, [1, 1], (1, 1, 1)),
        ("stop sequence among the first ones", FOURTH_END, "a- c-", [0.4**0.5, 0.2**0.5], 2, [1, 2], (1, 2, 1)),
        ("stop sequence behind the first ones", FOURTH_END, "a-", [0.4**0.5], 2, [1, 1], (1, 1, 0)),
        ("2 * beam_size candidates", BOTH_STOP, "a- c-", [0.2 ** (1 / 8)] * 2, 2, [1, 2], (1, 2, 0)),
        ("2 * beam_size candidates, no stop", BOTH_STOP, "ab- cb-", [0.175 ** (1 / 27)] * 2, 3, [1, 2, 2], (1, 2, 0)),
        ("groups", table(THREE_TOKENS, otherwise={END: 1.0}), "a- b-", [0.5, 0.3], 2, [1, 2], (1, 2, 0)),
        ("a group that is over", GROUP_ENDS, "a- bb-", [0.6, 0.12], 3, [1, 2, 1], (1, 2, 0)),
        # Nothing runs on, so nothing is penalized.
        ("groups at the limit", table(THREE_TOKENS), "a", [0.5], 1, [1], (0, 0, 3)),
        (
            "no continuation",
            table({}, otherwise={END: 0.1, A: 0.5, B: 0.3, C: 0.1}),
            "abc? bac?", [0.5 / 0.9 * 0.75, 0.3 / 0.9 * 0.5 / 0.6], 4, [1, 2, 2, 2], (1, 2, 0),
        ),
    ],
)  # fmt: skip
def test_beam_search(
    name: str,
    script: Script,
    endings: str,
    scores: list[float],
    steps: int,
    rows: list[int],
    first_event: tuple[int, int, int],
) -> None:
    """The mark after a hypothesis is why it ended: - end token, ! stop sequence, ? dead end, none for the limit."""
    played = decode(script, OPTIONS[name])
    marks = {EOS: "-", STOP: "!", DEAD_END: "?", CUT: ""}
    texts = ["".join(" -abc"[token] for token in ids) + marks[reason] for ids, reason in played.endings()]
    assert " ".join(texts) == endings
    assert [answer.score for answer in played.hypotheses] == pytest.approx([log(score) for score in scores], abs=1e-6)
    assert (played.steps, played.rows) == (steps, rows)
    assert played.events[0] == [BeamProgress(*first_event)]


def test_rows_of_one_parent_copy_only_what_differs() -> None:
    # Two new rows get the begin token's position; then B's and C's rows get A's second one, the first being shared.
    assert decode(ONE_PARENT, SearchOptions(5, 3, BeamOptions(3, NONE))).copied == 2 + 2


@pytest.mark.parametrize(
    ("normalization", "length_penalty", "steps"),
    [
        # The sum after t steps is log(.7) + (t - 1) log(.1); the only finished hypothesis has log(.3).
        (NONE, 1.0, 2),
        (LENGTH, 0.0, 2),
        (LENGTH, 1.0, 7),  # the first t with sum / 10 <= log(.3)
        (LENGTH, 0.5, 3),  # sum / 10^0.5
        (LENGTH, -1.0, 2),  # sum * (t + 1)
        (GNMT, 1.0, 3),  # sum / (15 / 6)
    ],
)
def test_a_search_ends_when_nothing_can_become_better(
    normalization: LengthNormalization, length_penalty: float, steps: int
) -> None:
    options = SearchOptions(10, beam=BeamOptions(2, normalization, length_penalty))
    played = run(
        BeamSearch(BeamPlan(options, END, 12), TokenRules(options.constraints, END), None),
        lambda ids: [0.0, 0.0, *[0.1] * 10] if ids else [0.0, 0.3, 0.7, *[0.0] * 9],
    )
    assert (played.hypothesis.ids, played.steps) == ([], steps)


@pytest.mark.parametrize(
    ("beam", "patience", "count", "steps"),
    [(1, 1.0, 1, 1), (1, 2.4, 1, 2), (1, 2.5, 1, 3), (1, 0.2, 1, 1), (2, 1.0, 1, 2), (2, 0.2, 2, 2), (2, 2.0, 1, 3)],
)
def test_early_stopping_counts_finished_hypotheses(beam: int, patience: float, count: int, steps: int) -> None:
    # Each step finishes the best continuation of each hypothesis: 1 in the first, then `beam`.
    script = table({}, otherwise={END: 0.5, A: 0.3, B: 0.2})
    played = decode(script, SearchOptions(20, count, BeamOptions(beam, stopping=Stopping.EARLY, patience=patience)))
    assert (played.steps, len(played.hypotheses)) == (steps, count)
    assert decode(script, SearchOptions(20, count, BeamOptions(beam))).steps > 10


def test_a_forced_prefix_has_no_scores_and_no_length() -> None:
    options = SearchOptions(2, 2, BeamOptions(2), constraints=Constraints(prefix=(C, C), min_new_tokens=1))
    played = decode(table({(C, C): {A: 0.7, B: 0.3}}, otherwise={END: 0.9, A: 0.1}), options)
    assert played.ids() == [[C, C, A], [C, C, B]]
    best = played.hypotheses[0]
    assert [result.prefix for result in played.hypotheses] == [2, 2]
    assert best.log_probabilities == pytest.approx([log(0.7), log(0.9)], abs=1e-6)
    assert best.score == pytest.approx(log(0.7 * 0.9) / 2, abs=1e-6)
    assert played.candidates()[:3] == [0, 0, 4]
    assert played.events[:3] == [[], [], [BeamProgress(1, 2, 0)]]


def test_a_hypothesis_that_leaves_the_soft_prefix_is_free_of_it() -> None:
    script = table({(): {A: 0.5, B: 0.49, C: 0.01}}, otherwise={A: 0.6, END: 0.38, B: 0.02})
    third = decode(script, SearchOptions(2, 4, BeamOptions(4, NONE), constraints=SOFT)).hypotheses[2]
    assert third.log_probabilities == pytest.approx([log(0.25), log(0.6)], abs=1e-6)


@pytest.mark.parametrize(
    ("constraints", "characters"),
    [
        (Constraints(stop_sequences=("ab",)), 0),
        (Constraints(stop_sequences=("ab",), include_stop_sequence=True), 2),
        (Constraints(stop_sequences=("b",)), 1),
        (Constraints(stop_sequences=("ab",), prefix=(A,)), 0),  # it may begin in the prefix
    ],
)
def test_a_stop_sequence_cuts_the_text(constraints: Constraints, characters: int) -> None:
    script = table({(): {A: 1.0}, (A,): {B: 0.9, C: 0.1}}, otherwise={C: 0.9, END: 0.1})
    answer = decode(script, SearchOptions(6, 1, BeamOptions(2, NONE), constraints=constraints)).hypothesis
    assert (answer.ids, answer.reason, answer.characters) == ([A, B], STOP, characters)
    assert answer.prefix == len(constraints.prefix)


@pytest.mark.parametrize(("max_new_tokens", "score"), [(5, log(0.6)), (2, 0.0)], ids=["end token", "length"])
def test_text_that_is_certain_only_at_the_end_may_complete_a_stop_sequence(max_new_tokens: int, score: float) -> None:
    script = table({(): {A: 1.0}, (A,): {B: 1.0}, (A, B): {END: 0.6, C: 0.4}}, otherwise={END: 1.0})
    options = SearchOptions(max_new_tokens, 1, BeamOptions(2, NONE), constraints=Constraints(stop_sequences=("xb",)))
    answer = run(search(options, text=decoder(decoders.Replace("a", "x"))), script).hypothesis
    assert (answer.ids, answer.reason, answer.characters) == ([A, B], STOP, 0)
    assert answer.log_probabilities == pytest.approx([0.0, 0.0])
    assert answer.score == pytest.approx(score), "the score includes the end token"


def test_the_penalty_of_a_token_counts_once_for_each_earlier_hypothesis() -> None:
    # The penalty of one choice leaves A before B, that of two does not.
    script = table({(): {A: 0.5, B: 0.3, C: 0.2}}, otherwise={A: 0.8, C: 0.2})
    played = decode(script, SearchOptions(2, 3, BeamOptions(3, NONE, groups=3, diversity_penalty=0.4)))
    assert played.ids()[:2] == [[A, A], [B, A]]


def test_rows_of_a_group_that_is_over_are_not_needed_any_more() -> None:
    half = search(SearchOptions(4, 2, BeamOptions(2, NONE, groups=2, diversity_penalty=1.0)))
    run(half, GROUP_ENDS, stop_after=2)
    assert half.rows == 1


def test_coverage_changes_the_order() -> None:
    script = table({(): {A: 0.6, B: 0.4}}, otherwise={END: 1.0})
    attention: dict[tuple[int, ...], Sequence[float]] = {(): [0.6, 0.4], (A,): [0.98, 0.02], (B,): [0.1, 0.9]}

    def of(coverage_penalty: float) -> Run:
        options = SearchOptions(3, 2, BeamOptions(2, NONE, coverage_penalty=coverage_penalty))
        return run(search(options), script, attention=attention.__getitem__)

    without, with_penalty = of(0.0), of(1.0)
    assert without.ids() == [[A], [B]]
    assert not any(request.attention for step in without.step_requests for request in step)
    assert with_penalty.ids() == [[B], [A]]
    # Steps of A attend (.6 + .98, .4 + .02) to the source, those of B (.6 + .1, .4 + .9); more than 1 counts as 1.
    assert [answer.score for answer in with_penalty.hypotheses] == pytest.approx(
        [log(0.4) + log(0.7), log(0.6) + log(0.42)], abs=1e-6
    )


def test_top_tokens_are_reported_at_each_position_without_forbidden_ones() -> None:
    script = table({(): {A: 0.6, B: 0.3, END: 0.1}, (A,): {END: 0.8, C: 0.2}, (B,): {C: 1.0}}, otherwise={END: 1.0})
    options = SearchOptions(4, 2, BeamOptions(2, NONE), constraints=NO_PAD, top_tokens=3)
    best, second = decode(script, options).hypotheses
    assert (best.ids, second.ids) == ([A], [B, C])
    assert [[(c.id, round(math.exp(c.log_probability), 5)) for c in choices] for choices in best.alternatives] == [
        [(A, 0.6), (B, 0.3), (END, 0.1)],
        [(END, 0.8), (C, 0.2)],
    ]
    firsts = [choices[0] for choices in second.alternatives]
    assert firsts == [best.alternatives[0][0], TokenChoice(C, 0), TokenChoice(END, 0)]
    assert decode(script, replace(options, top_tokens=0)).hypotheses[0].alternatives == []


@pytest.mark.parametrize(
    ("rank", "best", "reason"),
    [(0, [C, A, C], EOS), (1, [C, B], EOS), (2, [C], EOS), (3, [C], DEAD_END), (9, [C], DEAD_END)],
)
def test_an_alternative_starts_with_the_token_of_its_rank(rank: int, best: list[int], reason: FinishReason) -> None:
    script = table(
        {(C,): {A: 0.6, B: 0.3, END: 0.1}, (C, A): {C: 0.9, B: 0.1}, (C, B): {END: 0.6, B: 0.4}}, otherwise={END: 1.0}
    )
    options = SearchOptions(5, 4, BeamOptions(2, NONE), constraints=Constraints(prefix=(C,)), alternatives=True)
    played = run(search(options, rank), script)
    assert played.endings() == [(best, reason)]
    assert played.step_requests[1][0].candidates == min(max(4, rank + 1), VOCABULARY)
    assert all(request.candidates == 4 for step in played.step_requests[2:] for request in step)


def test_a_stopped_search_answers_with_finished_hypotheses_before_running_ones() -> None:
    script = table({(): {END: 0.4, A: 0.35, B: 0.25}}, otherwise={A: 0.9, B: 0.1})
    options, limit = SearchOptions(9, 3, BeamOptions(3)), FinishReason.TIME_LIMIT
    played = run(search(options), script, stop_after=2)
    assert played.endings() == [([], EOS), ([A, A], limit), ([B, A], limit)]
    assert played.hypotheses[1].score == pytest.approx(log(0.35 * 0.9) / 2, abs=1e-6)
    assert len(played.hypotheses[1].log_probabilities) == 2
    assert played.events[-1] == [BeamProgress(2, 0, 1)]
    assert run(search(replace(options, num_hypotheses=1)), script, stop_after=2).ids() == [[]]

    played = run(search(options), script, stop_after=0, reason=FinishReason.CANCELLED)
    assert played.endings() == [([], FinishReason.CANCELLED)]
    assert played.hypothesis.score == 0.0


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_search_stopped_within_the_prefix_answers_with_all_of_it(after: int) -> None:
    options = SearchOptions(9, 2, BeamOptions(2), constraints=Constraints(prefix=(A, B)))
    answer = run(search(options), table({}, otherwise={END: 1.0}), stop_after=after).hypothesis
    assert (answer.ids, answer.prefix, answer.log_probabilities) == ([A, B], 2, [])


def test_groups_that_run_the_same_hypothesis_contribute_it_once_when_stopped() -> None:
    options = SearchOptions(9, 2, BeamOptions(2, groups=2, diversity_penalty=0.1))
    played = run(search(options), table({}, otherwise={A: 0.9, B: 0.1}), stop_after=2)
    assert played.rows == [1, 2]
    assert played.ids() == [[A, A]]


def test_stopping_a_search_that_is_over_changes_nothing() -> None:
    over = search(SearchOptions(9, 2, BeamOptions(2, NONE), constraints=NO_PAD))
    played = run(over, table({(): {A: 1.0}}, otherwise={PAD: 1.0}))
    over.stop(FinishReason.CANCELLED)
    assert over.hypotheses() == played.hypotheses
    assert played.hypothesis.reason is DEAD_END


def test_progress_has_one_event_for_each_step() -> None:
    script = table({(): {A: 0.6, B: 0.4}, (A,): {END: 0.8, C: 0.2}, (B,): {C: 0.9, B: 0.1}}, otherwise={END: 1.0})
    beam_search = search(SearchOptions(5, 2, BeamOptions(2, NONE)))
    assert beam_search.progress() == ()
    played = run(beam_search, script)
    assert played.events == [[BeamProgress(1, 2, 0)], [BeamProgress(2, 2, 1)], [BeamProgress(2, 0, 3)], []]
    assert played.ids() == [[A], [B, C]]
