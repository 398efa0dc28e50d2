"""What a comparison found, as Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from tests.parity.comparison import Findings
from tests.parity.models import FAMILIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "import.md"
START, END = "<!-- python -m tests.parity --page -->", "<!-- end -->"
HEADER = (
    "| model | settings | answers | equal | near ties | CTranslate2: equal | log-probabilities | largest difference "
    "(transformers' own) |\n|---|---|---|---|---|---|---|---|"
)


def markdown(found: Sequence[Findings]) -> str:
    """Returns a table with a row for each family."""
    return "\n".join([HEADER, *map(_row, found)])


def print_findings(found: Sequence[Findings], output: TextIO) -> None:
    """Prints near ties and faults, and how varied the answers were."""
    for one in found:
        for tie in one.ties:
            print(f"near tie: {tie}", file=output)
        for fault in one.faults:
            print(f"different: {fault}", file=output)
        total = one.asked + one.second
        print(
            f"{one.layout}: {one.distinct} different answers, median length {one.length:g}; {one.texts} texts are "
            f"transformers' texts; scores within {one.score:.1e}; {total} answers compared",
            file=output,
        )


def update_page(found: Sequence[Findings]) -> None:
    """Replaces the table in docs/import.md."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n\n{markdown(found)}\n\n{END}{after}", encoding="utf-8")


def _row(one: Findings) -> str:
    second = f"{one.second_equal} of {one.second}" if one.second else "–"
    cells = (
        FAMILIES[one.layout].name,
        str(one.settings),
        str(one.asked),
        str(one.equal),
        str(len(one.ties)),
        second,
        f"{one.log_probabilities:,}",
        f"{one.difference:.0e} ({one.rounding:.0e})",
    )
    return f"| {' | '.join(cells)} |"
