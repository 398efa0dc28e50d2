"""The page of what was measured."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from tests.benchmark.report import heading

_MEANINGS = (
    "The floor is the time to read weights and valid cache at the bandwidth that a copy was measured at. Launch gaps "
    "are the share of a step in which the device has nothing to do, waiting for the host. CTranslate2's time is its "
    "whole translation, sources encoded too, by steps."
)


def markdown(document: Mapping[str, Any]) -> str:
    """A table of steps, and what the memory did."""
    load = document["load"]
    others = document["others"]
    header = ["rows", "step, ms", "floor, ms", "step / floor", "tokens/s", "unrecorded, ms", "launch gaps"]
    header += [each["name"] + ", ms" for each in others]
    lines = [
        f"# Steps on {document['device']}, {document['precision']}",
        "",
        *chain.from_iterable((line, "") for line in heading(document["machine"])),
        f"Sources of {load['source']} tokens, {load['steps']} steps, median of {load['rounds']} rounds. {_MEANINGS}",
        "",
        _row(header),
        _row(["---:"] * len(header)),
    ]
    for step in document["steps"]:
        rows, seconds = step["rows"], step["seconds"]
        gaps = None if step["busy"] is None else f"{max(0.0, 1 - step['busy'] / seconds):.0%}"
        cells = [
            str(rows),
            _ms(seconds),
            _ms(step["floor"]),
            f"{seconds / step['floor']:.1f}",
            f"{rows / seconds:,.0f}",
        ]
        lines.append(
            _row([*cells, _ms(step["unrecorded"]), gaps or "-", *(_ms(o["seconds"].get(rows)) for o in others)])
        )
    lines += ["", *(f"{each['name']} did not run to the end: {each['problem']}" for each in others if each["problem"])]
    lines += ["", "| requests answered | memory in use, MiB |", "|---:|---:|"]
    lines += [f"| {answered:,} | {used / 2**20:,.0f} |" for answered, used in document["memory"]]
    lines += ["", f"A copy reads and writes {document['bandwidth'] / 1e9:,.0f} GB/s."]
    lines += [""]
    return "\n".join(lines)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
