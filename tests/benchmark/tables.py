"""Markdown tables, and the line that describes the machine."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.benchmark.machine import QUIET_CORES


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table with columns of even width."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def measured_on(machine: Mapping[str, Any]) -> str:
    """Returns date, machine, commit and command of a measurement, with a warning if the machine was busy."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    line = (
        f"Measured {machine['date']}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; Python "
        f"{machine['python']}, {packages}; commit {machine['commit']}; `{machine['command']}`."
    )
    busy = machine["busy_cores_before"]
    return line if busy <= QUIET_CORES else f"{line} **Others kept {busy:g} cores busy: take no timing from it.**"
