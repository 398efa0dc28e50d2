"""Batches of plain searches answer what the searches of the server answer."""

from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.core.requests import GenerationResult
from dragoman_server.core.search_options import BeamOptions, LengthNormalization, SearchOptions, Stopping
from dragoman_server.decoding.factory import make_search
from dragoman_server.offline import engines
from dragoman_server.offline.batch_beam import BeamBatch
from dragoman_server.offline.batch_greedy import greedy_batch
from dragoman_server.offline.batch_threads import fits_batches
from dragoman_server.offline.model import OfflineModel
from dragoman_server.runtime.runtime import Runtime
from tests.support.bundles import SHIPPED_G2P
from tests.support.scripted_runtime import TOKENS, ScriptedRuntime, random_script
from tests.support.scripted_search import Script, letters_decoder, run

LONGEST = 12  # tokens
WORDS = "transformer speech dragoman interpreter corpus wednesday the colonel queue a".split()


def searched(script: Script, search: SearchOptions, vocabulary: int) -> GenerationResult:
    made = make_search(search, cast(Any, TOKENS), vocabulary, letters_decoder())
    return GenerationResult(run(made, script).hypotheses)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_batch_answers_what_each_search_alone_answers(data: st.DataObject) -> None:
    """Also with equal probabilities, with dead ends, and where some sources end long before others."""
    width = data.draw(st.integers(1, 5), "beam size")
    normalization = data.draw(st.sampled_from(LengthNormalization))
    beam = BeamOptions(
        width,
        normalization,
        data.draw(st.sampled_from([1.0, 0.0, 0.6, 2.0, -1.0])),
        stopping=data.draw(st.sampled_from(Stopping)),
        patience=data.draw(st.sampled_from([1.0, 1.5])),
    )
    search = SearchOptions(
        data.draw(st.integers(1, LONGEST), "max_new_tokens"), data.draw(st.integers(1, width), "num"), beam
    )
    vocabulary = data.draw(st.integers(2 * width, 12), "vocabulary")
    coarse, impossible = data.draw(st.booleans(), "coarse"), data.draw(st.sampled_from([0.0, 0.5, 1.0]), "impossible")
    seeds = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), "seeds")
    scripts = [random_script(seed, vocabulary, coarse, impossible) for seed in seeds]
    runtime = cast(Runtime, ScriptedRuntime(scripts, vocabulary, len(seeds) * width, LONGEST))
    assert fits_batches(search, vocabulary)
    answers = BeamBatch(runtime, search).answers([[number] for number in range(len(seeds))])
    assert answers == [searched(script, search, vocabulary) for script in scripts]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, LONGEST), st.sampled_from([0.0, 1.0]))
def test_a_greedy_batch_answers_what_each_search_alone_answers(
    seed: int, count: int, max_new_tokens: int, impossible: float
) -> None:
    scripts = [random_script(seed + number, 8, coarse=True, impossible=impossible) for number in range(count)]
    runtime = cast(Runtime, ScriptedRuntime(scripts, 8, count, LONGEST))
    answers = greedy_batch(runtime, [[number] for number in range(count)], max_new_tokens)
    expected = [searched(script, SearchOptions(max_new_tokens), 8) for script in scripts]
    # GreedySearch adds log-probabilities in the same order.
    assert answers == expected


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, True),
        ({"beam_size": 5, "num_hypotheses": 3}, True),
        ({"beam_size": 4, "early_stopping": True, "length_penalty": 0.6}, True),
        ({"beam_size": 4, "coverage_penalty": 0.2}, False),
        ({"beam_size": 4, "beam_groups": 2}, False),
        ({"min_new_tokens": 2}, False),
        ({"alternatives": True, "num_hypotheses": 2}, False),
        ({"sample": True, "seed": 1}, False),
        ({"beam_size": 22}, False),  # of a vocabulary of 43
    ],
    ids=str,
)
def test_plain_searches_are_decoded_by_batches_and_all_others_by_engines(
    options: dict[str, Any], batches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OfflineModel(SHIPPED_G2P, ServerConfig(max_rows=24, engines=2, max_beam_size=24))
    try:
        search = model.search(pb.GenerationOptions(**options))
        assert fits_batches(search, model.manifest.shape.target_vocabulary) == batches
        requests = model.requests([ids for ids in model.encode(WORDS) if not isinstance(ids, str)], search)
        answers = model.engines.wait(model.engines.submit(requests), lambda: False)
        assert len(answers) == len(WORDS)
        assert all(isinstance(answer, GenerationResult) for answer in answers)
        if batches:
            monkeypatch.setattr(engines, "fits_batches", lambda *_: False)
            assert answers == model.engines.wait(model.engines.submit(requests), lambda: False)
    finally:
        model.close()
