"""CTranslate2 with our weights: where it decodes as we do, and where it means something else.

Beams of every width and penalty: test_beam_parity.py. What the differences are is told in protos/decoding.md.
"""

from typing import Any

import ctranslate2
import pytest

from dragoman import Client
from tests.support.parity import (
    FEWER_WORDS,
    MAX_NEW_TOKENS,
    NEGLIGIBLE,
    TOLERANCE,
    Answers,
    Shipped,
    differing,
    from_ctranslate2,
    from_server,
)

Options = dict[str, Any]
BEAM: Options = {"beam_size": 4, "num_hypotheses": 4}
EARLY: Options = {**BEAM, "early_stopping": True}
PREFIX = [6, 26]  # AH N, which few of the words begin with


class Both:
    """Asks both for the same words."""

    def __init__(self, shipped: Shipped, client: Client, translator: ctranslate2.Translator) -> None:
        self.shipped, self.client, self.translator = shipped, client, translator

    def ours(self, **options: Any) -> Answers:
        return from_server(self.client, FEWER_WORDS, **options)

    def theirs(self, **options: Any) -> Answers:
        return from_ctranslate2(self.shipped, self.translator, FEWER_WORDS, **options)

    def prefix(self) -> Options:
        """Of every target, for `theirs`."""
        names = self.shipped.names(PREFIX)
        return {"target_prefix": [names] * len(FEWER_WORDS), "max_decoding_length": MAX_NEW_TOKENS + len(PREFIX)}


@pytest.fixture(scope="module")
def both(shipped: Shipped, shipped_client: Client, translator: ctranslate2.Translator) -> Both:
    return Both(shipped, shipped_client, translator)


# Suppressed: AH, N T, IH T, R AH L.
SEQUENCES = [[6], [26, 34], [20, 34], [31, 6, 24]]
SAME: dict[str, tuple[Options, Options]] = {
    "patience below 1": ({"patience": 0.5, "num_hypotheses": 2}, {"patience": 0.5, "num_hypotheses": 2}),
    "patience": ({"patience": 1.6}, {"patience": 1.6}),
    "patience 2": ({"patience": 2.0}, {"patience": 2.0}),
    "maximum": ({"max_new_tokens": 5}, {"max_decoding_length": 5}),
    "minimum": ({"min_new_tokens": 7}, {"min_decoding_length": 7}),
    "repetition penalty": ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    "repetition reward": ({"repetition_penalty": 0.8}, {"repetition_penalty": 0.8}),
    "no token twice": ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
    "no pair twice": ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    "weak bias": ({"prefix": PREFIX, "prefix_bias": 0.2}, {"prefix_bias_beta": 0.2}),
    "strong bias": ({"prefix": PREFIX, "prefix_bias": 0.9}, {"prefix_bias_beta": 0.9}),
}


@pytest.mark.parametrize(
    ("case", "width"),
    [(case, width) for case in SAME for width in (1, 4) if width > 1 or "patience" not in case],  # greedy has none
)
def test_options_that_mean_the_same(both: Both, case: str, width: int) -> None:
    ours, theirs = SAME[case]
    if "prefix_bias" in ours:
        theirs = {**both.prefix(), "max_decoding_length": MAX_NEW_TOKENS, **theirs}
    hypotheses = {"beam_size": width, "num_hypotheses": width}
    expected = both.theirs(**hypotheses | theirs)
    assert differing(both.ours(**hypotheses | {"early_stopping": True} | ours), expected) == []
    assert differing(both.ours(**hypotheses, early_stopping=True), expected) != []  # it has an effect


def test_suppressed_sequences(both: Both) -> None:
    theirs = both.theirs(**BEAM, suppress_sequences=[both.shipped.names(ids) for ids in SEQUENCES])
    ours = both.ours(**EARLY, suppressed_tokens=SEQUENCES[0], suppressed_sequences=SEQUENCES[1:])
    assert differing(ours, theirs) == []
    assert differing(both.ours(**EARLY), theirs) != []


def test_without_penalties_its_search_ends_when_the_best_continuation_is_an_end(both: Both) -> None:
    """Which is exact for the best answer alone, but for no more; a negligible penalty has it go on as else."""
    penalty = {"length_penalty": 0.0}
    best = {"beam_size": 4, "num_hypotheses": 1, **penalty}
    assert differing(both.ours(**best), both.theirs(**best)) == []
    two = {"beam_size": 4, "num_hypotheses": 2, **penalty}
    for ours in (both.ours(**two), both.ours(**two, early_stopping=True)):
        assert differing(ours, both.theirs(**two)) != []
    theirs = both.theirs(**two, coverage_penalty=NEGLIGIBLE)
    assert differing(both.ours(**two, early_stopping=True), theirs) == []


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_coverage_is_the_same_for_one_input_alone(both: Both, length_penalty: float) -> None:
    """In a batch CTranslate2 takes the attention of the first step from another input, on the CPU."""
    penalties = {"length_penalty": length_penalty, "coverage_penalty": 0.3}
    ours = both.ours(**EARLY, **penalties)
    assert differing(ours, both.theirs(**BEAM, **penalties, max_batch_size=1)) == []
    assert differing(ours, both.theirs(**BEAM, **penalties)) != []
    assert differing(both.ours(**EARLY, length_penalty=length_penalty), ours) != []


def test_a_forced_prefix_is_part_of_the_length_there(both: Both) -> None:
    """|Y| counts it, so that the same answers have other scores, and beams may find others; so do limits."""
    greedy = {"beam_size": 1, "length_penalty": 1.0}
    ours, theirs = both.ours(**greedy, prefix=PREFIX, early_stopping=True), both.theirs(**greedy, **both.prefix())
    for (one,), (other,) in zip(ours, theirs, strict=True):
        assert one.ids == other.ids
        length = min(len(one.ids) - len(PREFIX) + 1, MAX_NEW_TOKENS)
        assert one.score * length / (length + len(PREFIX)) == pytest.approx(other.score, abs=TOLERANCE)
    assert differing(both.ours(**EARLY, prefix=PREFIX), both.theirs(**BEAM, **both.prefix())) != []


def test_behind_a_forced_prefix_only_the_best_may_be_the_end_there(both: Both) -> None:
    """Without penalties the rest is the same."""
    sums = {"length_penalty": 0.0}
    ours = both.ours(**EARLY, **sums, prefix=PREFIX)
    theirs = both.theirs(**BEAM, **sums, **both.prefix(), coverage_penalty=NEGLIGIBLE)
    different = differing(ours, theirs)
    assert 0 < len(different) < len(FEWER_WORDS) / 10
    for i in different:
        assert PREFIX in [answer.ids for answer in ours[i][1:]]
        assert PREFIX not in [answer.ids for answer in theirs[i][1:]]


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("prefixed", [False, True], ids=["free", "prefixed"])
def test_alternatives_are_the_same_but_for_an_end_at_once(both: Both, width: int, prefixed: bool) -> None:
    """The first token is never the end there. Scores are sums here where there is no length penalty."""
    ours: Options = {"alternatives": True, "num_hypotheses": 3, "min_new_tokens": 1}
    if width > 1:
        ours |= {"beam_size": width, "length_penalty": 0.0}
    theirs: Options = {"beam_size": width, "num_hypotheses": 3, "length_penalty": 0.0, "return_alternatives": True}
    if prefixed:
        ours |= {"prefix": PREFIX}
        theirs |= both.prefix()
    assert differing(both.ours(**ours), both.theirs(**theirs)) == []


def test_scores_of_alternatives_are_of_two_parts_there(both: Both) -> None:
    """log p(first token) + sum over the rest / |rest|^A, where ours divides the sum of all."""
    alternatives = {"num_hypotheses": 3, "beam_size": 1}
    sums = both.theirs(**alternatives, length_penalty=0.0, return_alternatives=True)
    theirs = both.theirs(**alternatives, length_penalty=1.0, return_alternatives=True)
    ours = both.ours(**alternatives, length_penalty=1.0, early_stopping=True, alternatives=True, min_new_tokens=1)
    for summed, one, other in zip(sums, ours, theirs, strict=True):
        for total, mine, their in zip(summed, one, other, strict=True):
            assert total.ids == mine.ids == their.ids
            length = min(len(mine.ids) + 1, MAX_NEW_TOKENS)
            assert mine.score == pytest.approx(total.score / length, abs=TOLERANCE)
            assert length < 3 or their.score < mine.score - TOLERANCE
