"""`dragoman top`: a live dashboard of a server in the terminal."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.common import FAILED, reporting_errors

if TYPE_CHECKING:
    from rich.console import Console

    from dragoman.cli.live_feed import LiveFeed, Snapshot

MIN_COLUMNS = 80


def top(
    address: Annotated[
        str,
        typer.Argument(
            envvar="DRAGOMAN_METRICS_ADDRESS", metavar="[HOST:PORT]", help="Metrics address of the server, plain HTTP."
        ),
    ] = "127.0.0.1:9090",
    once: Annotated[
        bool, typer.Option("--once", help="Print the dashboard once and exit; the default without a terminal.")
    ] = False,
    model: Annotated[str, typer.Option(metavar="NAME", help="Only this model. Default: all models together.")] = "",
) -> None:
    """Watch a server: calls, errors, latencies, load. Ctrl-C quits."""
    from rich.console import Console

    from dragoman.cli.dashboard import dashboard
    from dragoman.cli.live_feed import LiveError, LiveFeed

    console = Console(highlight=False)
    feed = LiveFeed(address, model)
    with reporting_errors():
        try:
            snapshot = feed.fetch()
        except LiveError as error:
            typer.echo(f"dragoman: {error}", err=True)
            raise typer.Exit(FAILED) from None
        if once or not console.is_terminal:
            console.print(dashboard(snapshot, feed.address, max(console.width, MIN_COLUMNS)), soft_wrap=False)
        else:
            _watch(feed, snapshot, console)


def _watch(feed: "LiveFeed", snapshot: "Snapshot", console: "Console") -> None:
    """Redraws the dashboard in place until Ctrl-C."""
    from rich.live import Live as Screen

    from dragoman.cli.dashboard import dashboard
    from dragoman.cli.live_feed import LiveError

    problem = ""
    last_answer = time.strftime("%X")
    try:
        with Screen(console=console, screen=True, auto_refresh=False) as screen:
            while True:
                screen.update(dashboard(snapshot, feed.address, console.width, problem), refresh=True)
                time.sleep(snapshot["every_seconds"])
                try:
                    snapshot, problem, last_answer = feed.fetch(), "", time.strftime("%X")
                except LiveError:
                    problem = f"no answer since {last_answer}"
    except KeyboardInterrupt:
        pass
