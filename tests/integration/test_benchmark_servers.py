"""The plain server that the benchmark measures beside ours gives our answers, in batches of mixed limits too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import Client
from dragoman.local import LOOPBACK, ServerStartError
from dragoman_server.bundle.load import load_bundle
from tests.benchmark.servers.cli import convert_with_tokenizers
from tests.benchmark.servers.load import PROTOCOLS, ServerLoad
from tests.benchmark.servers.running import Running, Setting, start_asyncio
from tests.benchmark.servers.translation import TARGET_TOKENIZER
from tests.support.bundles import SHIPPED_G2P

WORDS = ["court", "between", "two", "dragoman", "serendipity", "transformer", "a", "read", "interpreter", "stood"]
LIMITS = [3, 40, 1, 40, 5, 40, 1, 40, 7, 40]
ASKED = list(zip(WORDS, LIMITS, strict=True))


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    convert_with_tokenizers(load_bundle(SHIPPED_G2P), folder)
    return folder


@pytest.fixture(scope="module")
def plain(converted: Path) -> Iterator[Running]:
    with start_asyncio(converted, "float32", Setting(1, 1, batch=16)) as running:
        yield running


def load(plain: Running, converted: Path, limits: list[int]) -> ServerLoad:
    address = (LOOPBACK, plain.port)
    tokenizer = converted / TARGET_TOKENIZER
    return ServerLoad(address, plain.process.pid, "generate", "model", WORDS, limits, tokenizer, ends=True)


def test_it_gives_our_answers(plain: Running, converted: Path, shipped_client: Client) -> None:
    expected = [shipped_client.generate(word, max_new_tokens=limit).text for word, limit in ASKED]
    answers = load(plain, converted, LIMITS).answers(concurrency=len(WORDS))
    assert [PROTOCOLS["generate"].text(answer or b"") for answer in answers] == expected
    assert [len(text.split()) for text in expected[::2]] == LIMITS[::2]


def test_what_it_gives_is_counted_with_the_end_token(plain: Running, converted: Path, shipped_client: Client) -> None:
    phones = [len(shipped_client.generate(word).text.split()) for word in WORDS]
    asked = load(plain, converted, [64] * len(WORDS))
    answers = asked.answers(concurrency=len(WORDS))
    assert [asked.count(answer or b"") for answer in answers] == [(n + 1, 1) for n in phones]


def test_a_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    missing = start_asyncio(tmp_path / "missing", "float32", Setting(1, 1, 1))
    with pytest.raises(ServerStartError, match="No such file or directory"), missing:
        pass
