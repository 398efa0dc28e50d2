"""One picture of a server's last minutes, as wide as the terminal."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dragoman.cli.figures import NONE, rate, seconds, share, since, size, sparkline
from dragoman.live import Told

Point = dict[str, Any]

TIMES = {"first_token": "First token", "inter_token": "Between tokens", "generation": "End to end"}
LEAST_LINE, MOST_LINE = 10, 60  # blocks of a line
TITLE, NUMBER = 17, 8  # columns
TAKEN = 76  # columns that the rest of a row takes
LATE = 5  # points that may be due
STYLES = {"serving": "bold green"}


def frame(told: Told, address: str, width: int, problem: str = "") -> RenderableType:
    """
    Args:
        address: of the server.
        width: columns there are.
        problem: why what is shown is not of now; "" where it is.
    """
    points: list[Point] = told["points"]
    line = max(LEAST_LINE, min(MOST_LINE, width - TAKEN))
    parts: list[RenderableType] = [_head(told, address, problem)]
    fallen = ", ".join(model["name"] for model in told["models"] if model["fallback"])
    if fallen:
        parts.append(Text(f"A GPU was found but does not work: {fallen} runs on the CPU.", "bold red"))
    parts += [Text(), _rates(points, line), Text(), _times(told, line), Text(), _load(points, line), Text()]
    parts += [_totals(told), Text()]
    quiet = told["now"] - (points[-1]["time"] if points else told["started"])
    if quiet > LATE * told["every_seconds"]:
        parts.insert(1, Text(f"The server has measured nothing for {since(quiet)}: it is too busy.", "bold red"))
    window, shown = told["window_seconds"], told["kept_seconds"] / 60
    note = (
        f"Each number is of the last {window:.0f} s, each line of at most {shown:.0f} min. Health checks don't count."
    )
    return Group(*parts, Text(note, "dim"))


def _head(told: Told, address: str, problem: str) -> RenderableType:
    shown = [model for model in told["models"] if not told["model"] or model["name"] == told["model"]]
    if len(shown) == 1:
        what = " · ".join(shown[0][key] for key in ("name", "device", "precision"))
    else:
        what = f"{len(shown)} models" if shown else "no model is loaded"
    state = problem or told["state"]
    head = Text.assemble(
        ("Dragoman ", "bold"),
        f"{address}  ",
        (f"● {state}", "bold red" if problem else STYLES.get(state, "bold yellow")),
        f"  {what}  ",
        (f"up {since(told['now'] - told['started'])}", "dim"),
    )
    return Group(head, Rule(style="dim"))


def _rates(points: Sequence[Point], line: int) -> Table:
    table = _table("per second", line)

    def row(title: str, style: str, pick: Callable[[Point], float], parts: Callable[[Point], str]) -> None:
        now = rate(pick(points[-1])) if points else NONE
        told = parts(points[-1]) if points else ""
        table.add_row(title, now, Text(sparkline([pick(point) for point in points], line), style), escape(told))

    row("Calls", "green", lambda point: sum(point["codes"].values()), lambda point: _parts(point["codes"]))
    row("Errors", "red", _failing, _failing_share)
    row("Tokens", "blue", lambda point: float(point["tokens"]["target"]), _tokens)
    row("Refused, given up", "yellow", lambda point: sum(_failures(point).values()), lambda p: _parts(_failures(p)))
    return table


def _times(told: Told, line: int) -> Table:
    points = told["points"]
    table = _grid()
    for _ in told["quantiles"]:
        table.add_column(justify="right", width=NUMBER, no_wrap=True, style="bold")
    table.add_column(ratio=1, no_wrap=True)
    names = [f"p{100 * share:.0f}" for share in told["quantiles"]]
    table.add_row(*(Text(word, "dim") for word in ("times", *names, f"{names[1]}, and its highest")))
    for key, title in TIMES.items():
        now = points[-1][key] if points else None
        values = [None if point[key] is None else float(point[key][1]) for point in points]
        most = told["measured_up_to"][key]
        shown = [seconds(value, most) for value in now or [None] * len(names)]
        known = [value for value in values if value is not None]
        highest = Text.assemble((sparkline(values, line), "magenta"), f"  {seconds(max(known, default=None), most)}")
        table.add_row(title, *shown, highest)
    return table


def _load(points: Sequence[Point], line: int) -> Table:
    table = _table("at this moment", line)
    last = points[-1] if points and points[-1]["rows"] else None

    def row(title: str, now: str, values: Sequence[float | None], told: str, most: float | None = None) -> None:
        table.add_row(title, now if last else NONE, Text(sparkline(values, line, most), "cyan"), told if last else "")

    waiting, running, rows = (f"{last[key]:,}" if last else "" for key in ("waiting", "running", "rows"))
    full = last["cache"]["used"] / last["cache"]["bytes"] if last and last["cache"]["bytes"] else None
    room = f"of {size(last['cache']['bytes'])}" if last else ""
    row("Waiting", waiting, [point["waiting"] for point in points], "requests")
    row("Running", running, [point["running"] for point in points], f"of {rows} rows")
    row(
        "Rows per step",
        rate(points[-1]["step_rows"]) if points else NONE,
        [point["step_rows"] for point in points],
        f"{rate(points[-1]['steps'])} steps per second" if points else "",
    )
    row("Cache in use", share(full), [_full(point) for point in points], room, 1.0)
    return table


def _totals(told: Told) -> Table:
    totals = told["totals"]
    table = _grid()
    table.add_column(ratio=1)
    failed = {**totals["rejections"], **totals["drops"], **totals["device_errors"]}
    table.add_row(Text("since the start", "dim"), "")
    for title, counts in (
        ("Calls", totals["codes"]),
        ("Answers", totals["finishes"]),
        ("Refused, given up", failed),
        ("Tokens", totals["tokens"]),
    ):
        table.add_row(title, escape(_parts(counts, "{:,.0f}".format)) or "none")
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(width=TITLE, no_wrap=True)
    return table


def _table(head: str, line: int) -> Table:
    table = _grid()
    table.add_column(justify="right", width=NUMBER, no_wrap=True, style="bold")
    table.add_column(width=line, no_wrap=True)
    table.add_column(ratio=1, overflow="ellipsis", no_wrap=True, style="dim")
    table.add_row(Text(head, "dim"))
    return table


def _parts(counts: dict[str, float], write: Callable[[float], str] = rate) -> str:
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    return " · ".join(f"{name} {write(value)}" for name, value in ordered if value)


def _failing(point: Point) -> float:
    return float(sum(value for code, value in point["codes"].items() if code != "OK"))


def _failing_share(point: Point) -> str:
    calls = sum(point["codes"].values())
    return f"{share(_failing(point) / calls)} of the calls" if calls else "no calls to judge by"


def _tokens(point: Point) -> str:
    return f"in {rate(point['answers'])} answers; {rate(point['tokens']['source'])} read"


def _failures(point: Point) -> dict[str, float]:
    return {**point["rejections"], **point["drops"], **point["device_errors"]}


def _full(point: Point) -> float | None:
    return point["cache"]["used"] / point["cache"]["bytes"] if point["cache"]["bytes"] else None
