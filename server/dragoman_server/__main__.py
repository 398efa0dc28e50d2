"""The entrance of `dragoman-serve`, which must speak even where only the client is installed."""

import os
import signal
import sys


def main() -> None:
    """Runs the command line; an installation that lacks the server's libraries is told which extra brings them."""
    if os.getpid() == 1:
        # NOTE: the first process of a container gets no signal that it has not asked for, and until the server does,
        # everything has to be imported. A SIGTERM of that second would be lost, and whoever stops it wait for nothing.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        from dragoman_server.process.cli import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("dragoman_server", ""):
            raise
        sentence = f"{package} is not installed; `pip install '.[server]'` in a clone of Dragoman brings it"
        print(f"dragoman-serve: {sentence}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
