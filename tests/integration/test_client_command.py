"""The `dragoman` command as a process, against a scripted server: answers, errors, pipes and signals."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import grpc
import pytest

from dragoman.cli import runner
from tests.support.scripted_server import UNAVAILABLE, Fail, ScriptedServer, Slow
from tests.support.waiting import PATIENCE, until

COMMAND = [sys.executable, "-c", "from dragoman.cli import main; main()"]


def run(*arguments: str | bytes, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], input=stdin, capture_output=True, timeout=60, check=False)


class Running:
    """A running command with open pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.stdout, self.stderr = cast("IO[bytes]", process.stdout), cast("IO[bytes]", process.stderr)

    def ask(self, line: bytes) -> bytes:
        """Sends a line and reads one back."""
        stdin = cast("IO[bytes]", self._process.stdin)
        stdin.write(line + b"\n")
        stdin.flush()
        return self.stdout.readline()

    def end(self, signal_: signal.Signals | None = None) -> tuple[int, bytes]:
        """Ends the command, by a signal or the end of its input, and returns exit status and standard error."""
        if signal_ is not None:
            self._process.send_signal(signal_)
        elif self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.wait(PATIENCE), self.stderr.read()


@contextmanager
def running(*arguments: str, stdin: int | IO[bytes] = subprocess.PIPE) -> Iterator[Running]:
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, *arguments], stdin=stdin, stdout=pipe, stderr=pipe) as process:
        yield Running(process)


def test_arguments_are_answered_one_per_line(scripted: ScriptedServer) -> None:
    done = run("generate", "--", "abc", "öde", "a b", "--stream")
    assert (done.returncode, done.stdout.decode(), done.stderr) == (0, "ABC\nÖDE\nA B\n--STREAM\n", b"")


def test_lines_of_standard_input_are_answered_in_order(scripted: ScriptedServer) -> None:
    lines = [f"slow{index}" if index % 200 < 100 else f"word{index}" for index in range(1000)]
    done = run("generate", stdin="\n".join(lines).encode())  # the last line is not ended
    assert done.stdout.decode().splitlines() == [line.upper() for line in lines]
    assert (done.returncode, done.stderr) == (0, b"")
    assert scripted.busiest > 8


def test_a_full_server_only_delays_the_answers(scripted: ScriptedServer) -> None:
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


def test_json_has_what_was_requested(scripted: ScriptedServer) -> None:
    done = run("generate", "--json", "é", "bad")
    answer, error = map(json.loads, done.stdout.decode().splitlines())
    assert answer == {"text": "É", "finish_reason": "EOS", "source_tokens": 2, "target_tokens": 1, "model": "capitals"}
    assert error == {"error": {"code": "INVALID_ARGUMENT", "message": "input.text is bad"}}
    assert done.returncode == 1
    detailed = json.loads(run("generate", "--json", "--log-probabilities", "a").stdout)
    assert detailed["tokens"] == [{"id": 65, "text": "A", "log_probability": -0.5}]
    assert detailed["log_probability"] == -0.5


@pytest.mark.parametrize("options", [[], ["--stream"], ["-n", "2"], ["--tokens"], ["--stream", "--tokens"]])
def test_control_characters_are_escaped_and_columns_kept(scripted: ScriptedServer, options: list[str]) -> None:
    """An answer can neither start a column or a line nor control the terminal."""
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


def test_tokens_and_scores_have_control_characters_escaped(scripted: ScriptedServer) -> None:
    assert run("tokenize", "a\t\x1b").stdout == b"97\ta\n9\t\\t\n27\t\\x1b\n"
    assert run("score", "ab", "\t").stdout.endswith(b"\t\\t\n")


def test_an_answer_cut_at_the_model_s_limit_is_reported(scripted: ScriptedServer) -> None:
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
def test_an_error_that_ends_the_run_has_the_number_of_lines_done(scripted: ScriptedServer, options: list[str]) -> None:
    with running("generate", *options) as command:
        assert [command.ask(b"one"), command.ask(b"bad")] == [b"ONE\n", b"\n"]
        scripted.script.append(Fail(grpc.StatusCode.NOT_FOUND, "there is no model any more"))
        assert command.ask(b"three") == b""
        status, errors = command.end()
    assert (status, errors.splitlines()[-1]) == (1, b"dragoman: there is no model any more (stopped after 2 lines)")


@pytest.mark.parametrize("options", [[], ["--stream"]])
def test_lines_that_fail_while_the_server_is_away_are_reported_and_the_next_ones_go_on(
    scripted: ScriptedServer, options: list[str]
) -> None:
    with running("generate", *options, "--timeout", "0.5") as command:
        assert command.ask(b"one") == b"ONE\n"
        scripted.script.extend([UNAVAILABLE] * 1000)
        assert [command.ask(b"two"), command.ask(b"three")] == [b"\n", b"\n"]
        scripted.script.clear()
        assert command.ask(b"four") == b"FOUR\n"
        status, errors = command.end()
    assert [line.partition(b" (request id")[0] for line in errors.splitlines()] == [
        b"dragoman: line %d: the server is draining" % number for number in (2, 3)
    ]
    assert status == 1


def test_a_server_that_is_away_is_reported_once_and_waited_for(scripted: ScriptedServer) -> None:
    scripted.script.extend([UNAVAILABLE] * 5)  # retries go on for a minute
    done = run("generate", "one")
    assert (done.returncode, done.stdout) == (0, b"ONE\n")
    assert done.stderr == b"dragoman: the server is draining; retrying\n"


def test_health_exits_with_0_only_if_serving(scripted: ScriptedServer) -> None:
    for serving, options, expected in (
        (True, [], (0, b"SERVING\n")),
        (False, [], (1, b"NOT_SERVING\n")),
        (False, ["--service", "no.such"], (1, b"SERVICE_UNKNOWN\n")),
    ):
        scripted.serving(serving)
        done = run("health", *options)
        assert (done.returncode, done.stdout) == expected


def test_help_and_version_load_no_grpc() -> None:
    script = "import sys\nfrom dragoman.cli import main\ntry: main()\nfinally: print('grpc' in sys.modules)"
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", script, option], capture_output=True, check=True)
        assert done.stdout.endswith(b"False\n")


def test_a_terminal_as_input_gets_a_hint(scripted: ScriptedServer) -> None:
    person, terminal = pty.openpty()
    try:
        with running("generate", stdin=terminal) as command:
            assert b"Ctrl-D" in command.stderr.readline()
            os.write(person, b"hi\n")
            assert command.stdout.readline() == b"HI\n"
            assert command.end(signal.SIGINT) == (130, b""), "while it waits for the next line"
    finally:
        os.close(person)
        os.close(terminal)


def test_ctrl_c_ends_quietly(scripted: ScriptedServer) -> None:
    scripted.script.extend([Slow(3)] * 2)
    with running("generate", "a", "b") as command:
        until(lambda: len(scripted.calls) == 2)
        assert command.end(signal.SIGINT) == (130, b"")


def test_a_closed_pipe_ends_the_run_quietly(scripted: ScriptedServer, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.write_bytes(b"word\n" * 20_000)
    with words.open("rb") as stdin, running("generate", stdin=stdin) as command:
        assert command.stdout.readline() == b"WORD\n"
        command.stdout.close()
        assert command.end() == (141, b"")
    assert len(scripted.calls) < 20_000


async def read(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    with path.open("rb") as file:
        monkeypatch.setattr(runner, "STDIN", file.fileno())
        return [line async for line in runner.stdin_lines()]


async def test_chunks_of_input_may_end_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    for size in (65_534, 65_535, 65_536, 131_071):  # around the size of a chunk
        text.write_bytes(b"x" * size + b"\r\n\n\r\nend")
        assert await read(text, monkeypatch) == ["x" * size, "", "", "end"]


async def test_a_long_line_costs_no_more_than_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"x" * 100_000_000)
    started = time.process_time()
    [line] = await read(text, monkeypatch)
    assert len(line) == 100_000_000
    assert time.process_time() - started < 5


def test_unreadable_input_is_reported(scripted: ScriptedServer, tmp_path: Path) -> None:
    with (tmp_path / "only-for-writing").open("wb") as stdin:
        done = subprocess.run([*COMMAND, "generate"], stdin=stdin, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b"dragoman: standard input can't be read: Bad file descriptor\n"


@pytest.mark.parametrize(
    ("redirection", "arguments", "expected"),
    [
        ("<&-", "generate", (1, b"", b"dragoman: standard input is closed\n")),
        (">&-", "generate a", (1, b"", b"dragoman: standard output is closed\n")),
        (">&-", "health", (1, b"", b"dragoman: standard output is closed\n")),
        ("2>&-", "generate bad b", (1, b"\nB\n", b"")),
    ],
)
def test_closed_standard_files_are_reported(
    scripted: ScriptedServer, redirection: str, arguments: str, expected: tuple[int, bytes, bytes]
) -> None:
    shell = ["sh", "-c", f'exec "$@" {arguments} {redirection}', "sh", *COMMAND]
    done = subprocess.run(shell, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["generate", "a"], ["models"], ["health"]])
def test_a_full_disk_is_reported(scripted: ScriptedServer, arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as stdout:
        done = subprocess.run([*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, b"dragoman: No space left on device\n")


@pytest.mark.parametrize("arguments", [["generate", "a"], ["models"], ["tokenize", "a"]])
def test_every_command_ends_quietly_without_a_reader(scripted: ScriptedServer, arguments: list[str]) -> None:
    reader, stdout = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*COMMAND, *arguments], stdout=stdout, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(stdout)
    assert (done.returncode, done.stderr) == (141, b"")
