"""The entry point of `dragoman-distill`, which must run even if only the client is installed."""

import sys


def main() -> None:
    """Runs the command line; if the server's libraries are missing, it names the extra that installs them."""
    try:
        from dragoman_server.distill.cli import app

        app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("dragoman_server", ""):
            raise
        sentence = f"{package} is not installed; `pip install '.[server]'` in a clone of Dragoman brings it"
        print(f"dragoman-distill: {sentence}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
