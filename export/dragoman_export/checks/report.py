"""The result of a parity check, and its tables."""

from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from dragoman_export.checks.serving_simulation import SimulatedCase
from dragoman_export.errors import ExportError
from dragoman_server.bundle.manifest import LexicalShortlist


@dataclass
class ParityReport:
    """The result of a parity check.

    Attributes:
        document: What the manifest keeps under `parity`.
        cases: The simulated cases, for the table.
        failures: One sentence for each failure; empty if the check passed.
    """

    document: dict[str, Any]
    cases: list[SimulatedCase]
    failures: list[str] = field(default_factory=list)


class CheckFailedError(ExportError):
    """The graphs do not compute what the model computes.

    Attributes:
        report: The full report.
    """

    def __init__(self, message: str, report: ParityReport) -> None:
        super().__init__(message)
        self.report = report


def print_report(report: ParityReport, console: Console) -> None:
    """Prints differences, timings, what was not checked, and failures."""
    document = report.document
    table = Table(title=f"cached step against {document['reference']}, on {document['device']}", title_justify="left")
    for column in ("rows", "longest source", "steps", "log-probabilities", "largest difference (nats)", "allowed"):
        table.add_column(column, justify="right")
    for case in report.cases:
        allowed = case.allowed(document["tolerance"])
        table.add_row(
            str(case.rows),
            str(case.source),
            str(case.steps),
            f"{case.compared:,}",
            f"{case.difference:.1e}",
            f"{allowed:.1e}",
            style=None if case.difference <= allowed else "bold red",
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
    console.print(line)
    for work, times in document["milliseconds"].items():
        console.print(f"{work}, milliseconds: " + ", ".join(f"{n} rows {t:g}" for n, t in times.items()))
    for sentence in document["not_checked"]:
        console.print(f"not checked: {sentence}", style="yellow")
    for sentence in report.failures:
        console.print(f"failed: {sentence}", style="bold red")


def print_loss(loss: dict[str, Any], console: Console) -> None:
    """Prints what a precision costs and gains; nothing for fp32."""
    if not loss:
        return
    before, after = loss["megabytes"]
    table = Table(title=f"{after} against {before}, on {loss['data']}", title_justify="left")
    for column in ("", before, after):
        table.add_column(column, justify="right")
    rows = loss["quality"] | {"log-probability": loss["mean_log_probability"], "megabytes": loss["megabytes"]}
    for name, values in rows.items():
        table.add_row(name, *(f"{values[precision]:g}" for precision in (before, after)))
    console.print(table)
    console.print(
        f"equal answers {loss['equal_answers']:.2%}, equal tokens {loss['equal_tokens']:.2%} of {loss['sources']:,} "
        f"sources; points lost {loss['points_lost']:g}"
    )
    for name, precision in loss.get("wider", {}).items():
        console.print(f"kept in {precision}, since it is sensitive: {name}")
    if loss["step_time"]:
        shares = ", ".join(f"{rows} rows {share:.0%}" for rows, share in loss["step_time"].items())
        console.print(f"time of a decoder step relative to {before}: {shares}")


def print_shortlist(shortlist: LexicalShortlist | None, console: Console) -> None:
    """Prints what a shortlist costs and gains; nothing without one."""
    if shortlist is None:
        return
    shares = ", ".join(f"{rows} rows {share:.0%}" for rows, share in shortlist.step_time.items())
    console.print(
        f"shortlist of {shortlist.tokens:g} tokens for a source: points lost {shortlist.points_lost:g}, time of a step "
        f"{shares}; {'used by default' if shortlist.default else 'only used by requests that ask for it'}"
    )
