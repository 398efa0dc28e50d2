"""Structured logs on standard error. What clients send, and what they are answered, is never logged."""

import logging
import sys
from typing import Literal

import structlog

LogFormat = Literal["auto", "console", "json"]


def configure_logs(style: LogFormat, level: str) -> None:
    """Sets up `structlog.get_logger()` for the whole process.

    Args:
        style: "json" writes one object a line, "console" is for people, "auto" is console on a terminal and else JSON.
        level: least level that is written: "debug", "info", "warning" or "error".
    """
    threshold = logging.getLevelNamesMapping()[level.upper()]
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
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
