"""Decoding with caches against passes over the whole target, and searches against those that the server must equal."""

import random
from typing import Any

import pytest
import torch

from dragoman_server.core.search_options import BeamOptions, SearchOptions, Stopping
from dragoman_training.data.batches import pad
from dragoman_training.data.tokenizers import BEGIN_ID, END_ID
from dragoman_training.evaluation import decoding as decoding_module
from dragoman_training.evaluation.decoding import Search, Task, decode
from dragoman_training.model import ModelConfig, Transformer
from tests.reference.decoding import decode as decode_by_reference
from tests.reference.greedy import greedy
from tests.reference.model import ReferenceModel
from tests.reference.subject import MAX_TARGET, NARROW, WIDE, clear_model
from tests.support.random_model import vary_answers

BASE: dict[str, Any] = {
    "d_model": 16,
    "heads": 2,
    "d_ff": 24,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "max_source_length": 12,
    "max_target_length": 40,  # more than the first capacity of a cache
}
SHAPES: list[dict[str, Any]] = [
    {},
    {"norm": "pre", "norm_kind": "rms", "activation": "swiglu", "bias": False},
    {"positions": "relative", "scaled_attention": False, "d_head": 5, "output_scale": True, "norm": "pre"},
    {"positions": "relative_per_layer", "relative_buckets": 8, "relative_max_distance": 9, "decoder_heads": 4},
    {"positions": "learned", "embedding_norm": "sum", "decoder_embedding_norm": "tokens", "embedding_scale": False},
    {"positions": "sinusoidal_fairseq", "share_embeddings": "all", "decoder_heads": 8, "decoder_d_ff": 40},
]
VOCABULARY = 30


def random_model(**changes: object) -> Transformer:
    torch.manual_seed(6)
    model = Transformer(ModelConfig.model_validate(BASE | changes), VOCABULARY, VOCABULARY, pad=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def random_sources(count: int, longest: int, vocabulary: int = VOCABULARY) -> list[list[int]]:
    draw = random.Random(2)
    return [[draw.randrange(4, vocabulary) for _ in range(draw.randrange(longest))] + [END_ID] for _ in range(count)]


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_steps_equal_a_pass_over_the_whole_target(shape: dict[str, Any]) -> None:
    """Between the steps, rows change places, sources are dropped, and some rows go on twice."""
    model = random_model(**shape).double()
    memory, mask = model.encode(pad(random_sources(4, 11), 0))
    state = model.decoder.begin(memory, mask, rows_per_source=3)
    targets = torch.randint(4, VOCABULARY, (12, 41))
    sources = torch.arange(4).repeat_interleave(3)  # of each row
    for position in range(41):
        hidden = model.decoder.step(targets[:, position], state)
        expected, _ = model.decoder.hidden(targets[:, : position + 1], memory[sources], mask[sources])
        torch.testing.assert_close(hidden, expected[:, -1], rtol=1e-9, atol=1e-9)
        if position in (3, 17):
            kept = torch.tensor([0, 2, 3] if position == 3 else [2, 0])
            rows = (kept[:, None] * 3 + torch.tensor([2, 0, 2])).flatten()
            state.select(rows, kept)
            targets, sources = targets[rows], sources[rows]
        elif position == 9:
            rows = torch.tensor([1, 0, 0, 3, 5, 4, 8, 8, 8])
            state.select(rows)
            targets, sources = targets[rows], sources[rows]


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_equals_greedy_without_caches(shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_module, "rows_at_a_time", lambda *_: 7)
    model, sources = random_model(**shape), random_sources(10, 11)
    vary_answers(model)
    answers = decode(model, Task.of(sources), 40)
    assert answers == greedy(model, sources, 40)
    assert answers == [decode(model, Task.of([source]), 40)[0] for source in sources]
    assert decode(model, Task.of(sources), 2) == [answer[:2] for answer in answers]
    model.decoder.forbid([END_ID, answers[0][0]])
    assert decode(model, Task.of(sources), 40) == greedy(model, sources, 40) != answers


@pytest.mark.parametrize(
    "search",
    [
        Search(2),
        Search(3, length_penalty=0.0),
        Search(4, length_penalty=-1.0),
        Search(5, length_penalty=1.3),
        Search(4, length_penalty=0.6, early_stopping=True),
        Search(25, length_penalty=2.0),  # more continuations than there are tokens
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [NARROW, WIDE, (40, 2.5, 3.0, 4)], ids=["long", "very long", "short"])
def test_beam_search_equals_the_reference_of_the_servers(model: tuple[int, float, float, int], search: Search) -> None:
    trained, sources = clear_model(*model), random_sources(5, 8, model[0])
    reference = ReferenceModel(trained, BEGIN_ID)
    stopping = Stopping.EARLY if search.early_stopping else Stopping.EXACT
    beam = BeamOptions(search.beam_size, length_penalty=search.length_penalty, stopping=stopping)
    decided = 0
    for source, answer in zip(sources, decode(trained, Task.of(sources), MAX_TARGET, search), strict=True):
        expected = decode_by_reference(
            reference.forward(source), SearchOptions(MAX_TARGET, beam=beam), END_ID, lambda ids: ""
        )
        if expected.margin > 1e-5:  # single precision decides as double precision does
            decided += 1
            assert answer == [token for token in expected.hypotheses[0].ids if token != END_ID]
    assert decided >= len(sources) / 2
