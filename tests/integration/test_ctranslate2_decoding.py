"""CTranslate2 with our weights: which options mean the same there, and which do not.

Beams of every width and penalty are in test_beam_parity.py. protos/decoding.md describes the differences.
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
PREFIX = [6, 26]  # AH N, which few of the words start with


class Both:
    """Decodes the same words with both."""

    def __init__(self, shipped: Shipped, client: Client, translator: ctranslate2.Translator) -> None:
        self.shipped, self.client, self.translator = shipped, client, translator

    def ours(self, **options: Any) -> Answers:
        return from_server(self.client, FEWER_WORDS, **options)

    def theirs(self, **options: Any) -> Answers:
        return from_ctranslate2(self.shipped, self.translator, FEWER_WORDS, **options)

    def prefix(self) -> Options:
        """Returns the options of `theirs` that force the prefix on every target."""
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
    [
        (case, width) for case in SAME for width in (1, 4) if width > 1 or "patience" not in case
    ],  # greedy search has none
)
def test_options_that_mean_the_same(both: Both, case: str, width: int) -> None:
    ours, theirs = SAME[case]
    if "prefix_bias" in ours:
        theirs = {**both.prefix(), "max_decoding_length": MAX_NEW_TOKENS, **theirs}
    hypotheses = {"beam_size": width, "num_hypotheses": width}
    expected = both.theirs(**hypotheses | theirs)
    assert differing(both.ours(**hypotheses | {"early_stopping": True} | ours), expected) == []
    assert differing(both.ours(**hypotheses, early_stopping=True), expected) != []  # the option has an effect


def test_suppressed_sequences(both: Both) -> None:
    theirs = both.theirs(**BEAM, suppress_sequences=[both.shipped.names(ids) for ids in SEQUENCES])
    ours = both.ours(**EARLY, suppressed_tokens=SEQUENCES[0], suppressed_sequences=SEQUENCES[1:])
    assert differing(ours, theirs) == []
    assert differing(both.ours(**EARLY), theirs) != []


def test_without_penalties_its_search_ends_when_the_best_continuation_is_the_end_token(both: Both) -> None:
    """That is exact for one answer, but not for more; with a negligible penalty its search goes on."""
    penalty = {"length_penalty": 0.0}
    best = {"beam_size": 4, "num_hypotheses": 1, **penalty}
    assert differing(both.ours(**best), both.theirs(**best)) == []
    two = {"beam_size": 4, "num_hypotheses": 2, **penalty}
    for ours in (both.ours(**two), both.ours(**two, early_stopping=True)):
        assert differing(ours, both.theirs(**two)) != []
    theirs = both.theirs(**two, coverage_penalty=NEGLIGIBLE)
    assert differing(both.ours(**two, early_stopping=True), theirs) == []


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
def test_coverage_is_the_same_for_batches_of_one(both: Both, length_penalty: float) -> None:
    """In a larger batch CTranslate2 takes the attention of the first step from another input, on the CPU."""
    penalties = {"length_penalty": length_penalty, "coverage_penalty": 0.3}
    ours = both.ours(**EARLY, **penalties)
    assert differing(ours, both.theirs(**BEAM, **penalties, max_batch_size=1)) == []
    assert differing(ours, both.theirs(**BEAM, **penalties)) != []
    assert differing(both.ours(**EARLY, length_penalty=length_penalty), ours) != []


def test_its_length_includes_a_forced_prefix(both: Both) -> None:
    """So the same answers have other scores, beams may find other answers, and limits count the prefix."""
    greedy = {"beam_size": 1, "length_penalty": 1.0}
    ours, theirs = both.ours(**greedy, prefix=PREFIX, early_stopping=True), both.theirs(**greedy, **both.prefix())
    for (one,), (other,) in zip(ours, theirs, strict=True):
        assert one.ids == other.ids
        length = min(len(one.ids) - len(PREFIX) + 1, MAX_NEW_TOKENS)
        assert one.score * length / (length + len(PREFIX)) == pytest.approx(other.score, abs=TOLERANCE)
    assert differing(both.ours(**EARLY, prefix=PREFIX), both.theirs(**BEAM, **both.prefix())) != []


def test_after_a_forced_prefix_it_ends_only_with_the_best_token(both: Both) -> None:
    """Without penalties everything else is the same."""
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
def test_alternatives_are_the_same_but_for_an_immediate_end_token(both: Both, width: int, prefixed: bool) -> None:
    """Its first token is never the end token. Without length penalty our scores are sums."""
    ours: Options = {"alternatives": True, "num_hypotheses": 3, "min_new_tokens": 1}
    if width > 1:
        ours |= {"beam_size": width, "length_penalty": 0.0}
    theirs: Options = {"beam_size": width, "num_hypotheses": 3, "length_penalty": 0.0, "return_alternatives": True}
    if prefixed:
        ours |= {"prefix": PREFIX}
        theirs |= both.prefix()
    assert differing(both.ours(**ours), both.theirs(**theirs)) == []


def test_its_scores_of_alternatives_have_two_parts(both: Both) -> None:
    """They are log p(first token) + sum over the rest / |rest|^A; ours divide the sum of all."""
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
