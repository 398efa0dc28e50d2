"""Shows a picture of a server after the other, in place, until the user has seen enough."""

import time

from rich.console import Console
from rich.live import Live as Screen

from dragoman.cli.frame import frame
from dragoman.live import Live, LiveError, Told


def watch(live: Live, told: Told, console: Console) -> None:
    """
    Args:
        told: what the server has said already.
    """
    problem = ""
    heard = time.strftime("%X")
    try:
        with Screen(console=console, screen=True, auto_refresh=False) as screen:
            while True:
                screen.update(frame(told, live.address, console.width, problem), refresh=True)
                time.sleep(told["every_seconds"])
                try:
                    told, problem, heard = live.ask(), "", time.strftime("%X")
                except LiveError:
                    problem = f"no answer since {heard}"
    except KeyboardInterrupt:
        pass
