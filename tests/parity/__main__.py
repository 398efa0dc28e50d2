"""`python -m tests.parity`: imported models answer with the tokens of transformers' `generate`.

Writes a random model of every family as a Hugging Face directory, imports it in fp32 with `dragoman-export`, and serves
all of them in one process. Then each is asked fuzzed texts, in mixed languages where it has languages, under settings
of all kinds: 16 calls are in flight at once, and strangers send others. The tokens must be those of `generate` for one
input at a time and, where CTranslate2 has the family and the same rules, those of its conversion of the same directory.
Log-probabilities are compared with those of PyTorch in double precision.

An answer may differ only if rounding decides: if transformers' own search in double precision finds both answers once
its log-probabilities are changed at random by as little as single precision changes them. (A beam may lose a hypothesis
by a near tie at any step, so the final scores need not be close; both are printed.) Anything else makes the exit status
1.

    python -m tests.parity                               all families: a quarter of an hour on two cores
    python -m tests.parity --family nllb --texts 1000    one family, more texts
    python -m tests.parity --page                        also updates the table in docs/import.md
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dragoman import DragomanError
from dragoman.local import ServerStartError
from tests.parity.models import FAMILIES
from tests.parity.report import markdown, print_findings, update_page
from tests.parity.run import compare


def main(
    family: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYOUT", help=f"Only this one, repeatable: {', '.join(FAMILIES)}.", show_default="all"),
    ] = None,
    texts: Annotated[int, typer.Option(min=1, help="Texts of each family.")] = 300,
    seed: Annotated[int, typer.Option(help="Seed of texts, languages and order.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    folder: Annotated[
        Path | None,
        typer.Option(help="Folder to keep models and bundles in, and to take them from.", show_default="a new one"),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Update the table in docs/import.md.")] = False,
) -> None:
    """Compares the answers of imported models with those of transformers and CTranslate2."""
    layouts = family or list(FAMILIES)
    if unknown := [name for name in layouts if name not in FAMILIES]:
        raise typer.BadParameter(f"--family {unknown[0]!r} is none of {', '.join(FAMILIES)}")
    console = Console()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            found = compare(folder or Path(scratch), layouts, texts, seed, jobs, console)
        except (subprocess.CalledProcessError, ServerStartError, DragomanError) as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
    print(markdown(found))
    print_findings(found, sys.stderr)
    if page:
        update_page(found)
    raise typer.Exit(code=any(one.faults for one in found))


if __name__ == "__main__":
    typer.run(main)
