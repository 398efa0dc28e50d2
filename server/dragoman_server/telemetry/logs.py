"""Structured logs on standard error. What clients send, and what they are answered, is logged on demand alone."""

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

import structlog
from structlog.processors import ExceptionRenderer

from dragoman_server.config.options import LogFormat
from dragoman_server.telemetry.log_lines import LineWriter
from dragoman_server.telemetry.tracebacks import (
    LibraryFormatter,
    exception_without_words,
    hush_hooks,
    is_of_server,
    write_without_words,
)

_WRITERS: dict[type, Callable[[Any], str]] = {str: encode_basestring_ascii, int: repr, float: repr}


def configure_logs(style: LogFormat, level: str, text: bool = False, lines: LineWriter | None = None) -> None:
    """Sets up `structlog.get_logger()` for the whole process.

    Args:
        style: "json" writes one object a line, "console" is for people, "auto" is console on a terminal and else JSON.
        level: least level that is written: "debug", "info", "warning" or "error".
        text: let exceptions and libraries say things that may quote what a client sent.
        lines: writes standard error; None to have each line written at once by whoever logs it.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    on_console = structlog.dev.plain_traceback if text else write_without_words
    in_json = structlog.processors.format_exc_info if text else ExceptionRenderer(exception_without_words)
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=on_console)]
        if _for_people(style)
        else [in_json, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr) if lines is None else lambda *_: _LineLogger(lines),
        cache_logger_on_first_use=True,
    )
    # Libraries log through `logging`: only what is wrong with them is of interest.
    handler = logging.StreamHandler(sys.stderr if lines is None else lines)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    if not text:
        handler.setFormatter(LibraryFormatter(logging.BASIC_FORMAT))
        handler.addFilter(is_of_server)
        hush_hooks()
    if lines is not None:
        render = line_renderer(style)
        told = {"event": "log lines were dropped: standard error was too slow", "level": "warning"}
        lines.tell = lambda dropped: render({**told, "lines": dropped, "timestamp": time.time()})


def line_renderer(style: LogFormat) -> Callable[[Mapping[str, Any]], str]:
    """What makes lines, as `structlog.get_logger()` has them, of fields that hold no exceptions.

    The fields are those of the event, "event" and "level" among them, and "timestamp", as time.time(). It goes around
    structlog's processors, since there is a line for each call.
    """
    if not _for_people(style):
        return lambda fields: _json({**fields, "timestamp": _iso(fields["timestamp"])})
    console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False)
    return lambda fields: f"{console(None, '', {**fields, 'timestamp': _iso(fields['timestamp'])})}\n"


class _LineLogger:
    """What structlog hands its lines to."""

    def __init__(self, lines: LineWriter) -> None:
        self._lines = lines

    def msg(self, message: str) -> None:
        self._lines.put(message + "\n")

    debug = info = warning = error = critical = msg


def _for_people(style: LogFormat) -> bool:
    return style == "console" or (style == "auto" and sys.stderr.isatty())


def _json(fields: Mapping[str, Any]) -> str:
    """A line as `json` writes it, which takes twice as long for one of a call."""
    members = [f'"{name}": {_WRITERS.get(type(value), json.dumps)(value)}' for name, value in fields.items()]
    return f"{{{', '.join(members)}}}\n"


def _iso(timestamp: float) -> str:
    seconds, microseconds = divmod(round(timestamp * 1_000_000), 1_000_000)
    return f"{_iso_second(seconds)}.{microseconds:06d}Z"


@lru_cache(maxsize=1)  # in which many calls end
def _iso_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
