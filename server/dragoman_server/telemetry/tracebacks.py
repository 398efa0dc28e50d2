"""Tracebacks for logs without the messages of exceptions, which may quote what a client sent."""

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]

# Libraries whose log messages may quote requests.
QUOTING = ("asyncio", "grpc")


def without_messages(error: BaseException) -> str:
    """Formats a traceback as Python does, but with only the type of each exception."""
    return "".join(_lines(error, set())).rstrip("\n")


def _lines(error: BaseException, seen: set[int]) -> Iterator[str]:
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _lines(before, seen)
        yield "\nwhich led to\n\n"
    if error.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from traceback.format_tb(error.__traceback__)
    kind = type(error)
    yield f"{'' if kind.__module__ == 'builtins' else kind.__module__ + '.'}{kind.__qualname__}\n"
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            if id(member) not in seen:
                yield "\nwhich contains\n\n"
                yield from _lines(member, seen)


def exception_without_messages(exc_info: ExcInfo) -> str:
    """Formats an exception for structlog.processors.ExceptionRenderer."""
    return without_messages(exc_info[1]) if exc_info[1] is not None else ""


def write_without_messages(stream: TextIO, exc_info: ExcInfo) -> None:
    """Writes an exception for structlog.dev.ConsoleRenderer."""
    stream.write("\n" + exception_without_messages(exc_info))


def is_server_fault(record: logging.LogRecord) -> bool:
    """Returns whether a log record is about the server, and not about a client, for use as a filter.

    gRPC logs a traceback when a client leaves before its response is sent, or sends metadata that is not text. Neither
    is a fault of the server, and any client could flood the log with them.
    """
    if record.name.split(".")[0] != "grpc" or not record.exc_info or (kind := record.exc_info[0]) is None:
        return True
    return kind.__name__ != "ExecuteBatchError" and not issubclass(kind, UnicodeDecodeError)


class LibraryFormatter(logging.Formatter):
    """Formats records of `logging`. For libraries that may quote requests, it logs the place, not the message."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name.split(".")[0] in QUOTING:
            record = logging.makeLogRecord(record.__dict__)
            record.msg, record.args, record.exc_text = f"logged at {record.pathname}:{record.lineno}", None, None
        return super().format(record)

    def formatException(self, ei: object) -> str:
        return exception_without_messages(ei) if isinstance(ei, tuple) else ""


def install_quiet_hooks() -> None:
    """Prints unhandled exceptions in threads and finalizers without their messages."""

    def print_type(error: BaseException | None) -> None:
        if error is not None:
            print(without_messages(error), file=sys.stderr, flush=True)

    threading.excepthook = lambda event: print_type(event.exc_value)
    sys.unraisablehook = lambda event: print_type(event.exc_value)
