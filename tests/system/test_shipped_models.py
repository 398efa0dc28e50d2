"""The shipped models: what a server without options serves, and what the translator can do."""

from collections.abc import Iterator, Sequence

import pytest

from dragoman import Client, Result
from dragoman.local import LocalServer
from dragoman_server.models.repository import SHIPPED_MODELS
from tests.quality.robustness import EMOJI, FOREIGN_WORDS, LINE_BREAKS, check_inserts, check_numbers

TRANSLATOR = "de-en"
SENTENCES = {
    "Guten Morgen!": "Good morning.",
    "Kannst du mir bitte das Salz reichen?": "Can you pass me the salt, please?",
    "Wenn es morgen regnet, bleiben wir zu Hause und lesen ein Buch.": (
        "If it rains tomorrow, we'll stay at home and read a book."
    ),
    "Der Zug nach Berlin fährt in zehn Minuten ab.": "The train to Berlin leaves in ten minutes.",
    "Wir haben gestern Tennis gespielt.": "We played tennis yesterday.",
    "Tom wohnt in Boston.": "Tom lives in Boston.",
    "Ich verstehe dich nicht.": "I don't understand you.",
    "Sie liest gern Bücher.": "She likes to read books.",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client of a server that was started without options."""
    with LocalServer(log=tmp_path_factory.mktemp("server") / "log") as server, Client(server.address) as client:
        yield client


def translate(client: Client, texts: Sequence[str]) -> list[str]:
    answers = client.generate_batch(list(texts), model=TRANSLATOR)
    return [answer.text if isinstance(answer, Result) else str(answer) for answer in answers]


def test_all_shipped_models_are_served(client: Client) -> None:
    assert {model.name for model in client.models()} == {"g2p-en", TRANSLATOR}
    assert client.model().name == TRANSLATOR
    assert client.generate("transformer", model="g2p-en").text == "T R AE N S F AO R M ER"


def test_simple_sentences_are_translated(client: Client) -> None:
    assert translate(client, list(SENTENCES)) == list(SENTENCES.values())


@pytest.mark.parametrize("inserts", [LINE_BREAKS, EMOJI, FOREIGN_WORDS])
def test_inserts_leave_the_rest_as_it_was(client: Client, inserts: list[str]) -> None:
    outcome = check_inserts(lambda texts: translate(client, texts), list(SENTENCES), inserts)
    assert outcome.wrong == []


def test_any_text_is_answered(client: Client) -> None:
    texts = ["🌞", "東京", "\u200b?", "ß" * 50, "a\nb\tc", "</s><unk>", "٣", "x" * 200, "\U0010fffd"]
    answers = client.generate_batch(texts, model=TRANSLATOR, max_new_tokens=20)
    assert all(isinstance(answer, Result) for answer in answers)


def test_numbers_are_kept(client: Client) -> None:
    """The measured share is 99.5 %."""
    outcome = check_numbers(lambda texts: translate(client, texts), 100)
    assert outcome.right >= 98


def test_the_attribution_stands_beside_the_translator() -> None:
    folder = SHIPPED_MODELS / TRANSLATOR / "1"
    assert "CC BY 2.0" in (folder / "ATTRIBUTION.txt").read_text(encoding="utf-8")
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 25_000_000
