"""The commands and their options. What they need to run is imported when they run, so that --help is instant."""

import os
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import contextmanager

    from dragoman.client import Client
else:
    from contextlib import contextmanager

DEFAULT_ADDRESS = "127.0.0.1:50051"
FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE

app = typer.Typer(
    name="dragoman",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Ask a Dragoman server.",
    epilog="Exit status: 0 done; 1 something failed (a text, a call, or no server); 2 wrong usage; 130 interrupted; "
    "141 the reader of the output went away.",
)

Address = Annotated[
    str,
    typer.Option(
        envvar="DRAGOMAN_ADDRESS",
        metavar="HOST:PORT",
        help="The server; several with commas take turns.",
        rich_help_panel="Server",
    ),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", min=0.001, help="For each call, retries included.", rich_help_panel="Server")
]
Model = Annotated[str, typer.Option(metavar="NAME", help="Which model; by default the server's.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


GENERATE_HELP = """Answer each TEXT, or each line of standard input: one answer a line, in order.

A text that fails gives an empty line (with --json, an object with "error"), so that lines stay aligned; \
why it failed stands on standard error, and the exit status is 1. Line breaks inside an answer are printed as \\n.

With --tokens or --log-probabilities, tabs separate the answer, its log-probability and its tokens.
"""


@app.command(help=GENERATE_HELP)
def generate(
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", show_default=False)] = None,
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = 60.0,
    model: Model = "",
    max_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Generate at most N tokens.", show_default="the model's limit")
    ] = None,
    time_limit: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Then answer with what has been generated so far.")
    ] = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Print the tokens as well.")] = False,
    log_probabilities: Annotated[
        bool, typer.Option("--log-probabilities", help="Print log-probabilities: of the answer and of its tokens.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Print each answer while it is generated, one by one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Answer texts, given as arguments or on standard input."""
    from dragoman.cli.generate import run

    with _reported():
        failures = run(
            texts or None,
            address=address,
            timeout=timeout,
            stream=stream,
            as_json=as_json,
            options={
                "model": model,
                "max_new_tokens": max_new_tokens,
                "time_limit": time_limit,
                "tokens": tokens,
                "log_probabilities": log_probabilities,
            },
        )
    if failures:
        raise typer.Exit(FAILED)


@app.command()
def models(address: Address = DEFAULT_ADDRESS, timeout: Timeout = 10.0, as_json: Json = False) -> None:
    """Show the models that the server answers for."""
    from dragoman.cli.output import show_models, write_json

    with _reported(), _client(address, timeout) as client:
        found = client.models()
        if as_json:
            write_json(found)
        else:
            show_models(found)


@app.command()
def tokenize(
    text: Annotated[str, typer.Argument(metavar="TEXT", show_default=False)],
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = 10.0,
    model: Model = "",
    side: Annotated[
        Literal["source", "target"], typer.Option(help="Which of the model's two vocabularies.")
    ] = "source",
    as_json: Json = False,
) -> None:
    """Show the tokens that the model sees: id and token, one a line."""
    from dragoman.cli.output import write_json, write_line

    with _reported(), _client(address, timeout) as client:
        found = client.tokenize(text, model=model, side=side)
        if as_json:
            write_json([{"id": token.id, "text": token.text} for token in found])
        else:
            for token in found:
                write_line(f"{token.id}\t{token.text}")


@app.command()
def health(
    address: Address = DEFAULT_ADDRESS,
    timeout: Timeout = 5.0,
    service: Annotated[str, typer.Option(metavar="NAME", help="A service of the server; by default the whole.")] = "",
) -> None:
    """Print the server's health; the exit status is 0 only when it is SERVING."""
    from dragoman.cli.output import write_line

    with _reported(), _client(address, timeout) as client:
        status = client.health(service)
        write_line(status.value)
    if status.value != "SERVING":
        raise typer.Exit(FAILED)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("dragoman"))
        raise typer.Exit


@contextmanager
def _client(address: str, timeout: float) -> "Iterator[Client]":
    from dragoman.client import Client

    with Client(address, timeout=timeout) as client:
        yield client


@contextmanager
def _reported() -> "Iterator[None]":
    """Turns what can go wrong outside our hands into one sentence and an exit status."""
    from dragoman.errors import DragomanError

    try:
        yield
        sys.stdout.flush()
    except (DragomanError, ValueError) as error:
        typer.echo(f"dragoman: {error}", err=True)
        raise typer.Exit(FAILED) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        # Python flushes standard output once more at its end; give that flush somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(BROKEN_PIPE) from None
        typer.echo(f"dragoman: {error.strerror or error}", err=True)
        raise typer.Exit(FAILED) from None


def main() -> None:
    """Entry point of `dragoman`."""
    # gRPC's own remarks (a server that says goodbye) are not for the reader of this command.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app()
