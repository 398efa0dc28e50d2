"""`dragoman models`, `dragoman tokenize` and `dragoman health`: what a server has, sees and says of itself."""

from typing import Annotated, Literal

import typer

from dragoman.cli.common import FAILED, Json, Model, connected
from dragoman.cli.server import Server, asks_server


@asks_server(timeout=10.0)
def models(server: Server, as_json: Json = False) -> None:
    """Show the models that the server answers for, and what may be asked of them."""
    from dragoman.cli.output import show_models, write_json

    with connected(server) as client:
        found = client.models()
        if as_json:
            write_json(found)
        else:
            show_models(found)


@asks_server(timeout=10.0)
def tokenize(
    text: Annotated[str, typer.Argument(metavar="TEXT", show_default=False)],
    side: Annotated[
        Literal["source", "target"], typer.Option(help="Which of the model's two vocabularies.")
    ] = "source",
    as_json: Json = False,
    model: Model = "",
    *,
    server: Server,
) -> None:
    """Show the tokens that the model sees: id and token, one a line."""
    from dragoman.cli.layout import token_objects
    from dragoman.cli.output import write_json, write_line

    with connected(server) as client:
        found = client.tokenize(text, model=model, side=side)
        if as_json:
            write_json(token_objects(found))
        else:
            for token in found:
                write_line(str(token.id), token.text)


@asks_server(timeout=5.0)
def health(
    service: Annotated[str, typer.Option(metavar="NAME", help="A service of the server; by default the whole.")] = "",
    *,
    server: Server,
) -> None:
    """Print the server's health; the exit status is 0 only when it is SERVING."""
    from dragoman.cli.output import write_line

    with connected(server) as client:
        status = client.health(service)
        write_line(status.value)
    if status.value != "SERVING":
        raise typer.Exit(FAILED)
