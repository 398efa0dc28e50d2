"""Runs `dragoman generate`: reads the texts, sends them, and prints their outcomes in order."""

import asyncio
import errno
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from dragoman.aio import AsyncClient
from dragoman.cli.common import Server, error_message
from dragoman.cli.output import Layout, warn, write, write_json
from dragoman.errors import DragomanError, ItemError, UnavailableError, concerns_one_input
from dragoman.one_line import one_line
from dragoman.requests import GenerateOptions, input_or_error
from dragoman.results import FinishReason, Piece, Result

STDIN = 0
_CHUNK_BYTES = 2**16
_CHUNKS_AHEAD = 4


def run(texts: Sequence[str] | None, *, server: Server, stream: bool, as_json: bool, options: GenerateOptions) -> int:
    """Prints the answers to the texts, or to the lines of standard input.

    Returns:
        The number of texts that failed.

    Raises:
        DragomanError: A failure that concerns all texts, such as no server.
        ValueError: The address or an option cannot be used.
    """
    waiting = texts is not None or os.isatty(STDIN)  # somebody waits for the answers
    if options.get("priority") is None and waiting and not stream:
        options = {**options, "priority": "interactive"}
    if texts is None:
        unit, sources = "line", stdin_lines()
        if waiting:
            warn("reading texts from the terminal, one per line; Ctrl-D ends")
    else:
        unit, sources = "argument" if len(texts) > 1 else "", _asynchronous(texts)
    printer = Printer(unit, as_json=as_json, options=options)
    if printer.layout.several:
        options = {**options, "log_probabilities": True}  # returns the scores, too
    generate = _one_by_one if stream else _many
    asyncio.run(generate(sources, printer, server.async_client(), options))
    return printer.failures


async def _many(sources: AsyncIterator[str], printer: "Printer", client: AsyncClient, options: GenerateOptions) -> None:
    async with client:
        with printer.noting_progress():
            async for outcome in client.generate_many(sources, **options):
                if isinstance(outcome, ItemError):
                    printer.failed(outcome.error)
                else:
                    printer.answered(outcome)


async def _one_by_one(
    sources: AsyncIterator[str], printer: "Printer", client: AsyncClient, options: GenerateOptions
) -> None:
    served = False  # whether a server has answered yet: one that was there may come back
    async with client:
        with printer.noting_progress():
            async for source in sources:
                if isinstance(message := input_or_error(0, source, options), ItemError):
                    printer.failed(message.error)
                    continue
                try:
                    async with client.generate_stream(source, **options) as stream:
                        async for piece in stream:
                            served = True
                            printer.piece(piece)
                        printer.streamed(await stream.result())
                except DragomanError as error:
                    lost = isinstance(error, UnavailableError)
                    if not concerns_one_input(error) and not (lost and served):
                        raise
                    served |= not lost
                    printer.failed(error)


async def _asynchronous(texts: Sequence[str]) -> AsyncIterator[str]:
    for text in texts:
        yield text


class Printer:
    """Prints the outcomes of texts, in order.

    Args:
        unit: Name of a text in messages, before its number; "" if there is only one.
        as_json: Print JSON.
        options: GenerateOptions of the request.

    Attributes:
        layout: Format of the answers.
        failures: Number of texts that failed.
    """

    def __init__(self, unit: str, *, as_json: bool, options: GenerateOptions) -> None:
        self.failures = 0
        self.layout = Layout.of(options)
        self._unit = unit
        self._as_json = as_json
        self._length_chosen = options.get("max_new_tokens") is not None
        self._number = 0

    def answered(self, result: Result) -> None:
        if self._as_json:
            write_json(self.layout.object(result))
        else:
            write(self.layout.lines(result))
        self._number += 1
        self._warn_about(result)

    def piece(self, piece: Piece) -> None:
        """Prints a piece of a streamed answer."""
        if self._as_json:
            write_json(self.layout.piece(piece))
        else:
            write(one_line(piece.text))

    def streamed(self, result: Result) -> None:
        """Prints the end of an answer whose pieces have been printed."""
        if self._as_json:
            write_json(self.layout.object(result))
        else:
            write(self.layout.columns(result.best) + "\n")
        self._number += 1
        self._warn_about(result)

    def failed(self, error: DragomanError) -> None:
        if self._as_json:
            write_json({"error": {"code": error.code, "message": str(error)}})
        else:
            write("\n")
        self._number += 1
        self.failures += 1
        self._warn(error_message(error))

    @contextmanager
    def noting_progress(self) -> Iterator[None]:
        """Adds a note with the number of texts done to an error that ends the run."""
        try:
            yield
        except DragomanError as error:
            if self._unit and self._number:
                error.add_note(f"stopped after {self._number} {self._unit}{'s' * (self._number > 1)}")
            raise

    def _warn_about(self, result: Result) -> None:
        """Warns about guesses, and about answers that are incomplete unless the user chose the length."""
        tokens = result.target_tokens
        if unseen := len(result.unseen_source_tokens):
            self._warn(
                f"the answer is a guess: {unseen} of {result.source_tokens} source tokens do not occur in training data"
            )
        if result.finish_reason is FinishReason.LENGTH and not self._length_chosen:
            self._warn(f"the answer was cut at the model's limit of {tokens} tokens")
        elif result.finish_reason is FinishReason.TIME_LIMIT:
            self._warn(f"the answer was cut at the time limit, after {tokens} tokens")
        elif result.finish_reason is FinishReason.DEAD_END:
            self._warn(f"the constraints allowed no further token after {tokens} tokens")

    def _warn(self, message: str) -> None:
        warn(f"{self._unit} {self._number}: {message}" if self._unit else message)


async def stdin_lines() -> AsyncIterator[str]:
    """Yields the lines of standard input without their line ends (LF or CRLF) as they arrive.

    Bytes that are not UTF-8 become the surrogates of os.fsdecode; the client refuses them with text and position.

    Raises:
        OSError: Standard input cannot be read.
    """
    if sys.stdin is None:  # it was closed before the command started; its descriptor may be another file by now
        raise OSError(errno.EBADF, "standard input is closed")
    parts: list[bytes] = []  # of an incomplete line; joined once, however long the line is
    async for chunk in _chunks(STDIN):
        first, *others = chunk.split(b"\n")
        parts.append(first)
        for other in others:
            yield _decoded(b"".join(parts))
            parts = [other]
    if rest := b"".join(parts):
        yield _decoded(rest)


async def _chunks(descriptor: int) -> AsyncIterator[bytes]:
    """Yields the content of a file descriptor. A thread reads ahead, since event loops cannot wait for regular files.

    NOTE: It uses os.read in a daemon thread because a thread that waits in sys.stdin would keep the interpreter from
    exiting.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(_CHUNKS_AHEAD)

    def read() -> None:
        chunk: bytes | OSError = b"more"
        while chunk and not isinstance(chunk, OSError):
            room.acquire()
            try:
                chunk = os.read(descriptor, _CHUNK_BYTES)
            except OSError as error:
                chunk = OSError(error.errno, f"standard input can't be read: {error.strerror}")
            try:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)
            except RuntimeError:  # the loop is closed, so nobody reads any more
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while chunk := await queue.get():
        if isinstance(chunk, OSError):
            raise chunk
        room.release()
        yield chunk


def _decoded(line: bytes) -> str:
    return line.removesuffix(b"\r").decode(errors="surrogateescape")
