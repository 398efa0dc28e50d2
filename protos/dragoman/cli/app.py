"""The `dragoman` command and its small subcommands: score, models, tokenize, health and admin."""

import os
from typing import Annotated, Literal

import typer

from dragoman.cli.attention import ATTENTION_HELP, attention
from dragoman.cli.bulk import BULK_HELP, EPILOG, bulk
from dragoman.cli.common import (
    FAILED,
    Json,
    Model,
    Server,
    SourceLanguage,
    TargetLanguage,
    connected,
    with_server_options,
)
from dragoman.cli.generate import GENERATE_HELP, generate
from dragoman.cli.top import top

LOAD_TIMEOUT = 600.0  # seconds: reading, checking and warming up a model of several gigabytes takes long

SCORE_HELP = """Print the log-probability of each TARGET as an answer to SOURCE.

Each target has one line with tab-separated columns: the log-probability, the end token included; the target; and, if \
requested, its tokens with their log-probabilities, and its alignment.
"""

app = typer.Typer(
    name="dragoman",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The client of a Dragoman server.",
    epilog="Exit status: 0 success; 1 a text or a call failed, or no server answered; 2 wrong usage; 130 interrupted; "
    "141 the reader of the output closed the pipe.",
)
admin = typer.Typer(
    name="admin",
    no_args_is_help=True,
    help="Load and unload models, and show their status. A server may have these commands disabled.",
)

Name = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", show_default=False)]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        typer.echo(version_of("dragoman"))
        raise typer.Exit


app.command(help=GENERATE_HELP)(generate)
app.command(help=BULK_HELP, epilog=EPILOG)(bulk)


@app.command(help=SCORE_HELP)
@with_server_options(timeout=60.0)
def score(
    source: Annotated[str, typer.Argument(metavar="SOURCE", show_default=False)],
    targets: Annotated[list[str], typer.Argument(metavar="TARGET", show_default=False)],
    tokens: Annotated[bool, typer.Option("--tokens", help="Print the tokens with their log-probabilities.")] = False,
    alignment: Annotated[
        bool,
        typer.Option("--alignment", help="Print pairs: 2-0 if target token 0 attends most to source token 2."),
    ] = False,
    attention: Annotated[
        bool,
        typer.Option("--attention", help="Print all attention: layer, head, target token, source token. Needs --json."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the tokens of source and targets.")
    ] = False,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    model: Model = "",
    *,
    server: Server,
) -> None:
    if attention and not as_json:
        raise typer.BadParameter("--attention needs --json")

    from dragoman.cli.output import score_columns, scores_object, write_json, write_line

    with connected(server) as client:
        result = client.score(
            source,
            targets,
            model=model,
            alignment=alignment,
            attention=attention,
            source_language=source_language,
            target_language=target_language,
        )
        if as_json:
            write_json(scores_object(targets, result))
        else:
            for target, target_score in zip(targets, result.scores, strict=True):
                write_line(*score_columns(target, target_score, tokens=tokens))


app.command(help=ATTENTION_HELP)(attention)


@app.command()
@with_server_options(timeout=10.0)
def models(server: Server, as_json: Json = False) -> None:
    """Show the models of the server and their limits."""
    from dragoman.cli.output import show_models, write_json

    with connected(server) as client:
        (write_json if as_json else show_models)(client.models())


@app.command()
@with_server_options(timeout=10.0)
def tokenize(
    text: Annotated[str, typer.Argument(metavar="TEXT", show_default=False)],
    side: Annotated[Literal["source", "target"], typer.Option(help="Vocabulary to use.")] = "source",
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    as_json: Json = False,
    model: Model = "",
    *,
    server: Server,
) -> None:
    """Show the tokens of a text: id and token, one per line."""
    from dragoman.cli.output import token_objects, write_json, write_line

    with connected(server) as client:
        tokens = client.tokenize(
            text, model=model, side=side, source_language=source_language, target_language=target_language
        )
        if as_json:
            write_json(token_objects(tokens))
        else:
            for token in tokens:
                write_line(str(token.id), token.text)


@app.command()
@with_server_options(timeout=5.0)
def health(
    service: Annotated[str, typer.Option(metavar="NAME", help="A gRPC service. Default: the server as a whole.")] = "",
    *,
    server: Server,
) -> None:
    """Print the health of the server. The exit status is 0 only if it is SERVING."""
    from dragoman.cli.output import write_line

    with connected(server) as client:
        status = client.health(service)
        write_line(status.value)
    if status.value != "SERVING":
        raise typer.Exit(FAILED)


app.command()(top)
app.add_typer(admin)


@admin.command("status")
@with_server_options(timeout=10.0)
def admin_status(server: Server, as_json: Json = False) -> None:
    """Show every version of every model: its state, what is wrong with it, and the resources it uses."""
    from dragoman.cli.output import show_repository, write_json

    with connected(server) as client:
        (write_json if as_json else show_repository)(client.repository_status())


@admin.command("load")
@with_server_options(timeout=LOAD_TIMEOUT)
def admin_load(
    server: Server,
    model: Name,
    again: Annotated[
        bool, typer.Option("--again", help="Load it again even if it is loaded and has not changed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Load a model that was unloaded, or a version that the server's configuration leaves out."""
    from dragoman.cli.output import show_versions, write_json

    with connected(server) as client:
        (write_json if as_json else show_versions)(client.load_model(model, again=again))


@admin.command("unload")
@with_server_options(timeout=LOAD_TIMEOUT)
def admin_unload(server: Server, model: Name, as_json: Json = False) -> None:
    """Unload a model, or one version of it, until it is loaded again."""
    from dragoman.cli.output import show_versions, write_json

    with connected(server) as client:
        (write_json if as_json else show_versions)(client.unload_model(model))


@admin.command("reload")
@with_server_options(timeout=LOAD_TIMEOUT)
def admin_reload(server: Server, as_json: Json = False) -> None:
    """Scan the repository for new versions now, and retry versions that failed to load."""
    from dragoman.cli.output import show_repository, write_json

    with connected(server) as client:
        (write_json if as_json else show_repository)(client.reload_repository())


def main() -> None:
    """Runs the `dragoman` command."""
    # gRPC logs events such as a server's goodbye, which are of no use to users of the command.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app()
