"""The commands, put together."""

import os
from typing import Annotated

import typer

from dragoman.cli.admin import admin
from dragoman.cli.attention import ATTENTION_HELP, attention
from dragoman.cli.generate import GENERATE_HELP, generate
from dragoman.cli.inspection import health, models, tokenize
from dragoman.cli.score import SCORE_HELP, score
from dragoman.cli.top import top

app = typer.Typer(
    name="dragoman",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Ask a Dragoman server.",
    epilog="Exit status: 0 done; 1 something failed (a text, a call, or no server); 2 wrong usage; 130 interrupted; "
    "141 the reader of the output went away.",
)
app.command(help=GENERATE_HELP)(generate)
app.command(help=SCORE_HELP)(score)
app.command(help=ATTENTION_HELP)(attention)
app.command()(models)
app.command()(tokenize)
app.command()(health)
app.command()(top)
app.add_typer(admin)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("dragoman"))
        raise typer.Exit


def main() -> None:
    """Entry point of `dragoman`."""
    # gRPC's own remarks (a server that says goodbye) are not for the reader of this command.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app()
