"""Logs are structured, and never hold what a client sent."""

import json
import logging
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog

from dragoman_server.config.options import LogFormat
from dragoman_server.telemetry.logs import configure_logs


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    hooks = threading.excepthook, sys.unraisablehook
    yield
    structlog.reset_defaults()
    threading.excepthook, sys.unraisablehook = hooks


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


def test_json_is_an_object_a_line_and_the_format_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("auto", "warning")
    log = structlog.get_logger()
    log.info("not wanted")
    log.warning("draining", calls=2)
    [line] = capsys.readouterr().err.splitlines()
    entry = json.loads(line)
    assert (entry["event"], entry["level"], entry["calls"]) == ("draining", "warning", 2)
    assert entry["timestamp"].endswith("Z")


def fail(words: str) -> None:
    """With a chain and a group of exceptions, whose words must not be in this file's source lines."""
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
def test_what_exceptions_say_is_logged_on_demand_alone(
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
        if not text:  # else it is pytest that is told
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
    """Named as gRPC's own, which is not public."""


def test_what_grpc_says_of_clients_is_not_logged(capsys: pytest.CaptureFixture[str]) -> None:
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
