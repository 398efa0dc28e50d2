"""Logs are structured, and never hold what a client sent."""

import json
from collections.abc import Iterator

import pytest
import structlog

from server.logs import LogFormat, configure_logs


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_traceback_shows_no_variables(capsys: pytest.CaptureFixture[str], style: LogFormat) -> None:
    configure_logs(style, "info")
    text = "what the client said"
    try:
        raise RuntimeError("a bug")
    except RuntimeError as error:
        structlog.get_logger().error("call failed", exc_info=error)
    output = capsys.readouterr().err
    assert "a bug" in output
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
