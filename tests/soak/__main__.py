"""`make soak`: ten minutes of everything that clients do to a server, and then a look at what they left behind.

A server of the shipped model is asked some hundred different things, one after the other, and its answers are kept as
the right ones. Then it gets more than it can do, from several processes at once:

- calls of every kind, unary and streaming, of both protocols, whose answers are held against the right ones,
- calls that are given up at random moments, that have random deadlines, or random time limits,
- streams that are read slowly, or not at all,
- processes of clients that are killed, or frozen, in the middle of all that,
- connections that say nothing, or half of what they should, or nonsense, at each level from TCP to protobuf.

Its connections age meanwhile, so that all have to be made anew once in a while. In the end everything has to be as it
was: `tests.soak.verdict` has the list. The exit status is 0 where all of it holds; else each thing that does not is a
sentence on standard error.

    make soak                          ten minutes
    make soak ARGS="--seconds 20"      a first impression
"""

import asyncio
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import grpc
import psutil
import typer
from rich.console import Console

from dragoman.local import LocalServer
from tests.soak.course import SERVER, soak
from tests.soak.verdict import Finding


def main(
    seconds: Annotated[float, typer.Option(min=5, help="How long clients do what they do.")] = 600.0,
    different: Annotated[int, typer.Option(min=20, help="Different calls to draw from.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the calls, and of what is done with them.")] = 1,
    serve: Annotated[str, typer.Option(help="More arguments of dragoman-serve, in one string.")] = "",
    output: Annotated[Path | None, typer.Option(help="Folder for soak.json and the server's log.")] = None,
) -> None:
    """Soaks a server, and says whether anything is left behind."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = output or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with LocalServer(*SERVER, *shlex.split(serve), log=folder / "server.log") as server:
            try:
                found = asyncio.run(soak(server, folder, seconds, different, seed, Console()))
            except (OSError, psutil.Error, grpc.RpcError):
                if server.process.poll() is None:
                    raise
                found = [Finding("the server lives", f"it said at last:\n{server.log_tail(3)}", False)]
            status = server.stop()
    found.append(Finding("it ends with exit status 0", str(status), status == 0))
    for finding in found:
        if not finding.holds:
            print(f"It does not hold that {finding.what}: {finding.found}", file=sys.stderr)
    raise typer.Exit(code=any(not finding.holds for finding in found))


if __name__ == "__main__":
    typer.run(main)
