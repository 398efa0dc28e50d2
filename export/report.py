"""A check's outcome as tables."""

from rich.console import Console
from rich.table import Table

from export.check import Report


def print_report(report: Report, console: Console) -> None:
    """Prints differences and timings, what was not checked, and what failed."""
    document = report.document
    table = Table(title=f"cached step against {document['reference']}, on {document['device']}", title_justify="left")
    for column in ("rows", "longest source", "steps", "log-probabilities", "largest difference (nats)", "allowed"):
        table.add_column(column, justify="right")
    for found in report.walks:
        allowed = found.limit(document["tolerance"])
        good = found.difference <= allowed
        style = None if good else "bold red"
        table.add_row(
            str(found.rows),
            str(found.source),
            str(found.steps),
            f"{found.compared:,}",
            f"{found.difference:.1e}",
            f"{allowed:.1e}",
            style=style,
        )
    console.print(table)
    console.print(
        f"tolerance {document['tolerance']:g}; largest difference {document['largest_difference']:.1e}; "
        f"of PyTorch's own single precision {document['largest_rounding']:.1e}"
    )
    for name, difference in document.get("scorer", {}).items():
        console.print(f"scorer, {name.replace('_', ' ')}: largest difference {difference:.1e}")
    for name, difference in document.get("choices", {}).items():
        console.print(f"edited rows, {name.replace('_', ' ')}: largest difference {difference:.1e}")
    greedy = document["greedy"]
    line = f"greedy answers equal: {greedy['equal']} of {greedy['sources']}"
    if greedy.get("ties"):
        line += f" ({greedy['ties']} differ between equally likely tokens)"
    if "seconds_pytorch" in greedy:
        line += f"; {greedy['seconds_graphs']} s, and {greedy['seconds_pytorch']} s in PyTorch without a cache"
    console.print(line)
    for work, times in document["milliseconds"].items():
        console.print(f"{work}, milliseconds: " + ", ".join(f"{n} rows {t:g}" for n, t in times.items()))
    for sentence in document["not_checked"]:
        console.print(f"not checked: {sentence}", style="yellow")
    for sentence in report.failures:
        console.print(f"failed: {sentence}", style="bold red")
