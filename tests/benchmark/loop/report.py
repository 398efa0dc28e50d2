"""What was found out about the loop around the graphs, as Markdown for people and as JSON for machines."""

import io
import pstats
from collections.abc import Sequence
from typing import Any

from tests.benchmark.loop.calls import PHASES, Calls
from tests.benchmark.loop.turns import Turns
from tests.benchmark.marks import LOOP_SHARE, Kind, Mark
from tests.benchmark.report import heading
from tests.benchmark.tables import table

TURNS = (
    "An engine of one thread, alone on the machine, whose rows are always busy; microseconds of a turn of its loop. "
    "*Rest* is what is not spent in ONNX Runtime: the scheduler, the searches, rows that are copied, metrics. *Steady* "
    "is the median turn in which no request begins or ends."
)
CALLS = (
    "Calls of `Generate` over gRPC; milliseconds, medians (of each column by itself). *Outside* is what the server "
    "does not see: gRPC and the kernel on both sides, and the load generator, which shares the cores."
)
FUNCTIONS = 25  # that a profile names
MARKED_ROWS = 32  # at which the share is looked at


def markdown(title: str, turns: Sequence[Turns], calls: Sequence[Calls], machine: dict[str, Any]) -> str:
    """The whole report of one model."""
    parts = [
        f"# The loop around the graphs: {title}",
        *heading(machine),
        TURNS,
        table(
            ("rows", "turn", "decoder", "encoder", "rest", "share of the turn", "steady", "share", "for each request"),
            [_turn_cells(each) for each in turns],
        ),
    ]
    parts += [
        f"{mark.label} at {MARKED_ROWS} rows {mark.outcome} of a turn are not spent in the graphs ({mark.goal} wanted)."
        for mark in marks(turns)
    ]
    if calls:
        parts += [
            CALLS,
            table(
                ("in flight", "calls", "client", *PHASES, "server in all", "outside"),
                [_call_cells(each) for each in calls],
            ),
        ]
    return "\n\n".join(parts) + "\n"


def marks(turns: Sequence[Turns]) -> list[Mark]:
    """For the summary."""
    name = f"the loop around the graphs: share of an engine's time, {MARKED_ROWS} rows"
    return [
        Mark(name, [each.share], LOOP_SHARE, at_most=True, share=True) for each in turns if each.rows == MARKED_ROWS
    ]


def document(
    title: str,
    turns: Sequence[Turns],
    calls: Sequence[Calls],
    machine: dict[str, Any],
    kind: Kind = "shipped",
    precision: str = "int8",
) -> dict[str, Any]:
    """The same numbers, in seconds."""
    return {
        "machine": machine,
        "model": title,
        "kind": kind,
        "precision": precision,
        "marks": [mark.document() for mark in marks(turns)],
        "turns": [
            {
                "rows": each.rows,
                "turns": len(each.turns),
                **{part: each.mean(part) for part in ("seconds", "decoder", "encoder", "rest")},
                "share": each.share,
                "steady": each.steady,
                "request": each.request,
            }
            for each in turns
        ],
        "calls": [vars(each) for each in calls],
    }


def functions(profile: Any) -> str:
    """The functions that took longest, by their own time and with what they call."""
    written = io.StringIO()
    for order in ("tottime", "cumtime"):
        pstats.Stats(profile, stream=written).sort_stats(order).print_stats(FUNCTIONS)
    return written.getvalue()


def _turn_cells(turns: Turns) -> list[str]:
    steady = turns.steady
    return [
        str(turns.rows),
        *(f"{1e6 * turns.mean(part):.0f}" for part in ("seconds", "decoder", "encoder", "rest")),
        f"{turns.share:.1%}",
        *(("-", "-") if steady is None else (f"{1e6 * steady[0]:.0f}", f"{steady[1]:.1%}")),
        "-" if turns.request is None else f"{1e6 * turns.request:.0f}",
    ]


def _call_cells(calls: Calls) -> list[str]:
    numbers = [calls.client, *(calls.phases[name] for name in PHASES), calls.server, calls.outside]
    return [str(calls.in_flight), str(calls.calls), *(f"{number:.2f}" for number in numbers)]
