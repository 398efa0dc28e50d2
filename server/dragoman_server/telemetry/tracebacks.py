"""Tracebacks for logs, without the exceptions' own words: those may quote what a client sent."""

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

ExcInfo = tuple[type[BaseException] | None, BaseException | None, TracebackType | None]

# Libraries through whose hands requests go.
QUOTING = ("asyncio", "grpc")


def without_words(error: BaseException) -> str:
    """What happened where, as Python prints it, but of each exception its kind alone."""
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
        for each in error.exceptions:
            if id(each) not in seen:
                yield "\nof which one part is\n\n"
                yield from _lines(each, seen)


def exception_without_words(exc_info: ExcInfo) -> str:
    """For structlog.processors.ExceptionRenderer."""
    return without_words(exc_info[1]) if exc_info[1] is not None else ""


def write_without_words(stream: TextIO, exc_info: ExcInfo) -> None:
    """For structlog.dev.ConsoleRenderer."""
    stream.write("\n" + exception_without_words(exc_info))


def is_of_server(record: logging.LogRecord) -> bool:
    """Filters out what gRPC says of clients, with a traceback: one has left while its answer was on its way, or sends
    metadata that are no text. Neither is a fault of the server's, and anyone could fill its log with them.
    """
    if record.name.split(".")[0] != "grpc" or not record.exc_info or (kind := record.exc_info[0]) is None:
        return True
    return kind.__name__ != "ExecuteBatchError" and not issubclass(kind, UnicodeDecodeError)


class LibraryFormatter(logging.Formatter):
    """For what libraries log through `logging`. Of those that may quote requests it says where they spoke, not what."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name.split(".")[0] in QUOTING:
            record = logging.makeLogRecord(record.__dict__)
            record.msg, record.args, record.exc_text = f"spoke at {record.pathname}:{record.lineno}", None, None
        return super().format(record)

    def formatException(self, ei: object) -> str:
        return exception_without_words(ei) if isinstance(ei, tuple) else ""


def hush_hooks() -> None:
    """Has what ends in a thread, or while an object is cleared away, told in the same manner."""

    def tell(error: BaseException | None) -> None:
        if error is not None:
            print(without_words(error), file=sys.stderr, flush=True)

    threading.excepthook = lambda event: tell(event.exc_value)
    sys.unraisablehook = lambda event: tell(event.exc_value)
