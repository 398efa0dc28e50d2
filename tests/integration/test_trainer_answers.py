"""The answers that the trainer measures are those that the server gives with the exported bundle in fp32."""

import random
from pathlib import Path

import pytest

from dragoman import Client, Result
from dragoman.local import LocalServer
from dragoman_server.core.search_options import BeamOptions, SearchOptions, Stopping
from dragoman_training.evaluation.answers import answer
from dragoman_training.evaluation.decoding import Search
from dragoman_training.run.load import load_run
from tests.reference.subject import Subject


def made_numbers(count: int) -> list[str]:
    """Numbers far longer than any that the model learned, so that it hesitates and its answers are long."""
    draw = random.Random(3)
    return ["".join(draw.choices("0123456789", k=draw.randrange(1, 15))) for _ in range(count)]


@pytest.mark.parametrize(
    "search",
    [Search(), Search(4), Search(5, length_penalty=0.4, early_stopping=True), Search(3, length_penalty=2.0)],
    ids=str,
)
def test_trainer_and_server_answer_alike(search: Search, tiny_run: Path, tiny_server: LocalServer) -> None:
    run, texts = load_run(tiny_run), made_numbers(150)
    trained = answer(run.model, run.tokenizers, texts, search)
    with Client(tiny_server.address) as client:
        results = (
            client.generate_batch(texts)
            if search.beam_size == 1
            else client.generate_batch(
                texts,
                beam_size=search.beam_size,
                length_penalty=search.length_penalty,
                early_stopping=search.early_stopping,
            )
        )
    served = {text: result.text for text, result in zip(texts, results, strict=True) if isinstance(result, Result)}
    assert len(set(served.values())) > 100
    stopping = Stopping.EARLY if search.early_stopping else Stopping.EXACT
    beam = BeamOptions(search.beam_size, length_penalty=search.length_penalty, stopping=stopping)
    options = SearchOptions(run.recipe.model.max_target_length, beam=beam if search.beam_size > 1 else None)
    subject = Subject(tiny_run)
    for text, answered in trained.items():
        if served[text] != answered:
            margin = subject.decode(run.tokenizers.source.encode(text).ids, options).margin
            assert margin < 1e-4, f"{text}: the server says {served[text]}, the trainer {answered}"
