"""The checks at the end of a soak, and the tables shown during and after it."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.soak.monitor import Sample
from tests.soak.processes import Counts

# More than before the load: Python's executor keeps the threads it has started, and gRPC some for the next burst.
MORE_THREADS = min(32, (os.cpu_count() or 1) + 4) + 4
MORE_FILES = 4
# Growth of resident memory, whichever is larger. Over ten minutes on two cores, half a kilobyte per call.
GROWTH_SHARE, GROWTH_BYTES = 0.1, 2**25
FIRST_SECONDS = 240.0  # a shorter soak can't judge memory growth: caches and pools are still filling
EXPECTED_CODES = ("patient: OK", "cancelled: CANCELLED", "deadline: DEADLINE_EXCEEDED", "limited: OK", "slow: OK")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        claim: The condition, as a sentence.
        observed: The measured value.
        holds: Whether the condition holds.
    """

    claim: str
    observed: str
    holds: bool


def check(
    before: Sample, during: Sequence[Sample], after: Sample, counts: Counts, log: str, settle_seconds: float
) -> list[Finding]:
    """Checks everything that a soak has recorded.

    Args:
        before, after: Samples without load.
        during: Samples under load, in order.
        counts: Counts of the client processes.
        log: The server's log.
        settle_seconds: Longest time between the end of the load and `after`.
    """
    errors = error_lines(log)
    return [
        Finding("every answer is correct", _count(counts.wrong, "fault") + _first(counts.faults), not counts.wrong),
        Finding(
            "all kinds of calls were made",
            _count(sum(counts.codes.values()), "call"),
            all(counts.codes[code] for code in EXPECTED_CODES) and bool(counts.misbehaviours),
        ),
        Finding("clients were killed in mid-call", str(counts.killed), counts.killed > 0),
        Finding("silent connections are closed", f"{counts.outstayed} were not", not counts.outstayed),
        Finding(
            f"nothing waits or runs, and nobody is connected, {settle_seconds:g} s after the last call",
            f"{after.waiting} waiting, {after.rows} rows, {after.in_flight} calls, {after.connections} connections",
            after.idle,
        ),
        Finding(
            f"at most {MORE_THREADS} threads are left over",
            f"{before.threads} before, {after.threads} after",
            after.threads <= before.threads + MORE_THREADS,
        ),
        Finding(
            f"at most {MORE_FILES} open files are left over",
            f"{before.files} before, {after.files} after",
            after.files <= before.files + MORE_FILES,
        ),
        _check_memory(during),
        _check_health([*during, after]),
        Finding("the log has no errors or tracebacks", _count(len(errors), "line") + _first(errors), not errors),
    ]


def _check_memory(during: Sequence[Sample]) -> Finding:
    """Compares the last fifth of the load with the second one, as the first one includes start-up."""
    sizes = [sample.resident_bytes for sample in during]
    fifth = len(sizes) // 5
    limit = f"{GROWTH_SHARE:.0%} or {GROWTH_BYTES >> 20} MiB"
    claim = f"resident memory grows by at most {limit} from the second fifth of the load to the last"
    if not during or during[-1].seconds - during[0].seconds < FIRST_SECONDS:
        return Finding(claim, "the soak was too short to tell", True)
    early, late = median(sizes[fifth : 2 * fifth]), median(sizes[-fifth:])
    growth = max(GROWTH_SHARE * early, GROWTH_BYTES)
    return Finding(claim, f"{early / 2**20:.1f} MiB, {late / 2**20:.1f} MiB", late - early <= growth)


def _check_health(samples: Sequence[Sample]) -> Finding:
    times = sorted(sample.health_seconds for sample in samples if sample.health_seconds is not None)
    failures = len(samples) - len(times)
    observed = "never"
    if times:
        observed = f"{len(times)} times, in {1000 * median(times):.1f} ms, at most {1000 * times[-1]:.0f} ms"
        observed += f"; {failures} times not" if failures else ""
    return Finding("health checks answer SERVING, under load and afterwards", observed, not failures)


def error_lines(log: str) -> list[str]:
    """Returns the lines of a server's log that are errors, or not JSON: those of libraries or of Python itself."""
    return [line for line in log.splitlines() if _is_error(line)]


def _is_error(line: str) -> bool:
    try:
        event = json.loads(line)
    except ValueError:
        return True
    return not isinstance(event, dict) or event.get("level") in ("error", "critical")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _first(texts: Sequence[str]) -> str:
    return f", the first: {texts[0]}" if texts else ""


def progress_table(counts: Counts, sample: Sample, seconds_left: float) -> Table:
    table = Table(box=None, show_header=False)
    calls = sum(counts.codes.values())
    for name, value in (
        ("time left", f"{max(seconds_left, 0):.0f} s"),
        ("calls", f"{calls:,}: {counts.right:,} answered correctly, {counts.partial:,} cut by their time limit"),
        ("faults", f"{counts.wrong:,}"),
        ("processes", f"{counts.killed} killed, {counts.frozen} frozen"),
        ("misbehaving", f"{sum(counts.misbehaviours.values()):,}"),
        ("server", f"{sample.waiting} waiting, {sample.rows} rows running, {sample.connections} connections"),
        ("process", f"{sample.resident_bytes / 2**20:.0f} MiB, {sample.threads} threads, {sample.files} files"),
    ):
        table.add_row(name, value)
    return table


def print_report(console: Console, counts: Counts, during: Sequence[Sample], findings: Sequence[Finding]) -> None:
    calls = Table("calls", "count", title="Calls")
    for section in (counts.codes, counts.methods, counts.misbehaviours):
        for name, count in sorted(section.items()):
            calls.add_row(name.replace("_", " ") if section is counts.misbehaviours else name, f"{count:,}")
        calls.add_section()
    console.print(calls)
    if during:
        load = Table("", "mean", "max", title="Under load")
        for name in ("waiting", "rows", "in_flight", "connections", "threads", "files", "late_seconds"):
            values = [getattr(sample, name) for sample in during]
            load.add_row(name.replace("_", " "), f"{sum(values) / len(values):.1f}", f"{max(values):.3g}")
        console.print(load)
    checks = Table("", "check", "observed", title="Checks")
    for finding in findings:
        checks.add_row("yes" if finding.holds else "[bold red]NO[/]", finding.claim, finding.observed[:300])
    console.print(checks)
