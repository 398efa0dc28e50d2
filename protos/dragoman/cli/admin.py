"""`dragoman admin`: which models a server has loaded."""

from typing import Annotated

import typer

from dragoman.cli.common import Json, connected
from dragoman.cli.server import Server, asks_server

# A model of some gigabytes takes its time to be read, checked and warmed up.
LOAD_SECONDS = 600.0

admin = typer.Typer(
    name="admin",
    no_args_is_help=True,
    help="Load and unload a server's models, and see how they are. Servers may have this switched off.",
)

Name = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", show_default=False)]


@admin.command()
@asks_server(timeout=10.0)
def status(server: Server, as_json: Json = False) -> None:
    """Show every version of every model: whether it answers, why it does not, and what it uses."""
    from dragoman.cli.output import show_repository, write_json

    with connected(server) as client:
        found = client.repository_status()
        if as_json:
            write_json(found)
        else:
            show_repository(found)


@admin.command()
@asks_server(timeout=LOAD_SECONDS)
def load(
    server: Server,
    model: Name,
    again: Annotated[bool, typer.Option("--again", help="Also where it is loaded and has not changed.")] = False,
    as_json: Json = False,
) -> None:
    """Load a model that was unloaded, or a version that the server's configuration leaves out."""
    from dragoman.cli.output import show_versions, write_json

    with connected(server) as client:
        found = client.load_model(model, again=again)
        if as_json:
            write_json(found)
        else:
            show_versions(found)


@admin.command()
@asks_server(timeout=LOAD_SECONDS)
def unload(server: Server, model: Name, as_json: Json = False) -> None:
    """Take a model, or one version of it, out of service until it is loaded again."""
    from dragoman.cli.output import show_versions, write_json

    with connected(server) as client:
        found = client.unload_model(model)
        if as_json:
            write_json(found)
        else:
            show_versions(found)


@admin.command()
@asks_server(timeout=LOAD_SECONDS)
def reload(server: Server, as_json: Json = False) -> None:
    """Have the server look for new versions now, and try again what could not be loaded."""
    from dragoman.cli.output import show_repository, write_json

    with connected(server) as client:
        found = client.reload_repository()
        if as_json:
            write_json(found)
        else:
            show_repository(found)
