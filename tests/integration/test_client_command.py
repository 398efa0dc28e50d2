"""The `dragoman` command as a process, against a server that does what the test tells it to."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.support.scripted_server import UNAVAILABLE, Fail, ScriptedServer, Slow
from tests.support.waiting import PATIENCE, until

COMMAND = [sys.executable, "-c", "from dragoman.cli import main; main()"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        monkeypatch.setenv("DRAGOMAN_ADDRESS", server.address)
        yield server


def run(*arguments: str | bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=60, check=False)


@contextmanager
def command(*arguments: str) -> Iterator[tuple[Callable[[bytes], bytes], subprocess.Popen[bytes]]]:
    """A command whose standard input is open: what gives it a line and reads one back, and the process."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe) as process:

        def ask(line: bytes) -> bytes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(line + b"\n")
            process.stdin.flush()
            return process.stdout.readline()

        yield ask, process


def test_arguments_are_answered_one_a_line(scripted: ScriptedServer) -> None:
    done = run("generate", "abc", "öde", "a b")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "ABC\nÖDE\nA B\n", b"")


def test_an_argument_that_looks_like_an_option_follows_two_dashes(scripted: ScriptedServer) -> None:
    assert run("generate", "--", "--stream").stdout == b"--STREAM\n"


def test_lines_of_standard_input_are_answered_in_order(scripted: ScriptedServer) -> None:
    lines = [f"slow{index}" if index % 200 < 100 else f"word{index}" for index in range(1000)]
    done = run("generate", stdin="\n".join(lines).encode())  # the last line is not ended
    assert done.stdout.decode().splitlines() == [line.upper() for line in lines]
    assert (done.returncode, done.stderr) == (0, b"")
    assert scripted.busiest > 8


def test_a_full_server_only_slows_the_answers(scripted: ScriptedServer) -> None:
    scripted.capacity = 2
    done = run("generate", stdin=b"slow\n" * 40)
    assert (done.returncode, done.stdout) == (0, b"SLOW\n" * 40)
    assert scripted.refused > 0


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_bad_lines_are_reported_and_the_others_stay_aligned(scripted: ScriptedServer, options: list[str]) -> None:
    done = run("generate", *options, stdin=b"one\r\nbad\n\xff\xfeoops\n\nnul\0\n")
    assert done.stdout == b"ONE\n\n\n\nNUL\\x00\n"
    assert done.returncode == 1
    second, third = done.stderr.decode().splitlines()
    assert second == "dragoman: line 2: input.text is bad"
    assert third.startswith("dragoman: line 3: text: '\\udcff\\udcfeoops' has the lone surrogate U+DCFF at position 0")
    assert "byte 0xFF, which is not valid UTF-8" in third


def test_an_argument_that_is_no_utf8_is_reported(scripted: ScriptedServer) -> None:
    done = run("generate", b"a\xff")
    assert (done.returncode, done.stdout) == (1, b"\n")
    assert b"Traceback" not in done.stderr
    assert done.stderr.startswith(b"dragoman: text: 'a\\udcff' has the lone surrogate")


def test_json_has_what_was_asked_for(scripted: ScriptedServer) -> None:
    done = run("generate", "--json", "é", "bad")
    answer, error = map(json.loads, done.stdout.decode().splitlines())
    assert answer == {"text": "É", "finish_reason": "EOS", "source_tokens": 2, "target_tokens": 1, "model": "capitals"}
    assert error == {"error": {"code": "INVALID_ARGUMENT", "message": "input.text is bad"}}
    assert done.returncode == 1
    detailed = json.loads(run("generate", "--json", "--log-probabilities", "a").stdout)
    assert detailed["tokens"] == [{"id": 65, "text": "A", "log_probability": -0.5}]
    assert detailed["log_probability"] == -0.5


def test_columns_and_line_breaks(scripted: ScriptedServer) -> None:
    assert run("generate", "--tokens", "ab").stdout == b"AB\tA B\n"
    assert run("generate", "--log-probabilities", "ab").stdout == b"AB\t-1.0000\tA(-0.5000) B(-0.5000)\n"
    assert run("generate", "a\nb").stdout == b"A\\nB\n"


@pytest.mark.parametrize("options", [[], ["--stream"], ["-n", "2"], ["--tokens"], ["--stream", "--tokens"]])
def test_control_characters_are_spelled_and_columns_kept(scripted: ScriptedServer, options: list[str]) -> None:
    """An answer can neither begin a column or a line nor tell the terminal anything."""
    text = "\t\x1b[31m\r\x7f\x9b\u2028\u2029 \u200d"
    shown = r"\t\x1b[31M\r\x7f\x9b\u2028\u2029 " + "\u200d"
    [line, *others] = run("generate", *options, text).stdout.decode().split("\n")
    columns = line.split("\t")
    before = 2 if "-n" in options else 0
    assert len(columns) == before + 1 + ("--tokens" in options)
    assert columns[before] == shown
    assert others[-1] == ""
    if "--tokens" in options:
        assert columns[1].startswith(r"\t \x1b [ 3 1 M")
    [found] = map(json.loads, run("generate", "--json", text).stdout.splitlines())
    assert found["text"] == text.upper()


def test_tokens_and_scores_have_control_characters_spelled(scripted: ScriptedServer) -> None:
    assert run("tokenize", "a\t\x1b").stdout == b"97\ta\n9\t\\t\n27\t\\x1b\n"
    assert run("score", "ab", "\t").stdout.endswith(b"\t\\t\n")


def test_options_reach_the_server(scripted: ScriptedServer) -> None:
    done = run("generate", "--max-new-tokens", "2", "--time-limit", "0.5", "--model", "m", "--timeout", "7", "abc")
    assert (done.stdout, done.stderr) == (b"AB\n", b"")
    request = scripted.calls[0][1]
    assert (request.model, request.options.max_new_tokens, request.options.time_limit.nanos) == ("m", 2, 500_000_000)
    assert scripted.timeouts[0] is not None
    assert 5 < scripted.timeouts[0] <= 7


def test_an_answer_cut_at_the_models_limit_is_noted(scripted: ScriptedServer) -> None:
    done = run("generate", "long: abcdef")
    assert (done.returncode, done.stdout) == (0, b"LONG: ABCDE\n")
    assert done.stderr == b"dragoman: the answer was cut at the model's limit of 11 tokens\n"


def test_a_stream_is_printed_as_it_comes(scripted: ScriptedServer) -> None:
    assert run("generate", "--stream", "--tokens", "abc", "d").stdout == b"ABC\tA B C\nD\tD\n"
    *pieces, last = map(json.loads, run("generate", "--stream", "--json", "ab").stdout.splitlines())
    assert pieces == [{"piece": "A"}, {"piece": "B"}, {"piece": ""}]
    assert last["text"] == "AB"


def test_a_stream_that_breaks_is_reported(scripted: ScriptedServer) -> None:
    scripted.script.append(Fail(grpc.StatusCode.INTERNAL, "the engine failed", after=2))
    done = run("generate", "--stream", "abcd", "e")
    assert (done.returncode, done.stdout) == (1, b"AB\nE\n")
    assert re.fullmatch(rb"dragoman: argument 1: the engine failed \(request id: [0-9a-f]+-[0-9a-f]+\)\n", done.stderr)


@pytest.mark.parametrize("arguments", [["generate", "a"], ["generate", "--stream", "a"], ["health"]])
def test_no_server_is_one_sentence(arguments: list[str]) -> None:
    done = run(*arguments, "--address", "127.0.0.1:1", "--timeout", "1")
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"dragoman: no server can be reached at 127.0.0.1:1 (connection refused)\n"


def test_a_failure_of_all_lines_ends_the_work(scripted: ScriptedServer) -> None:
    wrong = Fail(grpc.StatusCode.INVALID_ARGUMENT, "must be 1 to 47, got 0", field="options.max_new_tokens")
    scripted.script.extend([wrong] * 200)
    done = run("generate", "--max-new-tokens", "0", stdin=b"a\n" * 100)
    assert (done.returncode, done.stderr) == (1, b"dragoman: options.max_new_tokens must be 1 to 47, got 0\n")


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_work_that_ends_early_says_how_far_it_came(scripted: ScriptedServer, options: list[str]) -> None:
    with command("generate", *options) as (ask, process):
        assert ask(b"one") == b"ONE\n"
        assert ask(b"bad") == b"\n"
        scripted.script.append(Fail(grpc.StatusCode.NOT_FOUND, "there is no model any more"))
        assert ask(b"three") == b""
        assert process.wait(PATIENCE) == 1
        assert process.stderr is not None
        last = process.stderr.read().decode().splitlines()[-1]
        assert last == "dragoman: there is no model any more (stopped after 2 lines)"


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_lines_that_fail_while_a_server_is_away_are_told_and_the_next_ones_go_on(
    scripted: ScriptedServer, options: list[str]
) -> None:
    with command("generate", *options, "--timeout", "0.5") as (ask, process):
        assert ask(b"one") == b"ONE\n"
        scripted.script.extend([UNAVAILABLE] * 1000)
        assert [ask(b"two"), ask(b"three")] == [b"\n", b"\n"]
        scripted.script.clear()
        assert ask(b"four") == b"FOUR\n"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(PATIENCE) == 1
        assert process.stderr is not None
        told = process.stderr.read().decode().splitlines()
    assert [line.partition(" (request id")[0] for line in told] == [
        f"dragoman: line {number}: the server is draining" for number in (2, 3)
    ]


def test_a_server_that_is_away_for_longer_is_told_once_and_waited_for(scripted: ScriptedServer) -> None:
    scripted.script.extend([UNAVAILABLE] * 5)  # a minute of retries, though they would be over in 1.5 s before
    done = run("generate", "one")
    assert (done.returncode, done.stdout) == (0, b"ONE\n")
    assert done.stderr == b"dragoman: the server is draining; retrying\n"


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["generate", "--address", "nowhere", "a"], 2, b"address: expected HOST:PORT, got 'nowhere'"),
        (["generate", "--time-limit", "nan", "a"], 2, b"time_limit: expected more than 0 and at most 315576000000 sec"),
        (["generate", "--max-new-tokens", "x", "a"], 2, b"max-new-tokens"),
        (["generate", "--timeout", "0", "a"], 2, b"timeout"),
        (["translate"], 2, b"translate"),
    ],
)
def test_wrong_usage_is_one_sentence(scripted: ScriptedServer, arguments: list[str], status: int, says: bytes) -> None:
    done = run(*arguments)
    assert done.returncode == status
    assert says in done.stderr
    assert b"Traceback" not in done.stderr


def test_health_is_0_only_when_serving(scripted: ScriptedServer) -> None:
    done = run("health")
    assert (done.returncode, done.stdout) == (0, b"SERVING\n")
    scripted.serving(False)
    done = run("health")
    assert (done.returncode, done.stdout) == (1, b"NOT_SERVING\n")
    done = run("health", "--service", "no.such")
    assert (done.returncode, done.stdout) == (1, b"SERVICE_UNKNOWN\n")


def test_models_and_tokenize(scripted: ScriptedServer) -> None:
    shown = run("models").stdout.decode()
    assert "capitals" in shown
    assert "test sequence error rate (%)" in shown
    assert json.loads(run("models", "--json").stdout)[0]["max_source_tokens"] == 48
    assert run("tokenize", "aé").stdout.decode() == "97\ta\n233\té\n"
    assert json.loads(run("tokenize", "--json", "a").stdout) == [{"id": 97, "text": "a"}]
    assert run("tokenize", "--side", "left", "a").returncode == 2


def test_help_and_version_load_no_grpc() -> None:
    script = "import sys\nfrom dragoman.cli import main\ntry: main()\nfinally: print('grpc' in sys.modules)"
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", script, option], capture_output=True, check=True)
        assert done.stdout.endswith(b"False\n")


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_answers_come_while_standard_input_is_open(scripted: ScriptedServer, options: list[str]) -> None:
    with subprocess.Popen([*COMMAND, "generate", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in (b"one", b"two"):
            process.stdin.write(word + b"\n")
            process.stdin.flush()
            assert process.stdout.readline() == word.upper() + b"\n"
        process.stdin.close()
        assert process.wait(20) == 0


def test_a_person_at_the_terminal_is_told_what_to_do(scripted: ScriptedServer) -> None:
    person, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [*COMMAND, "generate"], stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert b"Ctrl-D" in process.stderr.readline()
            os.write(person, b"hi\n")
            assert process.stdout.readline() == b"HI\n"
            # Interrupted while it waits for the next line.
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130
            assert process.stderr.read() == b""
    finally:
        os.close(person)
        os.close(terminal)


def test_ctrl_c_ends_quietly(scripted: ScriptedServer) -> None:
    scripted.script.extend([Slow(3)] * 2)
    with subprocess.Popen([*COMMAND, "generate", "a", "b"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        until(lambda: len(scripted.calls) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_reader_that_goes_away_ends_it_quietly(scripted: ScriptedServer, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_bytes(b"word\n" * 20_000)
    with (
        words.open("rb") as stdin,
        subprocess.Popen(
            [*COMMAND, "generate"], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"WORD\n"
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert len(scripted.calls) < 20_000
