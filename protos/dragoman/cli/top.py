"""`dragoman top`: what a server is doing, live, in a terminal."""

from typing import Annotated

import typer

from dragoman.cli.common import FAILED, reported

LEAST_COLUMNS = 80


def top(
    address: Annotated[
        str,
        typer.Argument(
            envvar="DRAGOMAN_METRICS_ADDRESS", metavar="[HOST:PORT]", help="The server's metrics port, plain HTTP."
        ),
    ] = "127.0.0.1:9090",
    once: Annotated[
        bool, typer.Option("--once", help="Print one picture and end, as is done without a terminal.")
    ] = False,
    model: Annotated[str, typer.Option(metavar="NAME", help="Of one model. Default: all together.")] = "",
) -> None:
    """Watch what a server is doing: calls, errors, times, load. Ctrl-C ends it."""
    from rich.console import Console

    from dragoman.live import Live, LiveError

    console = Console(highlight=False)
    live = Live(address, model)
    with reported():
        try:
            told = live.ask()
        except LiveError as error:
            typer.echo(f"dragoman: {error}", err=True)
            raise typer.Exit(FAILED) from None
        if once or not console.is_terminal:
            from dragoman.cli.frame import frame

            console.print(frame(told, live.address, max(console.width, LEAST_COLUMNS)), soft_wrap=False)
        else:
            from dragoman.cli.watching import watch

            watch(live, told, console)
