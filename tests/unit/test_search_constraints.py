"""Token constraints change logits as they are defined, on the whole vocabulary."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman_server.core.search import LogitEdits, StepRequest
from dragoman_server.core.search_options import UNCONSTRAINED, Constraints, Conventions
from dragoman_server.decoding.token_rules import TokenRules
from tests.support.scripted_search import ScriptedResult, ScriptedRow, edited_logits, log_softmax

END, SIZE = 3, 12
IDS = st.lists(st.integers(4, 8), max_size=12)  # few different ones, so that they repeat


def forbidden(edits: LogitEdits | None) -> set[int]:
    if edits is None:
        return set()
    return {token for token, offset in zip(edits.ids, edits.offsets, strict=True) if offset == -math.inf}


def penalized(edits: LogitEdits | None) -> dict[int, float]:
    if edits is None:
        return {}
    return {token: penalty for token, penalty in zip(edits.ids, edits.penalties, strict=True) if penalty != 1.0}


@pytest.mark.parametrize(
    ("constraints", "trivial", "forced"),
    [
        (UNCONSTRAINED, True, []),
        (Constraints(prefix=(7, 5)), True, [7, 5]),
        (Constraints(prefix=(7, 5), prefix_bias=0.9), False, []),
        (Constraints(min_new_tokens=1), False, []),
        (Constraints(suppressed=(5,)), False, []),
        (Constraints(suppressed_sequences=((4, 5),)), False, []),
        (Constraints(repetition_penalty=1.1), False, []),
        (Constraints(no_repeat_ngram_size=2), False, []),
    ],
)
def test_which_constraints_edit_logits_and_which_force_tokens(
    constraints: Constraints, trivial: bool, forced: list[int]
) -> None:
    rules = TokenRules(constraints, END)
    assert rules.trivial is trivial
    if constraints is UNCONSTRAINED:
        assert rules.edits([]) is None
        assert rules.edits([4, 4, 4]) is None
    assert [rules.forced(position) for position in range(4)] == [*forced, *[None] * (4 - len(forced))]


@pytest.mark.parametrize(
    ("size", "ids", "expected"),
    [
        (1, [], {4, 5, 6, END}),
        (1, [7, 8], {4, 5, 6, END}),
        (2, [], set()),
        (2, [7], set()),
        (2, [4], {5, END}),
        (2, [6, 5], {6}),
        (3, [4], set()),
        (3, [4, 5], {6}),
        (3, [8, 5, 6], {4}),
        (9, [4, 5], set()),
        (0, [4, 5], set()),
    ],
)
def test_n_grams_of_the_source_do_not_occur(size: int, ids: list[int], expected: set[int]) -> None:
    rules = TokenRules(Constraints(encoder_no_repeat_ngram_size=size), END, source_ids=[4, 5, 6, 4, END])
    assert forbidden(rules.edits(ids)) == expected


def test_n_grams_of_source_tokens_that_the_target_lacks_are_no_edits() -> None:
    constraints, source = Constraints(encoder_no_repeat_ngram_size=1), [4, 9, 12, END]
    assert forbidden(TokenRules(constraints, END, source_ids=source, vocabulary_size=10).edits([])) == {4, 9, END}


def test_rules_on_repetition_see_the_history() -> None:
    rules = TokenRules(Constraints(no_repeat_ngram_size=2, repetition_penalty=1.5), END, Conventions(history=(9,)))
    assert forbidden(rules.edits([4, 5, 9])) == {4}
    assert penalized(rules.edits([4])) == {9: 1.5, 4: 1.5}


def test_tokens_that_cannot_come_first_follow_the_forced_one() -> None:
    rules = TokenRules(UNCONSTRAINED, END, Conventions(forced_first=7, begin_suppressed=(5, END)))
    assert (rules.forced(0), rules.forced(1)) == (7, None)
    assert forbidden(rules.edits([7])) == {5, END}
    assert forbidden(rules.edits([7, 4])) == set()


@pytest.mark.parametrize(
    ("constraints", "first_end"),
    [
        (Constraints(min_new_tokens=3), 3),
        (Constraints(min_new_tokens=3, prefix=(5, 6)), 5),
        (Constraints(min_new_tokens=3, prefix=(5, 6), prefix_bias=0.5), 3),
    ],
)
def test_the_end_token_is_forbidden_until_the_minimum_is_reached(constraints: Constraints, first_end: int) -> None:
    rules = TokenRules(constraints, END)
    ids = [5, 6, 4, 4, 4, 4, 4]
    ends = [END not in forbidden(rules.edits(ids[:length])) for length in range(7)]
    assert ends == [length >= first_end for length in range(7)]


def test_constant_edits_are_the_same_object() -> None:
    rules = TokenRules(Constraints(min_new_tokens=2, suppressed=(5, 7)), END)
    assert rules.edits([]) is rules.edits([4])
    assert forbidden(rules.edits([])) == {5, 7, END}
    assert rules.edits([4, 4]) is rules.edits([4, 4, 4])
    assert forbidden(rules.edits([4, 4])) == {5, 7}
    assert forbidden(TokenRules(Constraints(suppressed=(END,)), END).edits([])) == {END}


@settings(deadline=None)
@given(ids=IDS, size=st.integers(1, 4))
def test_an_ngram_is_never_repeated(ids: list[int], size: int) -> None:
    banned = forbidden(TokenRules(Constraints(no_repeat_ngram_size=size), END).edits(ids))
    known = {tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)}
    assert banned == {t for t in range(SIZE) if len(ids) >= size - 1 and (*ids[len(ids) - size + 1 :], t) in known}


@settings(deadline=None)
@given(ids=IDS, sequences=st.lists(st.lists(st.integers(3, 8), min_size=2, max_size=4).map(tuple), max_size=4))
def test_suppressed_sequences_are_never_completed(ids: list[int], sequences: list[tuple[int, ...]]) -> None:
    banned = forbidden(TokenRules(Constraints(suppressed_sequences=tuple(sequences)), END).edits(ids))
    assert banned == {
        token for token in range(SIZE) if any((*ids, token)[-len(sequence) :] == sequence for sequence in sequences)
    }


@settings(deadline=None)
@given(ids=IDS)
def test_the_repetition_penalty_applies_once_to_each_token_of_the_hypothesis(ids: list[int]) -> None:
    rules = TokenRules(Constraints(repetition_penalty=1.5), END)
    assert penalized(rules.edits(ids)) == dict.fromkeys(ids, 1.5)


@settings(deadline=None)
@given(ids=IDS, data=st.data())
def test_constraints_combine(ids: list[int], data: st.DataObject) -> None:
    kinds = {
        "min_new_tokens": data.draw(st.integers(0, 5)),
        "suppressed": tuple(data.draw(st.sets(st.integers(3, 8), max_size=3))),
        "suppressed_sequences": ((4, 5), (6, 6, 7)),
        "no_repeat_ngram_size": data.draw(st.integers(0, 3)),
    }
    alone = [TokenRules(Constraints(**{kind: value}), END).edits(ids) for kind, value in kinds.items()]  # type: ignore[arg-type]
    together = TokenRules(Constraints(**kinds, repetition_penalty=1.5), END).edits(ids)  # type: ignore[arg-type]
    assert forbidden(together) == set().union(*map(forbidden, alone))
    assert set(penalized(together)) == set(ids) - forbidden(together)
    assert together is None or len(set(together.ids)) == len(together.ids)


@settings(deadline=None)
@given(ids=IDS, vocabulary=st.sets(st.integers(4, 8)).map(lambda ids: tuple(sorted({END, *ids}))))
def test_there_are_no_edits_outside_the_shortlist(ids: list[int], vocabulary: tuple[int, ...]) -> None:
    rules = TokenRules(
        Constraints(
            min_new_tokens=20,
            suppressed=(5,),
            repetition_penalty=1.2,
            no_repeat_ngram_size=1,
            prefix=(4, 6),
            prefix_bias=0.2,
            vocabulary=vocabulary,
        ),
        END,
    )
    edits = rules.edits(ids)
    assert edits is not None
    assert set(edits.ids) <= set(vocabulary)
    assert forbidden(edits) == ({END, 5} | set(ids)) & set(vocabulary)


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    followed=st.integers(0, 3),
    bias=st.floats(0.01, 0.99),
    candidates=st.integers(1, SIZE),
    concentration=st.sampled_from([0.05, 0.5, 5.0]),
    suppressed=st.sampled_from([(), (4,), (9,)]),
)
def test_the_bias_of_a_soft_prefix_is_exact_whatever_the_candidates(
    seed: int, followed: int, bias: float, candidates: int, concentration: float, suppressed: tuple[int, ...]
) -> None:
    prefix = (9, 5, 10)
    rules = TokenRules(Constraints(prefix=prefix, prefix_bias=bias, suppressed=suppressed), END)
    ids = prefix[:followed]
    edits = rules.edits(ids)
    request = StepRequest(candidates, edits)
    probabilities = np.random.default_rng(seed).dirichlet([concentration] * SIZE) + 1e-12
    result = ScriptedResult({0: ScriptedRow(probabilities, request)})

    expected = np.exp(log_softmax(edited_logits(probabilities, request)))
    if followed < 3 and prefix[followed] not in suppressed:
        expected *= 1 - bias
        expected[prefix[followed]] += bias
    order = np.argsort(-expected, kind="stable")

    found, log_probabilities = rules.biased(ids, result.top(0), edits, result.edited(0) if edits else [])
    assert candidates <= len(found) <= candidates + 1
    np.testing.assert_allclose(np.exp(log_probabilities), expected[order[: len(found)]], atol=1e-6)
    np.testing.assert_allclose(np.exp(log_probabilities), expected[found], atol=1e-6)
    assert len(set(found)) == len(found)


def test_a_hypothesis_that_left_the_soft_prefix_is_not_biased() -> None:
    rules = TokenRules(Constraints(prefix=(9, 5, 10), prefix_bias=0.5), END)
    assert rules.preferred([9, 5]) == 10
    top = [4, 5], [-0.1, -2.4]
    for ids in ([4], [9, 4], [9, 5, 10], [9, 5, 10, 9]):
        assert rules.preferred(ids) is None
        assert rules.edits(ids) is None
        assert rules.biased(ids, top, None, []) is top


def test_a_soft_prefix_outside_the_shortlist_is_not_preferred() -> None:
    rules = TokenRules(Constraints(prefix=(9,), prefix_bias=0.5, vocabulary=(END, 4)), END)
    assert rules.preferred([]) is None
    assert rules.edits([]) is None
