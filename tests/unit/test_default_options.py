"""Default options of an imported model: how they complete those of a request."""

from dataclasses import replace
from typing import Any, cast

import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import BundleError
from dragoman_server.bundle.manifest import Generation
from dragoman_server.core.search_options import OWN_CONVENTIONS, Conventions, SearchOptions, Stopping
from dragoman_server.engine.pool import EnginePool
from dragoman_server.engine.scorer import Scorer
from dragoman_server.messages.api_error import ApiError
from dragoman_server.messages.default_options import OWN_DEFAULTS, Defaults, read_defaults
from dragoman_server.messages.generation_options import ResponseDetails, read_options
from dragoman_server.messages.served_model import ServedModel
from dragoman_server.messages.token_ids import TargetEncoder
from dragoman_server.metrics import ModelMetrics
from tests.support.fake_engines import FakeEngines, FakeScorerSession, letters_bundle

BUNDLE = letters_bundle()
BEGIN, A, B = 2, 4, 5
LIMIT = 40
LIMITS = pb.Limits(beam_size=8, hypotheses=8, suppressed_tokens=9, suppressed_sequences=9)
TARGET = TargetEncoder(BUNDLE.target_tokenizer, BUNDLE.manifest.tokens, LIMIT)

BEAM: dict[str, Any] = {
    "beam_size": 4,
    "num_hypotheses": 3,
    "length_penalty": 2.0,
    "stopping": "STOPPING_EARLY",
    "max_new_tokens": 30,
    "min_new_tokens": 10,
    "suppressed_tokens": [A],
}
SAMPLE: dict[str, Any] = {"sample": True, "temperature": 0.5, "top_k": 50}


def model_defaults(options: dict[str, Any], **rules: Any) -> Defaults:
    return read_defaults(BUNDLE.manifest.model_copy(update={"generation": Generation(options=options, **rules)}))


async def search(options: dict[str, Any], **request: Any) -> SearchOptions:
    defaults = model_defaults(options).within(LIMITS)
    complete = defaults.complete(pb.GenerationOptions(**request))
    return await read_options(complete, ResponseDetails(), TARGET, LIMITS, defaults)


async def test_a_request_without_options_gets_the_defaults() -> None:
    found = await search(BEAM)
    assert found.beam
    assert (found.beam.beam_size, found.beam.length_penalty, found.beam.stopping) == (4, 2.0, Stopping.EARLY)
    assert (found.num_hypotheses, found.max_new_tokens) == (3, 30)
    assert (found.constraints.min_new_tokens, found.constraints.suppressed) == (10, (A,))
    sampled = (await search(SAMPLE)).sampling
    assert sampled
    assert (sampled.temperature, sampled.top_k) == (0.5, 50)


@pytest.mark.parametrize(
    ("request_options", "beam_size", "hypotheses", "length_penalty", "stopping"),
    [
        ({"beam_size": 2}, 2, 1, 2.0, Stopping.EARLY),
        ({"num_hypotheses": 4}, 4, 4, 2.0, Stopping.EARLY),
        ({"length_penalty": 0.5}, 4, 3, 0.5, Stopping.EARLY),
        ({"length_normalization": pb.LENGTH_NORMALIZATION_NONE}, 4, 3, 1.0, Stopping.EARLY),
        ({"length_normalization": pb.LENGTH_NORMALIZATION_GNMT}, 4, 3, 2.0, Stopping.EARLY),
        ({"early_stopping": False}, 4, 3, 2.0, Stopping.CURRENT_LENGTH),
        ({"early_stopping": True}, 4, 3, 2.0, Stopping.EARLY),
        ({"stopping": pb.STOPPING_EXACT}, 4, 3, 2.0, Stopping.EXACT),
        ({"stopping": pb.STOPPING_UNSPECIFIED}, 4, 3, 2.0, Stopping.EARLY),
        ({"sample": False}, 4, 3, 2.0, Stopping.EARLY),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else "",
)
async def test_options_of_a_request_win(
    request_options: dict[str, Any], beam_size: int, hypotheses: int, length_penalty: float, stopping: Stopping
) -> None:
    found = await search(BEAM, **request_options)
    assert found.beam
    assert (found.beam.beam_size, found.num_hypotheses) == (beam_size, hypotheses)
    assert (found.beam.length_penalty, found.beam.stopping) == (length_penalty, stopping)


async def test_a_list_of_a_request_replaces_the_default() -> None:
    assert (await search(BEAM, suppressed_tokens=[B])).constraints.suppressed == (B,)
    only = await search(BEAM, vocabulary=pb.TokenIds(ids=[A]))
    assert only.constraints.suppressed == ()  # or there would be nothing to choose


async def test_another_kind_of_search_drops_the_defaults_of_this_one() -> None:
    sampled = await search(BEAM, sample=True)
    assert sampled.sampling
    assert (sampled.beam, sampled.num_hypotheses) == (None, 1)
    alternatives = await search(BEAM, alternatives=True, num_hypotheses=8)
    assert (alternatives.beam, alternatives.num_hypotheses) == (None, 8)
    beam = await search(SAMPLE, beam_size=3)
    assert beam.beam
    assert beam.sampling is None
    greedy = await search(SAMPLE, sample=False)
    assert (greedy.beam, greedy.sampling) == (None, None)


async def test_default_lengths_give_way() -> None:
    short = await search(BEAM, max_new_tokens=5)
    assert (short.max_new_tokens, short.constraints.min_new_tokens) == (5, 5)
    long = await search(BEAM, min_new_tokens=35)
    assert (long.max_new_tokens, long.constraints.min_new_tokens) == (LIMIT, 35)
    prefix = await search(BEAM, prefix=pb.Input(token_ids=pb.TokenIds(ids=[B] * 33)))
    assert (prefix.max_new_tokens, prefix.constraints.min_new_tokens) == (7, 7)


async def test_a_beam_is_no_wider_than_the_server_allows() -> None:
    found = await search({"beam_size": 10, "num_hypotheses": 10})
    assert found.beam
    assert (found.beam.beam_size, found.num_hypotheses) == (8, 8)


async def test_defaults_do_not_hide_a_contradiction_within_a_request() -> None:
    with pytest.raises(ApiError, match="stopping is EXACT, but early_stopping is true"):
        await search(BEAM, stopping=pb.STOPPING_EXACT, early_stopping=True)
    with pytest.raises(ApiError, match="temperature needs sample"):
        await search(BEAM, temperature=0.5)


def test_the_rules_of_a_model_are_read() -> None:
    found = model_defaults({}, forced_first=A, forces_end=True, begin_suppressed=[B], renormalized=False)
    assert found.conventions == Conventions(A, True, (B,), renormalized=False, late_penalty=True)
    assert model_defaults({}, whole_history=True).conventions == Conventions(late_penalty=True, history=(BEGIN,))


def test_own_models_have_no_defaults() -> None:
    assert read_defaults(BUNDLE.manifest) is OWN_DEFAULTS
    assert OWN_DEFAULTS.conventions is OWN_CONVENTIONS
    options = pb.GenerationOptions(beam_size=2)
    assert OWN_DEFAULTS.complete(options) is options


def test_damaged_defaults_are_refused() -> None:
    with pytest.raises(BundleError, match=r"^manifest\.json: generation\.options: .*beams"):
        model_defaults({"beams": 4})


async def test_each_request_without_options_samples_anew() -> None:
    generation = Generation(options=SAMPLE)
    bundle = replace(BUNDLE, manifest=BUNDLE.manifest.model_copy(update={"generation": generation}))
    scorer = Scorer(FakeScorerSession().load, bundle.manifest.shape, 1, ModelMetrics())
    model = ServedModel(
        bundle, cast(EnginePool, FakeEngines()), scorer, "cpu", LIMITS, lambda: None, read_defaults(bundle.manifest)
    )
    read = [await model.read_options(pb.GenerationOptions(), pb.Details()) for _ in range(4)]
    assert len({options.sampling.seed for options, _ in read if options.sampling}) == 4


def test_a_model_shows_the_defaults_that_requests_get() -> None:
    bundle = replace(BUNDLE, manifest=BUNDLE.manifest.model_copy(update={"generation": Generation(options=BEAM)}))
    scorer = Scorer(FakeScorerSession().load, bundle.manifest.shape, 1, ModelMetrics())
    limits = pb.Limits(beam_size=2, hypotheses=2)
    defaults = read_defaults(bundle.manifest)
    shown = ServedModel(bundle, cast(EnginePool, FakeEngines()), scorer, "cpu", limits, lambda: None, defaults).info
    options = shown.default_options
    assert (options.max_new_tokens, options.min_new_tokens, options.length_penalty) == (30, 10, 2.0)
    assert (options.beam_size, options.num_hypotheses) == (2, 2)  # the server's limits
    plain = ServedModel(BUNDLE, cast(EnginePool, FakeEngines()), scorer, "cpu", limits, lambda: None).info
    assert not plain.HasField("default_options")
