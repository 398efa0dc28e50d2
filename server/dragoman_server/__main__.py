"""The entry points of the programs, which must run even if only the client is installed."""

import gc
import os
import signal
import sys
from importlib import import_module

STANDARD_ERROR = 2  # its descriptor, the last one of the standard files


def main() -> None:
    """Runs the command line of `dragoman-serve`."""
    _open_standard_files()
    if os.getpid() == 1:
        # NOTE: the kernel delivers no signal without a handler to the first process of a container, and the server
        # installs its handlers only after all imports. A SIGTERM in that second would be lost, and the stop would hang
        # until the container is killed.
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # Imports make a hundred thousand objects and hardly any garbage, and looking for it takes a sixth of their time.
    # Collection starts when the server does, see `machine.start_collecting`.
    gc.disable()
    _run("dragoman-serve", "dragoman_server.process.cli")


def distill() -> None:
    """Runs the command line of `dragoman-distill`."""
    _run("dragoman-distill", "dragoman_server.distill.cli")


def _open_standard_files() -> None:
    """Opens the null device in place of standard files that are closed.

    NOTE: else a connection would get such a number, and what a library or a worker prints.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stderr is None:
        sys.stderr = os.fdopen(STANDARD_ERROR, "w", closefd=False)


def _run(program: str, module: str) -> None:
    """Runs the command line in a module; if the server's libraries are missing, it names the extra with them."""
    try:
        import_module(module).app()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("dragoman_server", ""):
            raise
        sentence = f"{package} is not installed; `pip install '.[server]'` in a clone of Dragoman installs it"
        print(f"{program}: {sentence}", file=sys.stderr)
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
