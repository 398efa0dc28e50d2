"""Every option of the API: the search that it becomes, and the refusals of invalid values."""

import math
from typing import Any, cast

import pytest

from dragoman.inference import open_inference_pb2 as oip
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.api.inference.parameters import Parameters
from dragoman_server.config import ServerConfig
from dragoman_server.core.search_options import (
    BeamOptions,
    Constraints,
    LengthNormalization,
    SamplingOptions,
    SearchOptions,
    Stopping,
)
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scorer import Scorer
from dragoman_server.messages.api_error import ApiError
from dragoman_server.messages.generation_options import ResponseDetails, read_details, read_options, reseeded
from dragoman_server.messages.limits import request_limits
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.messages.token_ids import TargetEncoder
from dragoman_server.metrics import ModelMetrics
from tests.support.fake_engines import MAX_TARGET, FakeEngines, FakeScorerSession, letters_bundle

BUNDLE = letters_bundle()
LIMITS = request_limits(ServerConfig(max_beam_size=6, max_hypotheses=8), 64, BUNDLE.manifest.shape)
TARGET = TargetEncoder(BUNDLE.target_tokenizer, BUNDLE.manifest.tokens, MAX_TARGET)
SIZE = BUNDLE.manifest.shape.target_vocabulary
PAD, UNKNOWN, BEGIN, END, A, B, C = range(7)
NAN, INFINITY = math.nan, math.inf


def text(content: str) -> pb.Input:
    return pb.Input(text=content)


def ids(*tokens: int) -> pb.Input:
    return pb.Input(token_ids=only(*tokens))


def only(*tokens: int) -> pb.TokenIds:
    return pb.TokenIds(ids=tokens)


async def search(options: dict[str, Any], limits: pb.Limits = LIMITS) -> SearchOptions:
    return await read_options(pb.GenerationOptions(**options), ResponseDetails(), TARGET, limits)


BEAM = {"beam_size": 4}
SAMPLE = {"sample": True}
NONE = pb.LENGTH_NORMALIZATION_NONE

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
    ({"alternatives": True, **SAMPLE}, "alternatives", "can't be combined with sample"),
    ({"alternatives": True, "prefix": text("a"), "prefix_bias": 0.5}, "alternatives", "combined with prefix_bias"),
]

# Options and the search that they become.
DEFAULT = SearchOptions(max_new_tokens=12)
UNRESTRICTED = Constraints()


def constrained(**constraints: Any) -> SearchOptions:
    return SearchOptions(max_new_tokens=12, constraints=Constraints(**constraints))


def beam(**options: Any) -> SearchOptions:
    return SearchOptions(max_new_tokens=12, beam=BeamOptions(4, **options))


def sampling(**options: Any) -> SearchOptions:
    return SearchOptions(max_new_tokens=12, sampling=SamplingOptions(seed=1, **options))


READ: list[tuple[dict[str, Any], SearchOptions]] = [
    ({}, DEFAULT),
    ({"max_new_tokens": 1}, SearchOptions(max_new_tokens=1)),
    ({"min_new_tokens": 12}, constrained(min_new_tokens=12)),
    ({"num_hypotheses": 1}, DEFAULT),
    ({"num_hypotheses": 4, **BEAM}, SearchOptions(max_new_tokens=12, num_hypotheses=4, beam=BeamOptions(4))),
    ({"beam_size": 4}, beam()),
    ({"length_normalization": pb.LENGTH_NORMALIZATION_UNSPECIFIED, **BEAM}, beam()),
    (
        {"length_normalization": pb.LENGTH_NORMALIZATION_GNMT, "length_penalty": 0.5, **BEAM},
        beam(length_normalization=LengthNormalization.GNMT, length_penalty=0.5),
    ),
    ({"length_normalization": NONE, **BEAM}, beam(length_normalization=LengthNormalization.NONE)),
    ({"length_penalty": -1.5, **BEAM}, beam(length_penalty=-1.5)),
    ({"coverage_penalty": 0.25, **BEAM}, beam(coverage_penalty=0.25)),
    ({"early_stopping": False, **BEAM}, beam()),
    ({"early_stopping": True, "patience": 1.5, **BEAM}, beam(stopping=Stopping.EARLY, patience=1.5)),
    ({"stopping": pb.STOPPING_UNSPECIFIED, **BEAM}, beam()),
    ({"stopping": pb.STOPPING_EARLY, "patience": 1.5, **BEAM}, beam(stopping=Stopping.EARLY, patience=1.5)),
    ({"stopping": pb.STOPPING_CURRENT_LENGTH, **BEAM}, beam(stopping=Stopping.CURRENT_LENGTH)),
    ({"stopping": pb.STOPPING_MAX_LENGTH, "early_stopping": False, **BEAM}, beam(stopping=Stopping.MAX_LENGTH)),
    ({"beam_groups": 2, "diversity_penalty": 0.25, **BEAM}, beam(groups=2, diversity_penalty=0.25)),
    ({"beam_groups": 2, **BEAM}, beam(groups=2, diversity_penalty=0.5)),
    ({"sample": False}, DEFAULT),
    ({"sample": True, "seed": 1}, sampling()),
    (
        {"sample": True, "seed": 2**64 - 1},
        SearchOptions(max_new_tokens=12, sampling=SamplingOptions(seed=2**64 - 1)),
    ),
    ({"sample": True, "seed": 1, "temperature": 0.5}, sampling(temperature=0.5)),
    ({"sample": True, "seed": 1, "top_k": 50}, sampling(top_k=50)),
    ({"sample": True, "seed": 1, "top_p": 0.75}, sampling(top_p=0.75)),
    ({"sample": True, "seed": 1, "min_p": 0.25}, sampling(min_p=0.25)),
    ({"sample": True, "seed": 1, "typical_p": 0.5}, sampling(typical_p=0.5)),
    ({"sample": True, "seed": 1, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0}, sampling()),
    (
        {"sample": True, "seed": 1, "num_hypotheses": 8},
        SearchOptions(max_new_tokens=12, num_hypotheses=8, sampling=SamplingOptions(seed=1)),
    ),
    (
        {"prefix": text("Ab"), "min_new_tokens": 10},
        SearchOptions(max_new_tokens=10, constraints=Constraints(min_new_tokens=10, prefix=(A, B))),
    ),
    ({"prefix": ids(A, B), "prefix_bias": 0.5}, constrained(prefix=(A, B), prefix_bias=0.5)),
    ({"prefix": text("a" * 11)}, SearchOptions(max_new_tokens=1, constraints=Constraints(prefix=(A,) * 11))),
    ({"suppressed_tokens": [B, A, B, UNKNOWN]}, constrained(suppressed=(UNKNOWN, A, B))),
    (
        {"suppressed_tokens": [C], "suppressed_sequences": [text("ab"), ids(A, C), ids(A, B), text("a")]},
        constrained(suppressed=(A, C), suppressed_sequences=((A, B), (A, C))),
    ),
    ({"repetition_penalty": 1.5}, constrained(repetition_penalty=1.5)),
    ({"no_repeat_ngram_size": 2}, constrained(no_repeat_ngram_size=2)),
    ({"encoder_no_repeat_ngram_size": 2}, constrained(encoder_no_repeat_ngram_size=2)),
    (
        {"stop_sequences": ["b", "é"], "include_stop_sequence": True},
        constrained(stop_sequences=("b", "é"), include_stop_sequence=True),
    ),
    ({"vocabulary": only(B, A, B)}, constrained(vocabulary=(END, A, B))),
    ({"vocabulary": only(A, END)}, constrained(vocabulary=(END, A))),
    (
        {"alternatives": True, "num_hypotheses": 8, "prefix": text("a")},
        SearchOptions(max_new_tokens=11, num_hypotheses=8, alternatives=True, constraints=Constraints(prefix=(A,))),
    ),
    (
        {"alternatives": True, "num_hypotheses": 2, "early_stopping": True, "patience": 0.25, **BEAM},
        SearchOptions(
            max_new_tokens=12,
            num_hypotheses=2,
            alternatives=True,
            beam=BeamOptions(4, stopping=Stopping.EARLY, patience=0.25),
        ),
    ),
]
OPTIONS = {field.name for field in pb.GenerationOptions.DESCRIPTOR.fields}


def described(options: dict[str, Any]) -> str:
    return ", ".join(f"{name}={str(value)[:20].strip()}" for name, value in options.items()).replace("\n", " ")


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


@pytest.mark.parametrize(
    ("options", "expected"), READ, ids=lambda case: described(case) if isinstance(case, dict) else ""
)
async def test_valid_options_become_a_search(options: dict[str, Any], expected: SearchOptions) -> None:
    assert await search(options) == expected


# The inclusive bounds that the API documents. 32 bits represent only the whole numbers among them exactly.
BOUNDS: list[tuple[dict[str, Any], SearchOptions]] = [
    ({"repetition_penalty": 0.01}, constrained(repetition_penalty=0.01)),
    ({"repetition_penalty": 100}, constrained(repetition_penalty=100.0)),
    ({"length_penalty": -10, **BEAM}, beam(length_penalty=-10.0)),
    ({"length_penalty": 10, **BEAM}, beam(length_penalty=10.0)),
    ({"coverage_penalty": 100, **BEAM}, beam(coverage_penalty=100.0)),
    ({"early_stopping": True, "patience": 1000, **BEAM}, beam(stopping=Stopping.EARLY, patience=1000.0)),
    ({"beam_groups": 2, "diversity_penalty": 100, **BEAM}, beam(groups=2, diversity_penalty=100.0)),
    ({"sample": True, "seed": 1, "temperature": 0.001}, sampling(temperature=0.001)),
    ({"sample": True, "seed": 1, "temperature": 1000}, sampling(temperature=1000.0)),
    ({"sample": True, "seed": 1, "min_p": 1}, sampling(min_p=1.0)),
]
DECIMALS: list[tuple[dict[str, Any], SearchOptions]] = [
    ({"length_penalty": 0.6, "coverage_penalty": 0.2, **BEAM}, beam(length_penalty=0.6, coverage_penalty=0.2)),
    ({"early_stopping": True, "patience": 0.9, **BEAM}, beam(stopping=Stopping.EARLY, patience=0.9)),
    ({"beam_groups": 2, "diversity_penalty": 0.7, **BEAM}, beam(groups=2, diversity_penalty=0.7)),
    (
        {"sample": True, "seed": 1, "temperature": 0.7, "top_p": 0.9, "min_p": 1e-6, "typical_p": 0.2},
        sampling(temperature=0.7, top_p=0.9, min_p=1e-6, typical_p=0.2),
    ),
    ({"prefix": ids(A), "prefix_bias": 0.1}, constrained(prefix=(A,), prefix_bias=0.1)),
    ({"repetition_penalty": 1.2}, constrained(repetition_penalty=1.2)),
]


@pytest.mark.parametrize(
    ("options", "expected"), BOUNDS + DECIMALS, ids=lambda case: described(case) if isinstance(case, dict) else ""
)
async def test_numbers_are_read_as_the_client_wrote_them(options: dict[str, Any], expected: SearchOptions) -> None:
    """Although their fields have 32 bits, in which 0.01 and 0.9 are slightly different numbers."""
    assert await search(options) == expected


@pytest.mark.parametrize(
    ("patience", "width", "enough"),
    [(0.9, 5, 5), (0.7, 5, 4), (0.58, 25, 15), (0.5, 5, 3), (0.49, 5, 2), (1, 5, 5), (1e-6, 5, 0), (1000, 64, 64000)],
)
def test_halves_are_rounded_up(patience: float, width: int, enough: int) -> None:
    assert BeamOptions(64, stopping=Stopping.EARLY, patience=patience).finished_quota(width) == enough


async def test_patience_and_bounds_are_the_same_in_the_open_inference_protocol() -> None:
    decimals = {"repetition_penalty": 0.01, "patience": 0.9}
    parameters = {"beam_size": oip.InferParameter(int64_param=5), "early_stopping": oip.InferParameter(bool_param=True)}
    parameters |= {name: oip.InferParameter(double_param=value) for name, value in decimals.items()}
    found = await read_options(Parameters(parameters).options, ResponseDetails(), TARGET, LIMITS)
    assert found.constraints.repetition_penalty == 0.01
    assert found.beam
    assert found.beam.finished_quota(5) == 5


def test_the_tables_cover_all_options() -> None:
    """A new option needs a refusal and a valid use in the tables above."""
    of_calls = {"time_limit"}  # not part of the search; see test_api_requests.py
    harmless = {"sample"}  # never refused itself
    refused = {field.split(".")[0].split("[")[0] for _, field, _ in REFUSED}
    assert refused == OPTIONS - of_calls - harmless
    assert {name for options, _ in READ for name in options} == OPTIONS - of_calls


def test_the_tables_cover_all_fields_of_a_search() -> None:
    """Every field has a value other than its default somewhere in the table above."""
    changed = {"log_probabilities", "top_tokens", "conventions"}  # set by Details, and by the model
    for _, found in READ:
        for part in (found, found.constraints, found.beam, found.sampling):
            if part is not None:
                changed |= {name for name in type(part).__slots__ if getattr(part, name) != _default(part, name)}
    known = {name for part in (SearchOptions, Constraints, BeamOptions, SamplingOptions) for name in part.__slots__}
    assert changed == known


def _default(part: Any, name: str) -> Any:
    return getattr(type(part)(*{BeamOptions: [0], SamplingOptions: [0], SearchOptions: [12]}.get(type(part), [])), name)


async def test_a_seed_is_chosen_if_absent() -> None:
    drawn = [(await search(SAMPLE)).sampling for _ in range(4)]
    assert len({each.seed for each in drawn if each}) == 4
    assert all(each and 0 <= each.seed < 2**64 for each in drawn)
    seeded = await search({"seed": 5, **SAMPLE})
    again = reseeded(seeded)
    assert seeded.sampling
    assert again.sampling
    assert seeded.sampling.seed == 5 != again.sampling.seed
    assert reseeded(DEFAULT) is DEFAULT


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ({}, ResponseDetails()),
        ({"tokens": True}, ResponseDetails(tokens=True)),
        ({"log_probabilities": True}, ResponseDetails(tokens=True, log_probabilities=True)),
        ({"top_tokens": 20}, ResponseDetails(tokens=True, log_probabilities=True, top_tokens=20)),
        ({"alignment": True}, ResponseDetails(tokens=True, alignment=True)),
        ({"attention": True}, ResponseDetails(tokens=True, attention=True)),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
async def test_details_imply_others(details: dict[str, Any], expected: ResponseDetails) -> None:
    assert read_details(pb.Details(**details), LIMITS) == expected
    found = await read_options(pb.GenerationOptions(), expected, TARGET, LIMITS)
    assert (found.log_probabilities, found.top_tokens) == (expected.log_probabilities, expected.top_tokens)
    assert {field.name for field in pb.Details.DESCRIPTOR.fields} == set(ResponseDetails.__slots__)


@pytest.mark.parametrize("count", [-1, 21])
def test_top_tokens_out_of_range_are_refused(count: int) -> None:
    with pytest.raises(ApiError, match=rf"^details\.top_tokens is {count}, but must be from 0 to 20$"):
        read_details(pb.Details(top_tokens=count), LIMITS)


def test_limits_never_exceed_the_rows_of_an_engine() -> None:
    shape = BUNDLE.manifest.shape
    few = request_limits(ServerConfig(max_beam_size=16, max_hypotheses=32), 4, shape)
    assert (few.beam_size, few.hypotheses) == (4, 4)
    wide = request_limits(ServerConfig(max_beam_size=48, max_hypotheses=32), 64, shape)
    assert (wide.beam_size, wide.hypotheses) == (
        48,
        48,
    )  # or one alternative completed by beam search would be too many
    tiny = request_limits(ServerConfig(), 64, shape.model_copy(update={"target_vocabulary": 9}))
    assert tiny.top_tokens == 9


async def test_values_at_the_limits_are_allowed_and_no_more() -> None:
    limits = pb.Limits(
        beam_size=3,
        hypotheses=5,
        stop_sequences=2,
        stop_sequence_characters=3,
        suppressed_sequences=1,
        suppressed_tokens=2,
    )
    for allowed, refused in (
        ({"beam_size": 3}, {"beam_size": 4}),
        ({"num_hypotheses": 5, **SAMPLE}, {"num_hypotheses": 6, **SAMPLE}),
        ({"stop_sequences": ["a", "b"]}, {"stop_sequences": ["a", "b", "c"]}),
        ({"stop_sequences": ["ééé"]}, {"stop_sequences": ["éééé"]}),
        ({"suppressed_sequences": [text("ab")]}, {"suppressed_sequences": [text("ab"), text("ba")]}),
        ({"suppressed_tokens": [A, B]}, {"suppressed_tokens": [A, B, C]}),
    ):
        await search(allowed, limits)
        with pytest.raises(ApiError):
            await search(refused, limits)


async def test_a_request_without_options_gets_the_defaults() -> None:
    scorer = Scorer(FakeScorerSession().load, BUNDLE.manifest.shape, 1, ModelMetrics())
    model = ServedModel(BUNDLE, cast(EnginePool, FakeEngines()), scorer, "cpu", LIMITS, lambda: None)
    read = await read_options(pb.GenerationOptions(), ResponseDetails(), model.target, LIMITS)
    assert await model.read_options(pb.GenerationOptions(), pb.Details()) == (read, read_details(pb.Details(), LIMITS))
    assert (await model.read_options(pb.GenerationOptions(max_new_tokens=1), pb.Details()))[0] != read
    assert (await model.read_options(pb.GenerationOptions(), pb.Details(tokens=True)))[1] != ResponseDetails()
