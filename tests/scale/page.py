"""`python -m tests.scale.page`: writes the tables and the picture of docs/scale.md from the recorded results."""

import re
from pathlib import Path
from typing import Annotated

import typer

from tests.benchmark.machine import ROOT
from tests.scale.picture import draw
from tests.scale.plan import Plan
from tests.scale.service import load
from tests.scale.simulate import load_queue
from tests.scale.tables import Facts, all_tables

PAGE = ROOT / "docs" / "scale.md"
BLOCK = re.compile(r"(<!-- (\w+): written by python -m tests\.scale\.page -->\n).*?(<!-- end -->)", re.DOTALL)


def recorded() -> Facts:
    """Returns what the tables are made from."""
    return Facts(load(), load_queue(), Plan())


def filled(text: str, tables: dict[str, str]) -> str:
    """Returns the page with its tables.

    Raises:
        ValueError: The page lacks a table, or has another.
    """
    names = [name for _, name, _ in BLOCK.findall(text)]
    if sorted(names) != sorted(tables):
        raise ValueError(f"the page has tables {sorted(names)}; expected {sorted(tables)}, once each")
    return BLOCK.sub(lambda found: f"{found[1]}{tables[found[2]]}\n{found[3]}", text)


def main(page: Annotated[Path, typer.Option(help="The page; the picture goes beside it.")] = PAGE) -> None:
    """Writes tables and picture."""
    facts = recorded()
    try:
        text = filled(page.read_text(encoding="utf-8"), all_tables(facts))
    except ValueError as error:
        typer.echo(f"{page}: {error}", err=True)
        raise typer.Exit(1) from None
    page.write_text(text, encoding="utf-8")
    draw(facts.queue, page.with_suffix(".webp"))
    typer.echo(f"Written to {page} and {page.with_suffix('.webp')}.")


if __name__ == "__main__":
    typer.run(main)
