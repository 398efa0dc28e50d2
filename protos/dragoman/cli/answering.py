"""What `dragoman generate` does."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from dragoman.aio import AsyncClient
from dragoman.cli.common import sentence
from dragoman.cli.layout import Layout
from dragoman.cli.lines import STDIN, stdin_lines
from dragoman.cli.output import complain, one_line, write, write_json
from dragoman.cli.server import Server
from dragoman.errors import DragomanError, ItemError, UnavailableError, concerns_one_input
from dragoman.messages import input_or_error
from dragoman.options import GenerateOptions
from dragoman.results import FinishReason, Piece, Result


def run(texts: Sequence[str] | None, *, server: Server, stream: bool, as_json: bool, options: GenerateOptions) -> int:
    """Answers the texts, or the lines of standard input, on standard output.

    Returns:
        how many of them failed.

    Raises:
        DragomanError: a failure that concerns them all, such as no server.
        ValueError: the address or an option cannot be used.
    """
    if texts is None:
        unit, sources = "line", stdin_lines()
        if os.isatty(STDIN):
            complain("reading texts from the terminal, one a line; Ctrl-D ends")
    else:
        unit, sources = "argument" if len(texts) > 1 else "", _given(texts)
    printer = Printer(unit, as_json=as_json, options=options)
    if printer.layout.several:
        options = {**options, "log_probabilities": True}  # scores come with them
    answer = _one_by_one if stream else _all
    asyncio.run(answer(sources, printer, server.async_client(), options))
    return printer.failures


async def _all(sources: AsyncIterator[str], printer: "Printer", client: AsyncClient, options: GenerateOptions) -> None:
    async with client:
        with printer.told_how_far():
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
        with printer.told_how_far():
            async for source in sources:
                if isinstance(built := input_or_error(0, source), ItemError):
                    printer.failed(built.error)
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


async def _given(texts: Sequence[str]) -> AsyncIterator[str]:
    for text in texts:
        yield text


class Printer:
    """Prints the outcomes of texts, in order.

    Args:
        unit: what messages call a text, before its number; "" where there is but one.
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
        self._next(result)

    def piece(self, piece: Piece) -> None:
        """A part of a streamed answer."""
        if self._as_json:
            write_json(self.layout.piece(piece))
        else:
            write(one_line(piece.text))

    def streamed(self, result: Result) -> None:
        """The end of an answer that was printed piece by piece."""
        if self._as_json:
            write_json(self.layout.object(result))
        else:
            write(self.layout.columns(result.best) + "\n")
        self._next(result)

    def failed(self, error: DragomanError) -> None:
        if self._as_json:
            write_json({"error": {"code": error.code, "message": str(error)}})
        else:
            write("\n")
        self._next()
        self.failures += 1
        complain(f"{self._place()}{sentence(error)}")

    @contextmanager
    def told_how_far(self) -> Iterator[None]:
        """Adds to what ends the work early how many texts it has come to."""
        try:
            yield
        except DragomanError as error:
            if self._unit and self._number:
                error.add_note(f"given up after {self._number} {self._unit}{'s' * (self._number > 1)}")
            raise

    def _next(self, result: Result | None = None) -> None:
        self._number += 1
        if result is None:
            return
        if unseen := len(result.unseen_source_tokens):
            read = result.source_tokens
            complain(
                f"{self._place()}the answer is a guess: {unseen} of {read} source tokens occur in no training source"
            )
        # No answer is cut in silence; one that was cut where the caller wished is no news.
        if result.finish_reason is FinishReason.LENGTH and not self._length_chosen:
            complain(f"{self._place()}the answer was cut at the model's limit of {result.target_tokens} tokens")
        elif result.finish_reason is FinishReason.TIME_LIMIT:
            complain(f"{self._place()}the answer was cut at the time limit, after {result.target_tokens} tokens")
        elif result.finish_reason is FinishReason.DEAD_END:
            complain(f"{self._place()}the constraints left nothing to go on with after {result.target_tokens} tokens")

    def _place(self) -> str:
        return f"{self._unit} {self._number}: " if self._unit else ""
