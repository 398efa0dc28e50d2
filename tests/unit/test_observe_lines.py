"""Log lines are written in order by a thread, and nobody waits for who reads them."""

import io
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest
import structlog

from dragoman_server.telemetry.log_lines import LineWriter
from dragoman_server.telemetry.logs import configure_logs, line_renderer

SECONDS = 20


class Stuck(io.StringIO):
    """A pipe that nobody reads, until somebody does."""

    def __init__(self) -> None:
        super().__init__()
        self.read = threading.Event()  # type: ignore[assignment]
        self.writing = threading.Event()

    def write(self, text: str) -> int:
        self.writing.set()
        assert self.read.wait(SECONDS)  # type: ignore[attr-defined]
        return super().write(text)


@pytest.fixture
def defaults() -> Iterator[None]:
    hooks = threading.excepthook, sys.unraisablehook
    yield
    structlog.reset_defaults()
    threading.excepthook, sys.unraisablehook = hooks
    logging.basicConfig(force=True)


def test_lines_come_out_in_order_from_many_threads() -> None:
    stream = io.StringIO()
    lines = LineWriter(stream)

    def say(who: int) -> None:
        for number in range(200):
            lines.put(f"{who} {number}\n" if number % 2 else partial("{} {}\n".format, who, number))

    threads = [threading.Thread(target=say, args=[who]) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines.drain(SECONDS)
    said = [line.split() for line in stream.getvalue().splitlines()]
    assert len(said) == 800
    for who in "0123":
        assert [int(number) for name, number in said if name == who] == list(range(200))
    assert lines.dropped == 0


def test_who_speaks_never_waits_for_a_reader_and_what_has_no_room_is_counted() -> None:
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
    said = stream.getvalue().splitlines()
    assert said == ["first", *map(str, range(10)), "15 log lines were dropped", "last"]
    [family] = lines.collect()
    assert [(sample.name, sample.value) for sample in family.samples if sample.name.endswith("total")] == [
        ("dragoman_log_lines_dropped_total", 15)
    ]


def test_a_line_that_can_not_be_made_and_a_stream_that_is_gone_are_counted_and_survived() -> None:
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


@pytest.mark.usefixtures("defaults")
@pytest.mark.parametrize("style", ["json", "console"])
def test_what_the_program_and_its_libraries_log_goes_the_same_way(style: str) -> None:
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
    said = stream.getvalue()
    assert [word for word in ("one", "two", "three", "four", "five") if word in said] == ["one", "two", "three", "four"]
    assert "log lines were dropped: standard error was too slow" in said
    assert lines.dropped == 1


def test_lines_of_calls_look_as_others_do(capsys: pytest.CaptureFixture[str]) -> None:
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
