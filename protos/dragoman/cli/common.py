"""What the commands share. What they need to run is imported when they run, so that --help is instant."""

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.server import PANEL, Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import contextmanager

    from dragoman.client import Client
else:
    from contextlib import contextmanager

FAILED = 1
WRONG_USAGE = 2  # as for what typer itself refuses
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE

Model = Annotated[
    str,
    typer.Option(metavar="NAME", help="Which model. Default: the server's.", rich_help_panel=PANEL),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def connected(server: Server) -> "Iterator[Client]":
    """A client, and what `reported` does."""
    with reported(), server.client() as client:
        yield client


def sentence(error: Exception) -> str:
    """What went wrong, with the name of the call where the server's log may tell more."""
    return " ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])


@contextmanager
def reported() -> "Iterator[None]":
    """Turns what can go wrong outside our hands into one sentence and an exit status.

    A ValueError is wrong usage: so the client refuses what can't be sent, before any call.
    """
    from dragoman.errors import DragomanError

    try:
        yield
        sys.stdout.flush()
    except (DragomanError, ValueError) as error:
        typer.echo(f"dragoman: {sentence(error)}", err=True)
        raise typer.Exit(FAILED if isinstance(error, DragomanError) else WRONG_USAGE) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        # Python flushes standard output once more at its end; give that flush somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(BROKEN_PIPE) from None
        typer.echo(f"dragoman: {error.strerror or error}", err=True)
        raise typer.Exit(FAILED) from None
