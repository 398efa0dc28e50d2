"""Emoji and words in other scripts skip the shipped translator and come back, however it is asked."""

import json
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from dragoman import Client, Result
from dragoman.bulk.in_process import open_bundle
from dragoman.local import LocalServer
from dragoman_server.bundle.manifest import MANIFEST_FILE
from dragoman_server.models.repository import SHIPPED_MODELS

MODEL = SHIPPED_MODELS / "de-en" / "1"
PLAIN = {
    "Sie liest 📚 gern Bücher.": "Sie liest gern Bücher.",
    "Wir haben gestern 🎾 Tennis gespielt.": "Wir haben gestern Tennis gespielt.",
    "Tom wohnt in Łódź.": "Tom wohnt in.",
    "🌞 Guten Morgen!": "Guten Morgen!",
    "Guten Morgen! 東京": "Guten Morgen!",
}
TEXTS = [*PLAIN]
PIECES = ["📚", "🎾", "Łódź", "🌞", "東京"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A server of the shipped translator, and of the same as it was before it carried text."""
    folder = tmp_path_factory.mktemp("models")
    for version in "1", "2":
        shutil.copytree(MODEL, folder / "de-en" / version)
    manifest = folder / "de-en" / "1" / MANIFEST_FILE
    document = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(document | {"carries_text": False, "format_version": 4}))
    repository = folder / "repository.yaml"
    repository.write_text("models: {de-en: {versions: all}}\n")
    with LocalServer("--model-repository", str(folder), log=folder / "log") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: LocalServer) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


@pytest.fixture(scope="module")
def answers(client: Client) -> list[str]:
    return [client.generate(text).text for text in TEXTS]


def test_the_rest_is_translated_as_if_they_were_not_there(client: Client, answers: list[str]) -> None:
    plain = [client.generate(text, model="de-en@1").text for text in PLAIN.values()]
    for answer, piece, expected in zip(answers, PIECES, plain, strict=True):
        assert piece in answer
        assert answer.replace(piece, "").replace(" ", "") == expected.replace(" ", "")
    assert answers[3:] == ["🌞 Good morning.", "Good morning. 東京"]
    assert [client.generate(text, model="de-en@1").text for text in TEXTS] != answers, "the flag makes the difference"


def test_every_method_answers_alike(client: Client, server: LocalServer, answers: list[str]) -> None:
    def texts(results: Any) -> list[str]:
        return [result.text if isinstance(result, Result) else str(result) for result in results]

    assert texts(client.generate_batch(TEXTS)) == answers
    assert texts(client.generate_many(TEXTS)) == answers
    streamed = []
    for text in TEXTS:
        with client.generate_stream(text) as pieces:
            streamed.append("".join(piece.text for piece in pieces))
    assert streamed == answers
    source = triton.InferInput("text", [len(TEXTS), 1], "BYTES")
    source.set_data_from_numpy(np.array([[text.encode()] for text in TEXTS], dtype=object))
    with triton.InferenceServerClient(server.address) as other:
        found = other.infer("de-en", [source]).as_numpy("text")
    assert [row[0].decode() for row in found] == answers


def test_files_are_answered_alike(answers: list[str]) -> None:
    backend = open_bundle(MODEL, {}, {"engines": 1, "max_rows": 16})
    try:
        windows = [TEXTS, [text for text in PLAIN.values() for _ in range(2)], TEXTS[::-1] * 2]
        found = [[answer.text for answer in window] for window in backend.answers(windows)]
    finally:
        backend.close()
    assert (found[0], found[2]) == (answers, answers[::-1] * 2)


def test_every_hypothesis_has_them(client: Client) -> None:
    result = client.generate(TEXTS[1], beam_size=4, num_hypotheses=4)
    assert [hypothesis.text.count("🎾") for hypothesis in result.hypotheses] == [1] * 4


def test_details_are_those_of_what_the_model_read(client: Client) -> None:
    plain = client.generate(PLAIN[TEXTS[1]], tokens=True, log_probabilities=True, alignment=True)
    result = client.generate(TEXTS[1], tokens=True, log_probabilities=True, alignment=True)
    (one,), (other,) = plain.hypotheses, result.hypotheses
    assert (other.tokens, other.log_probability, other.alignment) == (one.tokens, one.log_probability, one.alignment)
    assert (result.source, result.source_tokens) == (plain.source, plain.source_tokens)
    assert not result.unseen_source_tokens
    assert "🎾" in other.text
    assert client.generate(TEXTS[1], attention=True).hypotheses[0].alignment == (), "not asked for"


def test_token_ids_are_read_as_they_are(client: Client) -> None:
    ids = [token.id for token in client.tokenize(TEXTS[0])]
    assert client.generate(ids).text == client.generate(ids, model="de-en@1").text


def test_a_stop_sequence_cuts_the_text_first(client: Client) -> None:
    assert client.generate("Tom wohnt 😀 in Boston. 🎉", stop_sequences=[" Boston"]).text == "Tom lives 😀 in 🎉"
