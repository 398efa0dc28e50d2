"""Beam search with the rules that an imported model was published with, on models with a few probabilities."""

from dataclasses import replace
from math import log

import pytest

from dragoman_server.core.requests import FinishReason
from dragoman_server.core.search_options import BeamOptions, Constraints, Conventions, SearchOptions, Stopping
from dragoman_server.decoding.beam import BeamSearch
from dragoman_server.decoding.beam_plan import BeamPlan
from dragoman_server.decoding.token_rules import TokenRules
from tests.support import scripted_search
from tests.support.scripted_search import Run, Script, run

PAD, END, A, B, C = range(5)
VOCABULARY = 5
EOS, CUT = FinishReason.EOS, FinishReason.LENGTH


def table(rows: dict[tuple[int, ...], dict[int, float]], otherwise: dict[int, float]) -> Script:
    return scripted_search.table(rows, otherwise, size=VOCABULARY)


def decode(script: Script, options: SearchOptions) -> Run:
    rules = TokenRules(options.constraints, END, options.conventions)
    return run(BeamSearch(BeamPlan(options, END, VOCABULARY), rules, None), script)


@pytest.mark.parametrize(
    ("stopping", "length_penalty", "steps"),
    [
        # After 2 steps the best scores are log(.4 * .5) / 2 and log(.28 * .5) / 2, and the best sum is log(.4 * .3).
        (Stopping.CURRENT_LENGTH, 1.0, 2),
        (Stopping.EXACT, 1.0, 14),  # the first t with log(.4 * .3^(t - 1)) / 20 <= log(.4 * .5) / 2
        (Stopping.MAX_LENGTH, 1.0, 16),  # than the second best: log(.4 * .3 * .5) / 3
        (Stopping.CURRENT_LENGTH, 0.0, 2),
        (Stopping.MAX_LENGTH, 0.0, 2),
        (Stopping.MAX_LENGTH, -1.0, 2),
    ],
)
def test_rules_at_an_assumed_length_compare_with_the_worst_of_a_full_pool(
    stopping: Stopping, length_penalty: float, steps: int
) -> None:
    script = table({(): {A: 0.4, END: 0.32, B: 0.28}}, otherwise={END: 0.5, A: 0.3, B: 0.2})
    beam = BeamOptions(2, length_penalty=length_penalty, stopping=stopping)
    assert decode(script, SearchOptions(20, beam=beam)).steps == steps


def test_a_forced_end_counts_in_the_length_and_costs_nothing() -> None:
    script = table({(): {A: 0.6, B: 0.3, END: 0.1}}, otherwise={A: 0.7, B: 0.2, END: 0.1})
    options = SearchOptions(2, 2, BeamOptions(2), conventions=Conventions(forces_end=True))
    played = decode(script, options)
    assert played.endings() == [([A, A], CUT), ([B, A], CUT)]
    assert [h.score for h in played.hypotheses] == pytest.approx([log(0.42) / 3, log(0.21) / 3], abs=1e-6)
    plain = decode(script, replace(options, conventions=Conventions()))
    assert plain.ids() == played.ids()
    assert plain.hypotheses[0].score == pytest.approx(log(0.42) / 2, abs=1e-6)


def test_a_forced_first_token_comes_before_the_prefix_and_counts_in_the_length() -> None:
    script = table({(C, B): {A: 0.7, B: 0.3}}, otherwise={END: 0.9, A: 0.1})
    constraints, conventions = Constraints(prefix=(B,)), Conventions(forced_first=C)
    options = SearchOptions(2, 1, BeamOptions(2), constraints=constraints, conventions=conventions)
    best = decode(script, options).hypothesis
    assert (best.ids, best.prefix, best.reason) == ([C, B, A], 2, EOS)
    assert best.score == pytest.approx(log(0.7 * 0.9) / 3, abs=1e-6)


def test_without_renormalization_probabilities_are_those_before_exclusion() -> None:
    script = table({}, otherwise={A: 0.5, B: 0.3, END: 0.2})
    constraints = Constraints(suppressed=(A,))
    options = SearchOptions(1, 2, BeamOptions(2), constraints=constraints, conventions=Conventions(renormalized=False))
    played = decode(script, options)
    assert played.ids() == [[B], []]
    assert [h.score for h in played.hypotheses] == pytest.approx([log(0.3), log(0.2)], abs=1e-6)
    renormalized = decode(script, replace(options, conventions=Conventions())).hypotheses
    assert [h.score for h in renormalized] == pytest.approx([log(0.6), log(0.4)], abs=1e-6)


def test_a_penalty_on_repetition_multiplies_log_probabilities_of_an_imported_model() -> None:
    script = table({}, otherwise={A: 0.5, B: 0.3, END: 0.2})
    conventions = Conventions(late_penalty=True, renormalized=False, history=(A,))
    options = SearchOptions(
        1, 2, BeamOptions(2), constraints=Constraints(repetition_penalty=2.0), conventions=conventions
    )
    played = decode(script, options)
    assert played.ids() == [[B], [A]]  # the history has A
    assert [h.score for h in played.hypotheses] == pytest.approx([log(0.3), 2 * log(0.5)], abs=1e-6)
