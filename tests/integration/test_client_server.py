"""The clients and the command against the server itself, with the tiny model that reads numbers out."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dragoman import AsyncClient, Client, HealthStatus, InvalidArgumentError, ItemError, NotFoundError, Result
from dragoman.local import LocalServer

NUMBERS = [str(number) for number in range(1000)]


@pytest.fixture
def client(tiny_server: LocalServer) -> Iterator[Client]:
    with Client(tiny_server.address) as client:
        yield client


def command(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program = str(Path(sys.executable).with_name("dragoman"))
    return subprocess.run([program, *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_every_way_to_ask_gives_the_same_answer(client: Client, tiny_server: LocalServer) -> None:
    one = client.generate("42", log_probabilities=True)
    assert one.text == "forty two"
    assert "".join(piece.text for piece in client.generate_stream("42")) == one.text
    assert client.generate_stream("42", log_probabilities=True).result() == one
    assert client.generate_batch(["42"], log_probabilities=True) == [one]
    assert client.generate([token.id for token in client.tokenize("42")], log_probabilities=True) == one
    assert client.detokenize([token.id for token in one.tokens]) == one.text
    assert command("generate", "42", "--address", tiny_server.address).stdout == one.text + "\n"


def test_lines_are_answered_as_calls_are(client: Client, tiny_server: LocalServer) -> None:
    answers = [each.text for each in client.generate_many(NUMBERS) if isinstance(each, Result)]
    assert len(answers) == len(NUMBERS)
    for number in (0, 7, 999):
        assert answers[number] == client.generate(NUMBERS[number]).text
    done = command("generate", "--address", tiny_server.address, stdin="\n".join(NUMBERS))
    assert done.stdout.splitlines() == answers
    assert (done.returncode, done.stderr) == (0, "")


def test_bad_lines_do_not_spoil_the_others(tiny_server: LocalServer) -> None:
    done = command("generate", "--json", "--address", tiny_server.address, stdin="1\n\nЖ\n" + "1" * 5000 + "\n2\n")
    first, empty, strange, long, last = map(json.loads, done.stdout.splitlines())
    assert (first["finish_reason"], last["finish_reason"]) == ("EOS", "EOS")
    assert [each["error"]["code"] for each in (empty, strange, long)] == ["INVALID_ARGUMENT"] * 3
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == ["line 2", "line 3", "line 4"]
    assert "Ж" in strange["error"]["message"]
    assert done.returncode == 1


def test_a_large_batch_with_bad_items(client: Client) -> None:
    texts = [*NUMBERS[:997], "", "Ж", "\ud800"]
    outcomes = client.generate_batch(texts)
    assert all(isinstance(each, Result) for each in outcomes[:997])
    assert [each.index for each in outcomes[997:] if isinstance(each, ItemError)] == [997, 998, 999]


def test_wrong_requests_are_explained(client: Client, tiny_server: LocalServer) -> None:
    with pytest.raises(InvalidArgumentError, match=r"options\.max_new_tokens is 0"):
        client.generate("1", max_new_tokens=0)
    with pytest.raises(InvalidArgumentError, match=r"input\.text"):
        client.generate("")
    with pytest.raises(InvalidArgumentError, match=r"input\.token_ids"):
        client.generate([10**6])
    with pytest.raises(NotFoundError, match="no-such-model"):
        client.generate("1", model="no-such-model")
    done = command("generate", "--max-new-tokens", "0", "--address", tiny_server.address, stdin="1\n2\n3\n")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_models_and_health(client: Client, tiny_server: LocalServer) -> None:
    (model,) = client.models()
    assert client.model(model.name) == model
    assert model.max_target_tokens > 0
    assert client.health() is HealthStatus.SERVING
    assert client.health("dragoman.v1.GenerationService") is HealthStatus.SERVING
    assert command("health", "--address", tiny_server.address).returncode == 0
    assert model.name in command("models", "--address", tiny_server.address).stdout


async def test_a_server_that_drains_leaves_its_work_to_another(
    start_server: Callable[..., LocalServer], tiny_bundle: Path
) -> None:
    servers = [start_server("--bundle", str(tiny_bundle)) for _ in range(2)]
    async with AsyncClient([server.address for server in servers]) as client:
        answers = []
        async for answer in client.generate_many(NUMBERS * 3):
            answers.append(answer)
            if len(answers) == 100:
                servers[0].process.send_signal(signal.SIGTERM)
        assert all(isinstance(each, Result) for each in answers)
        assert len(answers) == 3 * len(NUMBERS)
        assert await asyncio.to_thread(servers[0].stop) == 0
        assert (await client.generate("42")).text == "forty two"
