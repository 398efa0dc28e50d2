"""What people see of a soak: how it goes, and how it went."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.soak.crowd import Seen
from tests.soak.verdict import Finding
from tests.soak.watch import Sample


def progress(seen: Seen, sample: Sample, left: float) -> Table:
    """How it goes."""
    table = Table(box=None, show_header=False)
    calls = sum(seen.codes.values())
    for name, value in (
        ("time left", f"{max(left, 0):.0f} s"),
        ("calls", f"{calls:,}, of which {seen.right:,} had their right answer, {seen.partial:,} as much as time let"),
        ("faults", f"{seen.wrong:,}"),
        ("processes", f"{seen.killed} killed, {seen.frozen} frozen"),
        ("without manners", f"{sum(seen.deeds.values()):,}"),
        ("server", f"{sample.waiting} waiting, {sample.rows} rows running, {sample.connections} connections"),
        ("process", f"{sample.resident_bytes / 2**20:.0f} MiB, {sample.threads} threads, {sample.files} files"),
    ):
        table.add_row(name, value)
    return table


def report(console: Console, seen: Seen, during: Sequence[Sample], found: Sequence[Finding]) -> None:
    """How it went."""
    calls = Table("calls", "how many", title="What clients did")
    for manner, count in sorted(seen.codes.items()):
        calls.add_row(manner, f"{count:,}")
    calls.add_section()
    for name, count in sorted(seen.methods.items()):
        calls.add_row(name, f"{count:,}")
    calls.add_section()
    for deed, count in sorted(seen.deeds.items()):
        calls.add_row(deed.replace("_", " "), f"{count:,}")
    console.print(calls)
    if during:
        load = Table("", "mean", "most", title="Under load")
        for name in ("waiting", "rows", "in_flight", "connections", "threads", "files", "late_seconds"):
            values = [getattr(sample, name) for sample in during]
            load.add_row(name.replace("_", " "), f"{sum(values) / len(values):.1f}", f"{max(values):.3g}")
        console.print(load)
    verdict = Table("", "what must hold", "found", title="Afterwards")
    for finding in found:
        verdict.add_row("yes" if finding.holds else "[bold red]NO[/]", finding.what, finding.found[:300])
    console.print(verdict)
