"""Logs: structure, privacy, and lines written in order by a thread that nobody waits for."""

import io
import json
import logging
import os
import threading
from functools import partial

import pytest
import structlog

from dragoman_server.config.options import LogFormat
from dragoman_server.telemetry.log_lines import LineWriter
from dragoman_server.telemetry.logs import configure_logs, line_renderer


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_traceback_shows_no_variables(capsys: pytest.CaptureFixture[str], style: LogFormat) -> None:
    configure_logs(style, "info")
    text = "what the client said"
    try:
        raise RuntimeError("a bug")
    except RuntimeError as error:
        structlog.get_logger().error("call failed", exc_info=error)
    output = capsys.readouterr().err
    assert "RuntimeError" in output
    assert "test_server_logs.py" in output
    assert text not in output


def test_json_is_an_object_per_line_and_the_format_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("auto", "warning")
    log = structlog.get_logger()
    log.info("not wanted")
    log.warning("draining", calls=2)
    [line] = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["calls"]) == ("draining", "warning", 2)
    assert entry["timestamp"].endswith("Z")


def fail(words: str) -> None:
    """Raises a chain and a group of exceptions; their message must not occur in the source lines of this file."""
    try:
        raise KeyError(words)
    except KeyError as error:
        try:
            raise UnicodeEncodeError("utf-8", words, 0, 1, words) from error
        except UnicodeEncodeError as middle:
            try:
                raise ExceptionGroup(words, [ValueError(words), middle])
            except ExceptionGroup:
                raise RuntimeError(words)  # noqa: B904  # in its context, not from it


@pytest.mark.parametrize("style", ["json", "console"])
@pytest.mark.parametrize("text", [False, True])
def test_messages_of_exceptions_are_logged_on_demand_only(
    capsys: pytest.CaptureFixture[str], style: LogFormat, text: bool
) -> None:
    configure_logs(style, "info", text)
    word = "".join(["can", "ary"])  # nowhere in a line of this file that a traceback may show
    try:
        fail(word)
    except RuntimeError as error:
        structlog.get_logger().error("call failed", exc_info=error)
        logging.getLogger("asyncio").error("Task said %r", error, exc_info=error)
        logging.getLogger("grpc._cython.cygrpc").error(f"Unexpected [{error}]")
        logging.getLogger("another").warning("is slow", exc_info=error)
        if not text:  # otherwise pytest receives it
            thread = threading.Thread(target=fail, args=[word])
            thread.start()
            thread.join()
    output = capsys.readouterr().err
    assert (word in output) is text
    for kind in ("KeyError", "UnicodeEncodeError", "ExceptionGroup", "ValueError", "RuntimeError"):
        assert output.count(kind) >= 3
    assert "is slow" in output
    assert "test_server_logs.py" in output


class ExecuteBatchError(Exception):
    """Has the name of gRPC's own error, which is not public."""


def test_grpc_errors_about_clients_are_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    for library, error in (
        ("grpc._cython.cygrpc", ExecuteBatchError()),
        ("grpc._cython.cygrpc", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")),
        ("grpc._cython.cygrpc", ValueError()),
        ("another", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")),
    ):
        try:
            raise error
        except Exception:
            logging.getLogger(library).exception("it failed")
    logging.getLogger("grpc._cython.cygrpc").error("it failed without an exception")
    output = capsys.readouterr().err
    assert "ExecuteBatchError" not in output
    assert output.count("UnicodeDecodeError") == output.count("ValueError") == 1
    assert output.count("ERROR:grpc") == 2


SECONDS = 20


class Stuck(io.StringIO):
    """A pipe that nobody reads until `read` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Event()  # type: ignore[assignment]
        self.writing = threading.Event()

    def write(self, text: str) -> int:
        self.writing.set()
        assert self.read.wait(SECONDS)  # type: ignore[attr-defined]
        return super().write(text)


def test_lines_of_many_threads_stay_in_order() -> None:
    stream = io.StringIO()
    lines = LineWriter(stream)

    def put(thread: int) -> None:
        for number in range(200):
            lines.put(f"{thread} {number}\n" if number % 2 else partial("{} {}\n".format, thread, number))

    threads = [threading.Thread(target=put, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines.drain(SECONDS)
    output = [line.split() for line in stream.getvalue().splitlines()]
    assert len(output) == 800
    for thread_name in "0123":
        assert [int(number) for name, number in output if name == thread_name] == list(range(200))
    assert lines.dropped == 0


def test_logging_never_waits_for_a_reader_and_dropped_lines_are_counted() -> None:
    stream = Stuck()
    lines = LineWriter(stream, max_waiting=10)
    lines.put("first\n")
    assert stream.writing.wait(SECONDS)
    for number in range(25):
        lines.put(f"{number}\n")
    assert lines.dropped == 15
    assert not lines.drain(0.01)
    stream.read.set()  # type: ignore[attr-defined]
    assert lines.drain(SECONDS)
    lines.put("last\n")
    assert lines.drain(SECONDS)
    output = stream.getvalue().splitlines()
    assert output == ["first", *map(str, range(10)), "15 log lines were dropped", "last"]
    [family] = lines.collect()
    assert [(sample.name, sample.value) for sample in family.samples if sample.name.endswith("total")] == [
        ("dragoman_log_lines_dropped_total", 15)
    ]


def test_failing_lines_and_a_closed_stream_are_counted() -> None:
    stream = io.StringIO()
    lines = LineWriter(stream)
    lines.put(lambda: str(1 // 0))
    lines.put("still here\n")
    assert lines.drain(SECONDS)
    assert "still here\n" in stream.getvalue()
    assert lines.dropped == 1
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:  # noqa: PTH123  # a descriptor
        lines = LineWriter(pipe)
        for _ in range(2):
            lines.put("to nobody\n")
            assert lines.drain(SECONDS)
        assert lines.dropped >= 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # for what is in the file's buffer when it is closed


@pytest.mark.parametrize("style", ["json", "console"])
def test_the_server_and_its_libraries_log_to_the_same_stream(style: str) -> None:
    stream = Stuck()
    lines = LineWriter(stream, max_waiting=3)
    configure_logs(style, "info", False, lines)  # type: ignore[arg-type]
    log = structlog.get_logger()
    log.info("one", number=1)
    assert stream.writing.wait(SECONDS)
    logging.getLogger("library").warning("two")
    for word in ("three", "four", "five"):
        log.warning(word)
    stream.read.set()  # type: ignore[attr-defined]
    assert lines.drain(SECONDS)
    output = stream.getvalue()
    assert [word for word in ("one", "two", "three", "four", "five") if word in output] == [
        "one",
        "two",
        "three",
        "four",
    ]
    assert "log lines were dropped: standard error was too slow" in output
    assert lines.dropped == 1


def test_lines_of_calls_have_the_usual_format(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"event": "request", "level": "info", "timestamp": 1.5, "code": "OK", "total_ms": 0.25}
    entry = json.loads(line_renderer("json")(fields))
    assert entry == {**fields, "timestamp": "1970-01-01T00:00:01.500000Z"}
    odd = {"event": 'a "b" \\ é\n', "timestamp": 1.9999996, "key": "ü", "flag": True, "none": None, "list": [1, "x"]}
    line = line_renderer("json")(odd)
    assert line == json.dumps({**odd, "timestamp": "1970-01-01T00:00:02.000000Z"}) + "\n"
    line = line_renderer("console")(fields)
    assert line.startswith("1970-01-01T00:00:01.500000Z [info")
    assert "request" in line
    assert line.endswith("code=OK total_ms=0.25\n")
