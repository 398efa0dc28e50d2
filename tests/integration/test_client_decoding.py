"""The clients and the command against a real server with the tiny model, in every way to decode."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dragoman import (
    AsyncClient,
    Client,
    FinishReason,
    HealthStatus,
    InvalidArgumentError,
    ItemError,
    NotFoundError,
    Result,
    Token,
)
from dragoman.local import LocalServer
from tests.support.servers import G2PServer

MANUAL = Path(__file__).parents[2] / "protos" / "decoding.md"
NUMBER = re.compile(r"-\d+\.\d+")
BLOCKS = re.findall(r"^```console\n(.*?)^```$", MANUAL.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
SOURCE = "742"
NUMBERS = [str(number) for number in range(1000)]


@pytest.fixture
def client(tiny_server: LocalServer) -> Iterator[Client]:
    with Client(tiny_server.address) as client:
        yield client


def command(server: LocalServer, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    program = [str(Path(sys.executable).with_name("dragoman")), *arguments, "--address", server.address]
    return subprocess.run(program, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def texts(result: Result) -> list[str]:
    return [each.text for each in result.hypotheses]


def scores(result: Result) -> list[float]:
    return [each.score for each in result.hypotheses if each.score is not None]


def test_every_method_returns_the_same_answer(client: Client, tiny_server: LocalServer) -> None:
    one = client.generate("42", log_probabilities=True)
    assert one.text == "forty two"
    assert "".join(piece.text for piece in client.generate_stream("42")) == one.text
    assert client.generate_stream("42", log_probabilities=True).result() == one
    assert client.generate_batch(["42"], log_probabilities=True) == [one]
    assert client.generate([token.id for token in client.tokenize("42")], log_probabilities=True) == one
    assert client.detokenize([token.id for token in one.tokens]) == one.text
    assert command(tiny_server, "generate", "42").stdout == one.text + "\n"


def test_many_and_the_command_answer_like_single_calls(client: Client, tiny_server: LocalServer) -> None:
    answers = [each.text for each in client.generate_many(NUMBERS) if isinstance(each, Result)]
    assert len(answers) == len(NUMBERS)
    for number in (0, 7, 999):
        assert answers[number] == client.generate(NUMBERS[number]).text
    done = command(tiny_server, "generate", stdin="\n".join(NUMBERS))
    assert done.stdout.splitlines() == answers
    assert (done.returncode, done.stderr) == (0, "")


def test_invalid_lines_do_not_affect_the_others(tiny_server: LocalServer) -> None:
    done = command(tiny_server, "generate", "--json", stdin="1\n\nЖ\n" + "1" * 5000 + "\n2\n")
    first, empty, strange, long, last = map(json.loads, done.stdout.splitlines())
    assert (first["finish_reason"], last["finish_reason"]) == ("EOS", "EOS")
    assert [each["error"]["code"] for each in (empty, strange, long)] == ["INVALID_ARGUMENT"] * 3
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == ["line 2", "line 3", "line 4"]
    assert "Ж" in strange["error"]["message"]
    assert done.returncode == 1


def test_a_large_batch_with_invalid_items(client: Client) -> None:
    texts = [*NUMBERS[:997], "", "Ж", "\ud800"]
    outcomes = client.generate_batch(texts)
    assert all(isinstance(each, Result) for each in outcomes[:997])
    assert [each.index for each in outcomes[997:] if isinstance(each, ItemError)] == [997, 998, 999]


def test_invalid_requests_are_explained(client: Client, tiny_server: LocalServer) -> None:
    with pytest.raises(InvalidArgumentError, match=r"options\.max_new_tokens is 0"):
        client.generate("1", max_new_tokens=0)
    with pytest.raises(InvalidArgumentError, match=r"input\.text"):
        client.generate("")
    with pytest.raises(InvalidArgumentError, match=r"input\.token_ids"):
        client.generate([10**6])
    with pytest.raises(NotFoundError, match="no-such-model"):
        client.generate("1", model="no-such-model")
    done = command(tiny_server, "generate", "--max-new-tokens", "0", stdin="1\n2\n3\n")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_models_and_health(client: Client, tiny_server: LocalServer) -> None:
    (model,) = client.models()
    assert client.model(model.name) == model
    assert model.max_target_tokens > 0
    assert client.health() is HealthStatus.SERVING
    assert client.health("dragoman.v1.GenerationService") is HealthStatus.SERVING
    assert command(tiny_server, "health").returncode == 0
    assert model.name in command(tiny_server, "models").stdout


async def test_a_draining_server_leaves_its_work_to_another(
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


def test_beam_search_returns_the_best_in_order(client: Client) -> None:
    found = client.generate(SOURCE, beam_size=4, num_hypotheses=4, log_probabilities=True)
    assert len(set(texts(found))) == len(scores(found)) == 4
    assert scores(found) == sorted(scores(found), reverse=True)
    for each in found.hypotheses:
        assert each.log_probability is not None
        assert each.finish_reason is FinishReason.EOS
        assert each.score == pytest.approx(each.log_probability / (each.target_tokens + 1), abs=1e-5)
    assert client.generate(SOURCE, beam_size=4) == client.generate(SOURCE, beam_size=4, early_stopping=False)
    assert client.generate(SOURCE, beam_size=1).text == client.generate(SOURCE).text


def test_length_normalization_is_as_documented(client: Client) -> None:
    def score(**options: Any) -> tuple[float, float, int]:
        best = client.generate(SOURCE, beam_size=3, log_probabilities=True, **options).best
        assert best.score is not None
        assert best.log_probability is not None
        return best.score, best.log_probability, best.target_tokens + 1  # the end token

    found, total, length = score(length_penalty=0.6)
    assert found == pytest.approx(total / length**0.6, abs=1e-5)
    found, total, length = score(length_penalty=0.6, length_normalization="gnmt")
    assert found == pytest.approx(total / ((5 + length) / 6) ** 0.6, abs=1e-5)
    found, total, length = score(length_normalization="none")
    assert found == pytest.approx(total, abs=1e-6)


def test_a_seed_gives_the_same_samples_in_every_method(client: Client, tiny_server: LocalServer) -> None:
    options: dict[str, Any] = {"sample": True, "temperature": 3.0, "num_hypotheses": 3}
    chosen = client.generate(SOURCE, **options)
    assert chosen.seed is not None
    options["seed"] = chosen.seed
    assert client.generate(SOURCE, **options) == chosen
    assert client.generate_batch(["1", SOURCE, "2"], **options)[1] == chosen
    assert list(client.generate_many(["1", SOURCE, "2"], **options))[1] == chosen
    stream = client.generate_stream(SOURCE, **options)
    streamed = ["", "", ""]
    for piece in stream:
        streamed[piece.hypothesis] += piece.text
    assert stream.result() == chosen
    assert streamed == texts(chosen)
    assert len(set(texts(chosen))) > 1
    others = {client.generate(SOURCE, **{**options, "seed": seed}).hypotheses for seed in range(5)}
    assert len(others) > 1
    done = command(
        tiny_server, "generate", "--sample", "--temperature", "3", "-n", "3", "--seed", str(chosen.seed), SOURCE
    )
    assert [line.split("\t")[2] for line in done.stdout.splitlines()] == texts(chosen)


def test_the_narrowest_sampling_is_greedy(client: Client) -> None:
    greedy = client.generate(SOURCE).text
    for rule in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"temperature": 0.001}):
        assert client.generate(SOURCE, sample=True, seed=1, **rule).text == greedy


def test_beam_search_streams_its_progress_and_then_its_texts(client: Client) -> None:
    stream = client.generate_stream(SOURCE, beam_size=3, num_hypotheses=2)
    pieces = list(stream)
    streamed = ["", ""]
    for piece in pieces:
        streamed[piece.hypothesis] += piece.text
    assert streamed == texts(stream.result())
    progress = [piece.progress for piece in pieces if piece.progress is not None]
    assert [each.tokens for each in progress] == sorted(each.tokens for each in progress)
    assert progress  # a slow reader gets several reports as one
    assert all(each.running + each.finished >= 2 for each in progress)
    assert progress[-1].finished >= 2


def test_lengths_are_exact(client: Client) -> None:
    length = client.generate(SOURCE).target_tokens
    cut = client.generate(SOURCE, max_new_tokens=length - 1)
    assert (cut.target_tokens, cut.finish_reason) == (length - 1, FinishReason.LENGTH)
    longer = client.generate(SOURCE, min_new_tokens=length + 3)
    assert longer.target_tokens >= length + 3
    exact = client.generate(SOURCE, beam_size=2, min_new_tokens=length + 2, max_new_tokens=length + 2)
    assert (exact.target_tokens, exact.finish_reason) == (length + 2, FinishReason.LENGTH)


def test_an_answer_starts_with_its_prefix(client: Client) -> None:
    prefix = "one hundred"
    ids = [token.id for token in client.tokenize(prefix, side="target")][:-1]  # without the end token
    for options in ({}, {"beam_size": 2}, {"sample": True, "seed": 3}):
        found = client.generate(SOURCE, prefix=prefix, log_probabilities=True, **options)  # type: ignore[arg-type]
        assert found.text.startswith(prefix)
        assert [token.id for token in found.tokens[: len(ids)]] == ids
        assert all(token.log_probability is None for token in found.tokens[: len(ids)])
        assert all(token.log_probability is not None for token in found.tokens[len(ids) :])
        by_ids = client.generate(SOURCE, prefix=ids, log_probabilities=True, **options)  # type: ignore[arg-type]
        assert by_ids == found
    assert client.generate(SOURCE, prefix=prefix, prefix_bias=0.999).text.startswith(prefix)
    weak = client.generate(SOURCE, prefix=prefix, prefix_bias=1e-6, log_probabilities=True)
    assert weak.text == client.generate(SOURCE).text
    assert weak.tokens[0].log_probability is not None


def test_a_stop_sequence_ends_the_answer(client: Client) -> None:
    text = client.generate(SOURCE).text
    stop = text[3:7]
    before = client.generate(SOURCE, stop_sequences=["never", stop])
    assert (before.text, before.finish_reason) == (text[:3], FinishReason.STOP_SEQUENCE)
    behind = client.generate(SOURCE, stop_sequences=[stop], include_stop_sequence=True)
    assert behind.text == text[:7]
    for include, expected in ((False, text[:3]), (True, text[:7])):
        pieces = client.generate_stream(SOURCE, stop_sequences=[stop], include_stop_sequence=include)
        assert "".join(piece.text for piece in pieces) == expected


def test_suppressed_tokens_and_sequences_do_not_occur(client: Client) -> None:
    tokens = client.generate(SOURCE, tokens=True).tokens
    without = client.generate(SOURCE, tokens=True, suppressed_tokens=[tokens[0].id])
    assert tokens[0].id not in [token.id for token in without.tokens]
    pair = [tokens[1].id, tokens[2].id]
    found = client.generate(SOURCE, tokens=True, suppressed_sequences=["zero", pair])
    assert pair not in [[one.id, other.id] for one, other in pairwise(found.tokens)]


def test_nothing_is_repeated(client: Client) -> None:
    ids = [token.id for token in client.generate("777", tokens=True, no_repeat_ngram_size=2).tokens]
    pairs = list(pairwise(ids))
    assert len(pairs) == len(set(pairs))
    assert client.generate("777", repetition_penalty=100.0).text != client.generate("777").text


def test_a_shortlist_restricts_the_tokens(client: Client, tiny_server: LocalServer, tmp_path: Path) -> None:
    unrestricted = client.generate(SOURCE, tokens=True)
    ids = sorted({token.id for token in unrestricted.tokens})
    assert client.generate(SOURCE, vocabulary=ids).text == unrestricted.text
    few = client.generate(SOURCE, tokens=True, vocabulary=ids[:3], top_tokens=20)
    assert {token.id for token in few.tokens} <= set(ids[:3])
    assert all(len(token.alternatives) <= 4 for token in few.tokens)  # and the end token
    shortlist = tmp_path / "shortlist"
    shortlist.write_text(command(tiny_server, "tokenize", "--side", "target", unrestricted.text).stdout)
    assert command(tiny_server, "generate", "--vocabulary", str(shortlist), SOURCE).stdout == unrestricted.text + "\n"


def test_alternatives_start_with_the_most_probable_tokens(client: Client) -> None:
    first = client.generate(SOURCE, top_tokens=4).tokens[0]
    assert first.alternatives[0].id == first.id
    for options in ({}, {"beam_size": 2}):
        found = client.generate(SOURCE, alternatives=True, num_hypotheses=4, tokens=True, **options)  # type: ignore[arg-type]
        assert [each.tokens[0].id for each in found.hypotheses] == [token.id for token in first.alternatives]


def test_top_tokens_are_the_most_probable_of_each_position(client: Client) -> None:
    for token in client.generate(SOURCE, top_tokens=3).tokens:
        assert len(token.alternatives) == 3
        assert Token(token.id, token.text, token.log_probability) == token.alternatives[0]
        log_probabilities = [each.log_probability for each in token.alternatives]
        assert log_probabilities == sorted(log_probabilities, key=lambda each: -(each or 0))


def test_a_generated_answer_has_the_same_score(client: Client) -> None:
    found = client.generate(SOURCE, log_probabilities=True, alignment=True, attention=True)
    ids = [token.id for token in found.tokens]
    by_ids, by_text, other = client.score(SOURCE, [ids, found.text, "zero"], alignment=True, attention=True).scores
    assert by_text.tokens == by_ids.tokens
    assert by_ids.log_probability == pytest.approx(found.log_probability, abs=1e-4)
    assert [token.id for token in by_ids.tokens[:-1]] == ids
    for scored, generated in zip(by_ids.tokens, found.tokens, strict=False):
        assert scored.log_probability == pytest.approx(generated.log_probability, abs=1e-4)
    assert by_ids.alignment[:-1] == found.alignment
    assert found.attention is not None
    assert by_ids.attention is not None
    assert by_ids.attention.shape == found.attention.shape
    assert list(by_ids.attention.weights) == pytest.approx(list(found.attention.weights), abs=1e-5)
    assert other.log_probability < by_ids.log_probability


def test_attention_covers_every_layer_and_head(client: Client) -> None:
    model = client.model()
    found = client.generate(SOURCE, attention=True, alignment=True, beam_size=2, num_hypotheses=2)
    assert len(found.source) == found.source_tokens
    for each in found.hypotheses:
        assert each.attention is not None
        assert each.attention.shape == (model.decoder_layers, model.heads, len(each.tokens) + 1, len(found.source))
        assert [sum(row) for row in each.attention.mean()] == pytest.approx([1.0] * (len(each.tokens) + 1), abs=1e-5)
        assert len(each.alignment) == len(each.tokens)
        layer = max(model.decoder_layers - 2, 0)
        assert list(each.alignment) == [row.index(max(row)) for row in each.attention.mean(layer)[:-1]]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"beam_size": 2, "sample": True}, "beam_size"),
        ({"beam_size": 2, "num_hypotheses": 3}, "num_hypotheses"),
        ({"num_hypotheses": 2}, "num_hypotheses"),
        ({"top_k": 5}, "top_k"),
        ({"length_penalty": 1.0}, "length_penalty"),
        ({"beam_size": 4, "beam_groups": 3}, "beam_groups"),
        ({"beam_size": 4, "patience": 2.0}, "patience"),
        ({"sample": True, "temperature": 0.0}, "temperature"),
        ({"sample": True, "top_p": 1.5}, "top_p"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens"),
        ({"prefix": [9] * 1000}, "prefix"),
        ({"prefix_bias": 0.5}, "prefix_bias"),
        ({"suppressed_tokens": [10**6]}, "suppressed_tokens[0]"),
        ({"vocabulary": [-1]}, "vocabulary.ids[0]"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"sample": True, "alternatives": True}, "alternatives"),
    ],
)
def test_contradictory_options_are_named(client: Client, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        client.generate(SOURCE, **options)
    (violation,) = caught.value.violations
    assert violation.field.startswith(f"options.{field}")
    with pytest.raises(InvalidArgumentError, match="options"):
        list(client.generate_many([SOURCE, SOURCE], **options))


def test_the_limits_of_the_model_hold(client: Client) -> None:
    limits = client.model().limits
    assert client.generate(SOURCE, beam_size=limits.beam_size, num_hypotheses=limits.beam_size).hypotheses
    assert client.generate(SOURCE, top_tokens=limits.top_tokens)
    assert len(client.score(SOURCE, ["one"] * limits.score_targets).scores) == limits.score_targets
    beyond: list[dict[str, Any]] = [
        {"beam_size": limits.beam_size + 1},
        {"sample": True, "num_hypotheses": limits.hypotheses + 1},
        {"top_tokens": limits.top_tokens + 1},
        {"stop_sequences": ["a"] * (limits.stop_sequences + 1)},
        {"stop_sequences": ["a" * (limits.stop_sequence_characters + 1)]},
        {"suppressed_sequences": ["one"] * (limits.suppressed_sequences + 1)},
    ]
    for options in beyond:
        with pytest.raises(InvalidArgumentError):
            client.generate(SOURCE, **options)
    with pytest.raises(InvalidArgumentError):
        client.score(SOURCE, ["one"] * (limits.score_targets + 1))


def test_the_command_prints_what_the_client_returns(client: Client, tiny_server: LocalServer) -> None:
    found = client.generate(SOURCE, beam_size=3, num_hypotheses=3, log_probabilities=True, alignment=True)
    done = command(tiny_server, "generate", "--beam-size", "3", "-n", "3", SOURCE)
    expected = [f"{index}\t{each.score:.4f}\t{each.text}" for index, each in enumerate(found.hypotheses, 1)]
    assert done.stdout.splitlines() == expected
    done = command(tiny_server, "generate", "--beam-size", "3", "-n", "3", "--json", "--alignment", SOURCE)
    printed = json.loads(done.stdout)
    assert [each["text"] for each in printed["hypotheses"]] == texts(found)
    assert [tuple(each["alignment"]) for each in printed["hypotheses"]] == [each.alignment for each in found.hypotheses]
    scored = client.score(SOURCE, [found.text]).scores[0]
    done = command(tiny_server, "score", SOURCE, found.text)
    assert done.stdout == f"{scored.log_probability:.4f}\t{found.text}\n"
    done = command(tiny_server, "generate", "--top-k", "5", SOURCE)
    assert (done.returncode, done.stderr) == (1, "dragoman: options.top_k needs sample\n")


def commands(block: str) -> list[tuple[str, str]]:
    """Returns each command of a block with the output under it."""
    return re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


@pytest.fixture(scope="module")
def shipped_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with G2PServer(log=tmp_path_factory.mktemp("server") / "server.log") as server:
        yield server.address


@pytest.mark.parametrize("block", BLOCKS)
def test_commands_of_the_manual_print_what_it_shows(block: str, shipped_address: str, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "DRAGOMAN_ADDRESS": shipped_address}
    assert len(BLOCKS) >= 2
    for line, output in commands(block):
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, NUMBER.sub("N", done.stdout), done.stderr) == (0, NUMBER.sub("N", output), ""), line
        printed, shown = (list(map(float, NUMBER.findall(text))) for text in (done.stdout, output))
        assert printed == pytest.approx(shown, abs=1e-3), line  # another processor rounds otherwise
