"""Every option of the API: the search that it becomes. Invalid values are in test_api_option_refusals.py."""

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
from dragoman_server.metrics import ModelMetrics
from tests.support.fake_engines import FakeEngines, FakeScorerSession
from tests.support.request_options import (
    BEAM,
    BUNDLE,
    END,
    LIMITS,
    NONE,
    OPTIONS,
    SAMPLE,
    TARGET,
    UNKNOWN,
    A,
    B,
    C,
    described,
    ids,
    only,
    search,
    text,
)

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
    ({"use_shortlist": True}, SearchOptions(max_new_tokens=12, use_shortlist=True)),
    ({"use_shortlist": False, **BEAM}, SearchOptions(max_new_tokens=12, beam=BeamOptions(4), use_shortlist=False)),
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


def test_the_table_covers_all_options() -> None:
    assert {name for options, _ in READ for name in options} == OPTIONS


def test_the_table_covers_all_fields_of_a_search() -> None:
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
