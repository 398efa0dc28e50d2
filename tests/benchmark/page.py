"""`python -m tests.benchmark.page`: what was measured, as one page with its pictures, beside the code that did it."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from tests.benchmark.cli import BUILD
from tests.benchmark.summary import tables
from tests.benchmark.summary_pictures import draw

PAGE = Path(__file__).parent / "README.md"
PICTURES = "pictures"
PARTS = {
    "benchmark-int8.md": "python -m tests.benchmark --precision int8",
    "benchmark-fp32.md": "python -m tests.benchmark --precision fp32",
    "loop.md": "python -m tests.benchmark.loop",
    "health.md": "python -m tests.benchmark.health",
    "servers.md": "python -m tests.benchmark.servers",
    "growth-shipped-int8.md": "python -m tests.benchmark.growth --model shipped",
    "growth-base-int8.md": "python -m tests.benchmark.growth --model base",
    "training.md": "python -m tests.benchmark.training",
    "gpu.md": "python -m tests.benchmark.gpu --output build/bench",
}
"""What the commands write, in the order of the page; those that were not run are left out, which the page says."""

HEAD = """# What was measured

Written by `python -m tests.benchmark.page` from what these two commands measured. Nothing here is typed by hand, and
each part tells its machine, its date, its commit, its versions and its own command:

```sh
make bench           # the server beside its step loop and CTranslate2, the loop, health checks, growth, training
make bench-servers   # beside Triton and plain asyncio servers
```

## In short

Two models are measured: **g2p-en**, the small one that ships, on real words, and **base**, the shape of "Attention Is
All You Need" with a vocabulary of 32,000 and random weights. Beside Dragoman stand
[CTranslate2](https://github.com/OpenNMT/CTranslate2), a library for such models on CPUs, with the same weights and in
its best setting, called in-process, so that it has nobody to serve;
[Triton](https://github.com/triton-inference-server), a server, with CTranslate2 in it; and plain asyncio servers over
CTranslate2. ✓ marks what was wanted and reached, ✗ what was wanted and missed; a number without either was given no
mark, and – was not measured.
"""


def main(
    results: Annotated[Path, typer.Option(help="Where the commands wrote their pages.")] = BUILD,
    page: Annotated[Path, typer.Option(help="The page to write; pictures go into a folder beside it.")] = PAGE,
) -> None:
    """Puts the pages of all measurements together, a summary before them."""
    found = [results / name for name in PARTS if (results / name).is_file()]
    if not found:
        typer.echo(f"page: nothing was measured yet: {results} has none of {', '.join(PARTS)}", err=True)
        raise typer.Exit(1)
    pictures = page.parent / PICTURES
    shutil.rmtree(pictures, ignore_errors=True)
    pictures.mkdir(parents=True)
    try:
        summary = [*tables(results), *draw(results, pictures), *_missing(results)]
    except (KeyError, ValidationError) as error:
        typer.echo(f"page: {results} has what another version wrote, measure anew: {error}", err=True)
        raise typer.Exit(1) from None
    parts = [HEAD, "\n\n".join(summary) + "\n", *(_part(path, pictures) for path in found)]
    page.write_text("\n".join(parts), encoding="utf-8")
    typer.echo(f"Written to {page}: {', '.join(path.name for path in found)}.")


def _missing(results: Path) -> Iterator[str]:
    """What is yet to be measured."""
    missing = [f"`{command}`" for name, command in PARTS.items() if not (results / name).is_file()]
    if missing:
        yield f"Not measured yet: {', '.join(missing)}."


def _part(path: Path, pictures: Path) -> str:
    """A page as a part of a larger one, its pictures copied."""

    def picture(match: re.Match[str]) -> str:
        shutil.copyfile(path.parent / match[2], pictures / match[2])
        return f"![{match[1]}]({PICTURES}/{match[2]})"

    text = re.sub(r"^(?=#)", "#", path.read_text(encoding="utf-8"), flags=re.MULTILINE)  # headings, a level down
    return re.sub(r"!\[(.*?)\]\(([^/)]+)\)", picture, text)


if __name__ == "__main__":
    typer.run(main)
