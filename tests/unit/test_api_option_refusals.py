"""Invalid options of the API: each is refused by the name of its field."""

import math
from typing import Any

import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.messages.api_error import ApiError
from tests.support.request_options import (
    BEAM,
    BEGIN,
    END,
    NONE,
    OPTIONS,
    PAD,
    SAMPLE,
    SIZE,
    UNKNOWN,
    A,
    B,
    described,
    ids,
    only,
    search,
    text,
)

NAN, INFINITY = math.nan, math.inf

# Options, the invalid field, and words of the problem.
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"max_new_tokens": 0}, "max_new_tokens", "is 0, but must be from 1 to 12, the model's limit"),
    ({"max_new_tokens": 13}, "max_new_tokens", "is 13, but must be from 1 to 12, the model's limit"),
    (
        {"max_new_tokens": 11, "prefix": ids(A, B)},
        "max_new_tokens",
        "from 1 to 10, the model's limit less 2 tokens of the prefix",
    ),
    ({"min_new_tokens": -1}, "min_new_tokens", "is -1, but must be from 0 to 12"),
    ({"min_new_tokens": 13}, "min_new_tokens", "is 13, but must be from 0 to 12"),
    (
        {"min_new_tokens": 4, "max_new_tokens": 3},
        "min_new_tokens",
        "is 4, but must be from 0 to 3, the value of max_new_tokens",
    ),
    ({"min_new_tokens": 11, "prefix": ids(A, B)}, "min_new_tokens", "is 11, but must be from 0 to 10"),
    ({"num_hypotheses": 0}, "num_hypotheses", "is 0, but must be 1"),
    ({"num_hypotheses": 2}, "num_hypotheses", "must be 1 without beam_size, sample or alternatives"),
    ({"num_hypotheses": 5, **BEAM}, "num_hypotheses", "is 5, but must be from 1 to 4, the beam_size"),
    ({"num_hypotheses": 9, **SAMPLE}, "num_hypotheses", "is 9, but must be from 1 to 8, the server's limit"),
    ({"num_hypotheses": 9, "alternatives": True}, "num_hypotheses", "is 9, but must be from 1 to 8"),
    ({"num_hypotheses": 3, "alternatives": True, **BEAM}, "num_hypotheses", "1 to 2: the server's limit is 8 rows"),
    (
        {"num_hypotheses": 4, "alternatives": True, "vocabulary": only(A, B)},
        "num_hypotheses",
        "there are only 3 tokens",
    ),
    (
        {"num_hypotheses": 3, "alternatives": True, "vocabulary": only(A, B), "min_new_tokens": 1},
        "num_hypotheses",
        "there are only 2 tokens",
    ),
    ({"beam_size": 0}, "beam_size", "is 0, but must be from 1 to 6"),
    ({"beam_size": 7}, "beam_size", "is 7, but must be from 1 to 6, the server's limit"),
    ({"beam_size": 2, "sample": True}, "beam_size", "can't be combined with sample"),
    ({"length_normalization": pb.LENGTH_NORMALIZATION_GNMT}, "length_normalization", "needs beam_size"),
    ({"length_normalization": 9, **BEAM}, "length_normalization", "is 9, which is not a known value"),
    ({"length_penalty": 1.0}, "length_penalty", "needs beam_size"),
    ({"length_penalty": 0.0, **SAMPLE}, "length_penalty", "needs beam_size"),
    ({"length_penalty": 1.0, "length_normalization": NONE, **BEAM}, "length_penalty", "other than NONE"),
    ({"length_penalty": NAN, **BEAM}, "length_penalty", "is nan, but must be at least -10 and at most 10"),
    ({"length_penalty": INFINITY, **BEAM}, "length_penalty", "is inf, but must be at least -10 and at most 10"),
    ({"length_penalty": -10.5, **BEAM}, "length_penalty", "is -10.5, but must be at least -10 and at most 10"),
    ({"coverage_penalty": 0.2}, "coverage_penalty", "needs beam_size"),
    ({"coverage_penalty": -0.2, **BEAM}, "coverage_penalty", "is -0.2, but must be at least 0 and at most 100"),
    ({"coverage_penalty": NAN, **BEAM}, "coverage_penalty", "is nan, but must be"),
    ({"early_stopping": True}, "early_stopping", "needs beam_size"),
    ({"early_stopping": False}, "early_stopping", "needs beam_size"),
    ({"patience": 2.0}, "patience", "needs beam_size"),
    ({"patience": 2.0, **BEAM}, "patience", "needs early_stopping"),
    ({"patience": 2.0, "early_stopping": False, **BEAM}, "patience", "needs early_stopping"),
    ({"patience": 0.0, "early_stopping": True, **BEAM}, "patience", "is 0, but must be more than 0 and at most 1000"),
    ({"patience": INFINITY, "early_stopping": True, **BEAM}, "patience", "is inf, but must be"),
    (
        {"patience": 0.1, "early_stopping": True, **BEAM},
        "patience",
        "would end with 0 finished hypotheses, but 1 is needed",
    ),
    (
        {"patience": 0.5, "early_stopping": True, "num_hypotheses": 3, **BEAM},
        "patience",
        "is 0.5, so the search would end with 2 finished hypotheses, but 3 are needed",
    ),
    ({"stopping": pb.STOPPING_EXACT}, "stopping", "needs beam_size"),
    ({"stopping": 9, **BEAM}, "stopping", "is 9, which is not a known value"),
    (
        {"stopping": pb.STOPPING_EXACT, "early_stopping": True, **BEAM},
        "stopping",
        "is EXACT, but early_stopping is true",
    ),
    (
        {"stopping": pb.STOPPING_EARLY, "early_stopping": False, **BEAM},
        "stopping",
        "is EARLY, but early_stopping is false",
    ),
    ({"stopping": pb.STOPPING_MAX_LENGTH, "patience": 2.0, **BEAM}, "patience", "needs early_stopping"),
    ({"beam_groups": 2}, "beam_groups", "needs beam_size"),
    ({"beam_groups": 0, **BEAM}, "beam_groups", "is 0, but must be at least 1"),
    ({"beam_groups": 3, **BEAM}, "beam_groups", "is 3, but must divide beam_size, which is 4"),
    ({"beam_groups": 8, **BEAM}, "beam_groups", "is 8, but must divide beam_size, which is 4"),
    ({"diversity_penalty": 0.5}, "diversity_penalty", "needs beam_size"),
    ({"diversity_penalty": 0.5, **BEAM}, "diversity_penalty", "needs beam_groups of 2 or more"),
    ({"diversity_penalty": 0.5, "beam_groups": 1, **BEAM}, "diversity_penalty", "needs beam_groups of 2 or more"),
    ({"diversity_penalty": 0.0, "beam_groups": 2, **BEAM}, "diversity_penalty", "is 0, but must be more than 0"),
    ({"diversity_penalty": NAN, "beam_groups": 2, **BEAM}, "diversity_penalty", "is nan, but must be more than 0"),
    ({"temperature": 0.5}, "temperature", "needs sample"),
    ({"temperature": 0.5, "sample": False}, "temperature", "needs sample"),
    ({"temperature": 0.5, **BEAM}, "temperature", "needs sample"),
    ({"temperature": 0.0, **SAMPLE}, "temperature", "is 0, but must be at least 0.001 and at most 1000"),
    ({"temperature": -1.0, **SAMPLE}, "temperature", "is -1, but must be"),
    ({"temperature": NAN, **SAMPLE}, "temperature", "is nan, but must be"),
    ({"temperature": INFINITY, **SAMPLE}, "temperature", "is inf, but must be"),
    ({"top_k": 5}, "top_k", "needs sample"),
    ({"top_k": 0, **SAMPLE}, "top_k", "is 0, but must be at least 1"),
    ({"top_p": 0.9}, "top_p", "needs sample"),
    ({"top_p": 0.0, **SAMPLE}, "top_p", "is 0, but must be more than 0 and at most 1"),
    ({"top_p": 1.5, **SAMPLE}, "top_p", "is 1.5, but must be more than 0 and at most 1"),
    ({"top_p": NAN, **SAMPLE}, "top_p", "is nan, but must be"),
    ({"min_p": 0.1}, "min_p", "needs sample"),
    ({"min_p": -0.1, **SAMPLE}, "min_p", "is -0.1, but must be at least 0 and at most 1"),
    ({"min_p": 1.1, **SAMPLE}, "min_p", "is 1.1, but must be at least 0 and at most 1"),
    ({"typical_p": 0.9}, "typical_p", "needs sample"),
    ({"typical_p": 0.0, **SAMPLE}, "typical_p", "is 0, but must be more than 0 and at most 1"),
    ({"typical_p": NAN, **SAMPLE}, "typical_p", "is nan, but must be"),
    ({"seed": 0}, "seed", "needs sample"),
    ({"seed": 7, **BEAM}, "seed", "needs sample"),
    ({"prefix": pb.Input()}, "prefix", "has neither text nor token_ids"),
    ({"prefix": pb.Input(text="a", token_ids=only(A))}, "prefix", "has both text and token_ids"),
    ({"prefix": text("")}, "prefix.text", "is empty"),
    ({"prefix": text("  ")}, "prefix.text", "is blank: it contains only U+0020 SPACE"),
    ({"prefix": text("a1")}, "prefix.text", "has the character '1' (U+0031) at position 1"),
    ({"prefix": text("a" * 5000)}, "prefix.text", "has 5000 characters, but the model writes at most 12 tokens"),
    ({"prefix": text("a" * 13)}, "prefix.text", "has 13 tokens, but the model writes at most 12"),
    ({"prefix": text("a" * 12)}, "prefix.text", "has 12 tokens, which leaves no room to generate"),
    ({"prefix": ids()}, "prefix.token_ids.ids", "is empty"),
    ({"prefix": ids(*[A] * 12)}, "prefix.token_ids.ids", "has 12 tokens, which leaves no room to generate"),
    ({"prefix": ids(*[99] * 100_000)}, "prefix.token_ids.ids", "has 100000 tokens, but the model writes at most 12"),
    ({"prefix": ids(A, SIZE)}, "prefix.token_ids.ids[1]", "is 33, but the target vocabulary has ids 0 to 32"),
    ({"prefix": ids(-1)}, "prefix.token_ids.ids[0]", "is -1, but the target vocabulary has ids 0 to 32"),
    ({"prefix": ids(PAD)}, "prefix.token_ids.ids[0]", "is 0, the special token <pad>"),
    ({"prefix": ids(A, UNKNOWN)}, "prefix.token_ids.ids[1]", "is 1, the special token <unk>"),
    ({"prefix": ids(BEGIN, A)}, "prefix.token_ids.ids[0]", "is 2, the special token <s>"),
    ({"prefix": ids(A, END)}, "prefix.token_ids.ids[1]", "is 3, the special token </s>"),
    ({"prefix_bias": 0.5}, "prefix_bias", "needs prefix"),
    ({"prefix_bias": 0.0, "prefix": text("a")}, "prefix_bias", "is 0, but must be more than 0 and less than 1"),
    ({"prefix_bias": 1.0, "prefix": text("a")}, "prefix_bias", "is 1, but must be more than 0 and less than 1"),
    ({"prefix_bias": NAN, "prefix": text("a")}, "prefix_bias", "is nan, but must be"),
    ({"suppressed_tokens": [A, 99]}, "suppressed_tokens[1]", "is 99, but the target vocabulary has ids 0 to 32"),
    ({"suppressed_tokens": [-1]}, "suppressed_tokens[0]", "is -1, but the target vocabulary"),
    ({"suppressed_tokens": [END]}, "suppressed_tokens[0]", "is 3, the end token, which can't be suppressed"),
    ({"suppressed_tokens": [A] * 1025}, "suppressed_tokens", "has 1025 tokens, but at most 1024"),
    ({"suppressed_tokens": [*range(4, SIZE)]}, "suppressed_tokens", "leaves no token to choose"),
    ({"suppressed_tokens": [A, B], "vocabulary": only(A, B)}, "suppressed_tokens", "leaves no token to choose"),
    ({"suppressed_sequences": [text("a")], "vocabulary": only(A)}, "suppressed_sequences", "leaves no token to choose"),
    ({"suppressed_sequences": [text("ab"), pb.Input()]}, "suppressed_sequences[1]", "has neither text nor token_ids"),
    ({"suppressed_sequences": [text("")]}, "suppressed_sequences[0].text", "is empty"),
    ({"suppressed_sequences": [ids(A), ids()]}, "suppressed_sequences[1].token_ids.ids", "is empty"),
    (
        {"suppressed_sequences": [text("a!")]},
        "suppressed_sequences[0].text",
        "the character '!' (U+0021) at position 1",
    ),
    ({"suppressed_sequences": [text("a" * 13)]}, "suppressed_sequences[0].text", "has 13 tokens, but the model writes"),
    ({"suppressed_sequences": [ids(A, 99)]}, "suppressed_sequences[0].token_ids.ids[1]", "is 99, but the target"),
    ({"suppressed_sequences": [ids(A, END)]}, "suppressed_sequences[0].token_ids.ids[1]", "the special token </s>"),
    ({"suppressed_sequences": [ids(A, PAD)]}, "suppressed_sequences[0].token_ids.ids[1]", "the special token <pad>"),
    ({"suppressed_sequences": [ids(A, B)] * 257}, "suppressed_sequences", "has 257 sequences, but at most 256"),
    ({"repetition_penalty": 0.0}, "repetition_penalty", "is 0, but must be at least 0.01 and at most 100"),
    ({"repetition_penalty": -1.0}, "repetition_penalty", "is -1, but must be"),
    ({"repetition_penalty": 100.00001}, "repetition_penalty", "is 100.00001, but must be"),
    ({"repetition_penalty": NAN}, "repetition_penalty", "is nan, but must be"),
    ({"repetition_penalty": INFINITY}, "repetition_penalty", "is inf, but must be"),
    ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size", "is -1, but must be at least 0"),
    ({"encoder_no_repeat_ngram_size": -1}, "encoder_no_repeat_ngram_size", "is -1, but must be at least 0"),
    ({"stop_sequences": ["a", ""]}, "stop_sequences[1]", "is empty"),
    ({"stop_sequences": ["a" * 257]}, "stop_sequences[0]", "has 257 characters, but may have at most 256"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences", "has 17 sequences, but at most 16"),
    ({"include_stop_sequence": True}, "include_stop_sequence", "needs stop_sequences"),
    ({"vocabulary": only()}, "vocabulary.ids", "has no token to choose except the end token"),
    ({"vocabulary": only(END)}, "vocabulary.ids", "has no token to choose except the end token"),
    ({"vocabulary": only(A, 99)}, "vocabulary.ids[1]", "is 99, but the target vocabulary has ids 0 to 32"),
    ({"vocabulary": only(A, PAD)}, "vocabulary.ids[1]", "is 0, the special token <pad>"),
    ({"vocabulary": only(*[A] * 34)}, "vocabulary.ids", "has 34 ids, more than the 33 of the target vocabulary"),
    ({"use_shortlist": True, "vocabulary": only(A, B)}, "use_shortlist", "can't be combined with vocabulary"),
    ({"alternatives": True, **SAMPLE}, "alternatives", "can't be combined with sample"),
    ({"alternatives": True, "prefix": text("a"), "prefix_bias": 0.5}, "alternatives", "combined with prefix_bias"),
]


@pytest.mark.parametrize(
    ("options", "field", "words"), REFUSED, ids=lambda case: described(case) if isinstance(case, dict) else ""
)
async def test_invalid_options_are_refused_by_the_name_of_their_field(
    options: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(ApiError) as refused:
        await search(options)
    [violation] = refused.value.detail.field_violations  # type: ignore[union-attr]
    assert violation.field == f"options.{field}"
    assert words in violation.description
    assert refused.value.code.name == "INVALID_ARGUMENT"


def test_every_option_has_a_refusal() -> None:
    harmless = {"sample"}  # never refused itself
    assert {field.split(".")[0].split("[")[0] for _, field, _ in REFUSED} == OPTIONS - harmless
