"""`python -m tests.benchmark.page`: what was measured, as one page with its pictures, beside the code that did it."""

import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from tests.benchmark.cli import BUILD

PAGE = Path(__file__).parent / "README.md"
PICTURES = "pictures"
PARTS = (
    "benchmark-int8.md",
    "benchmark-fp32.md",
    "loop.md",
    "growth-shipped.md",
    "growth-base.md",
    "servers.md",
    "training.md",
    "gpu.md",
)
"""What the commands write, in the order of the page; those that were not run are left out."""

HEAD = """# What was measured

Written by `python -m tests.benchmark.page` from what these two commands measured; nothing here is typed by hand, and
each part tells its machine, its commit, its versions and its own command:

```sh
make bench           # the server beside its step loop and CTranslate2, the loop, growth, training
make bench-servers   # beside Triton and plain asyncio servers
```
"""


def main(
    results: Annotated[Path, typer.Option(help="Where the commands wrote their pages.")] = BUILD,
    page: Annotated[Path, typer.Option(help="The page to write; pictures go into a folder beside it.")] = PAGE,
) -> None:
    """Puts the pages of all measurements together."""
    found = [results / name for name in PARTS if (results / name).is_file()]
    if not found:
        typer.echo(f"page: nothing was measured yet: {results} has none of {', '.join(PARTS)}", err=True)
        raise typer.Exit(1)
    pictures = page.parent / PICTURES
    shutil.rmtree(pictures, ignore_errors=True)
    pictures.mkdir(parents=True)
    page.write_text("\n".join([HEAD, *(_part(path, pictures) for path in found)]), encoding="utf-8")
    typer.echo(f"Written to {page}: {', '.join(path.name for path in found)}.")


def _part(path: Path, pictures: Path) -> str:
    """A page as a part of a larger one, its pictures copied."""

    def picture(match: re.Match[str]) -> str:
        shutil.copyfile(path.parent / match[2], pictures / match[2])
        return f"![{match[1]}]({PICTURES}/{match[2]})"

    text = re.sub(r"^(?=#)", "#", path.read_text(encoding="utf-8"), flags=re.MULTILINE)  # headings, a level down
    return re.sub(r"!\[(.*?)\]\(([^/)]+)\)", picture, text)


if __name__ == "__main__":
    typer.run(main)
