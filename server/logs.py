"""Structured logs on standard error. What clients send, and what they are answered, is logged on demand alone."""

import logging
import sys
from typing import Literal

import structlog
from structlog.processors import ExceptionRenderer

from server.tracebacks import LibraryFormatter, exception_without_words, hush_hooks, write_without_words

LogFormat = Literal["auto", "console", "json"]


def configure_logs(style: LogFormat, level: str, text: bool = False) -> None:
    """Sets up `structlog.get_logger()` for the whole process.

    Args:
        style: "json" writes one object a line, "console" is for people, "auto" is console on a terminal and else JSON.
        level: least level that is written: "debug", "info", "warning" or "error".
        text: let exceptions and libraries say things that may quote what a client sent.
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    on_console = structlog.dev.plain_traceback if text else write_without_words
    in_json = structlog.processors.format_exc_info if text else ExceptionRenderer(exception_without_words)
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=on_console)]
        if console
        else [in_json, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries log through `logging`: only what is wrong with them is of interest.
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, force=True)
    if not text:
        logging.getLogger().handlers[0].setFormatter(LibraryFormatter(logging.BASIC_FORMAT))
        hush_hooks()
