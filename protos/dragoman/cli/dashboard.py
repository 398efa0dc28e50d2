"""The dashboard of `dragoman top`: tables and sparklines of a server's last minutes, as wide as the terminal."""

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dragoman.cli.live_feed import Snapshot

Point = dict[str, Any]

LATENCIES = {"first_token": "First token", "inter_token": "Between tokens", "generation": "End to end"}
MIN_SPARKLINE, MAX_SPARKLINE = 10, 60  # columns
TITLE, NUMBER = 17, 8  # columns
OTHER_COLUMNS = 76  # columns of a row besides its sparkline
LATE_POINTS = 5  # missing points after which the measurements count as stale
STATE_STYLES = {"serving": "bold green"}
NONE = "–"
BLOCKS = "▁▂▃▄▅▆▇█"
SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def dashboard(snapshot: Snapshot, address: str, width: int, problem: str = "") -> RenderableType:
    """Returns the dashboard for the terminal.

    Args:
        snapshot: The measurements.
        address: Address of the server.
        width: Columns of the terminal.
        problem: Why the snapshot is not current; "" if it is.
    """
    points: list[Point] = snapshot["points"]
    sparkline_width = max(MIN_SPARKLINE, min(MAX_SPARKLINE, width - OTHER_COLUMNS))
    parts: list[RenderableType] = [_head(snapshot, address, problem)]
    fallbacks = ", ".join(model["name"] for model in snapshot["models"] if model["fallback"])
    if fallbacks:
        parts.append(Text(f"A GPU was found but does not work: {fallbacks} runs on the CPU.", "bold red"))
    for table in (
        _rates(points, sparkline_width),
        _latencies(snapshot, sparkline_width),
        _load(points, sparkline_width),
        _totals(snapshot),
    ):
        parts += [Text(), table]
    age = snapshot["now"] - (points[-1]["time"] if points else snapshot["started"])
    if age > LATE_POINTS * snapshot["every_seconds"]:
        parts.insert(1, Text(f"The server has measured nothing for {duration(age)}: it is overloaded.", "bold red"))
    window, minutes = snapshot["window_seconds"], snapshot["kept_seconds"] / 60
    note = f"Numbers cover the last {window:.0f} s, lines up to {minutes:.0f} min. Health checks are not counted."
    return Group(*parts, Text(), Text(note, "dim"))


def _head(snapshot: Snapshot, address: str, problem: str) -> RenderableType:
    models = [model for model in snapshot["models"] if not snapshot["model"] or model["name"] == snapshot["model"]]
    if len(models) == 1:
        subject = " · ".join(models[0][key] for key in ("name", "device", "precision"))
    else:
        subject = f"{len(models)} models" if models else "no model is loaded"
    state = problem or snapshot["state"]
    head = Text.assemble(
        ("Dragoman ", "bold"),
        f"{address}  ",
        (f"● {state}", "bold red" if problem else STATE_STYLES.get(state, "bold yellow")),
        f"  {subject}  ",
        (f"up {duration(snapshot['now'] - snapshot['started'])}", "dim"),
    )
    return Group(head, Rule(style="dim"))


def _rates(points: Sequence[Point], sparkline_width: int) -> Table:
    table = _table("per second", sparkline_width)

    def row(title: str, style: str, value: Callable[[Point], float], details: Callable[[Point], str]) -> None:
        line = Text(sparkline([value(point) for point in points], sparkline_width), style)
        last = points[-1] if points else None
        table.add_row(title, rate(value(last)) if last else NONE, line, escape(details(last)) if last else "")

    row("Calls", "green", lambda point: sum(point["codes"].values()), lambda point: _counts(point["codes"]))
    row("Errors", "red", _errors, _error_share)
    row("Tokens", "blue", lambda point: float(point["tokens"]["target"]), _token_details)
    row("Refused, dropped", "yellow", lambda point: sum(_failures(point).values()), lambda p: _counts(_failures(p)))
    return table


def _latencies(snapshot: Snapshot, sparkline_width: int) -> Table:
    points = snapshot["points"]
    table = _grid()
    for _ in snapshot["quantiles"]:
        table.add_column(justify="right", width=NUMBER, no_wrap=True, style="bold")
    table.add_column(ratio=1, no_wrap=True)
    names = [f"p{100 * quantile:.0f}" for quantile in snapshot["quantiles"]]
    table.add_row(*(Text(word, "dim") for word in ("latency", *names, f"{names[1]}, and its maximum")))
    for key, title in LATENCIES.items():
        last = points[-1][key] if points else None
        history = [None if point[key] is None else float(point[key][1]) for point in points]
        limit = snapshot["measured_up_to"][key]
        numbers = [seconds(value, limit) for value in last or [None] * len(names)]
        maximum = max((value for value in history if value is not None), default=None)
        line = Text.assemble((sparkline(history, sparkline_width), "magenta"), f"  {seconds(maximum, limit)}")
        table.add_row(title, *numbers, line)
    return table


def _load(points: Sequence[Point], sparkline_width: int) -> Table:
    table = _table("now", sparkline_width)
    last = points[-1] if points and points[-1]["rows"] else None

    def row(title: str, now: str, values: Sequence[float | None], details: str, full: float | None = None) -> None:
        line = Text(sparkline(values, sparkline_width, full), "cyan")
        table.add_row(title, now if last else NONE, line, details if last else "")

    waiting, running, rows = (f"{last[key]:,}" if last else "" for key in ("waiting", "running", "rows"))
    row("Waiting", waiting, [point["waiting"] for point in points], "requests")
    row("Running", running, [point["running"] for point in points], f"of {rows} rows")
    row(
        "Rows per step",
        rate(points[-1]["step_rows"]) if points else NONE,
        [point["step_rows"] for point in points],
        f"{rate(points[-1]['steps'])} steps per second" if points else "",
    )
    cache = f"of {size(last['cache']['bytes'])}" if last else ""
    used = percentage(_cache_use(last)) if last else NONE
    row("Cache in use", used, [_cache_use(point) for point in points], cache, 1.0)
    return table


def _totals(snapshot: Snapshot) -> Table:
    totals = snapshot["totals"]
    table = _grid()
    table.add_column(ratio=1)
    table.add_row(Text("since the start", "dim"), "")
    for title, counts in (
        ("Calls", totals["codes"]),
        ("Answers", totals["finishes"]),
        ("Refused, dropped", _failures(totals)),
        ("Tokens", totals["tokens"]),
    ):
        table.add_row(title, escape(_counts(counts, "{:,.0f}".format)) or "none")
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(width=TITLE, no_wrap=True)
    return table


def _table(head: str, sparkline_width: int) -> Table:
    table = _grid()
    table.add_column(justify="right", width=NUMBER, no_wrap=True, style="bold")
    table.add_column(width=sparkline_width, no_wrap=True)
    table.add_column(ratio=1, overflow="ellipsis", no_wrap=True, style="dim")
    table.add_row(Text(head, "dim"))
    return table


def _counts(counts: dict[str, float], text: Callable[[float], str] | None = None) -> str:
    """Returns names with their nonzero values, largest first."""
    text = text or rate
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return " · ".join(f"{name} {text(value)}" for name, value in ordered if value)


def _errors(point: Point) -> float:
    return float(sum(value for code, value in point["codes"].items() if code != "OK"))


def _error_share(point: Point) -> str:
    calls = sum(point["codes"].values())
    return f"{percentage(_errors(point) / calls)} of the calls" if calls else "no calls"


def _token_details(point: Point) -> str:
    return f"in {rate(point['answers'])} answers; {rate(point['tokens']['source'])} source tokens"


def _failures(counts: dict[str, Any]) -> dict[str, float]:
    return {**counts["rejections"], **counts["drops"], **counts["device_errors"]}


def _cache_use(point: Point) -> float | None:
    return point["cache"]["used"] / point["cache"]["bytes"] if point["cache"]["bytes"] else None


def digits(value: float) -> str:
    """Formats a number with up to two decimals, fewer the larger it is: 0.12, 1.23, 12.3, 123, 1,234."""
    if value == 0 or abs(value) >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.{1 if abs(value) >= 9.995 else 2}f}"


def rate(value: float | None) -> str:
    if value is None:
        return NONE
    return "< 0.01" if 0 < value < 0.005 else digits(value)


def percentage(value: float | None) -> str:
    if value is None:
        return NONE
    if 0 < value < 0.001:
        return "< 0.1 %"
    return f"{100 * value:.1f} %" if 0 < value < 1 else f"{100 * value:.0f} %"


def seconds(value: float | None, limit: float | None = None) -> str:
    """Formats seconds.

    Args:
        value: The seconds; None if unknown.
        limit: Upper bound of the measurement: such values are known only to be larger.
    """
    if value is None:
        return NONE
    if limit is not None and value >= limit:
        return f"> {seconds(limit)}"
    if value < 0.9995:
        return f"{digits(1000 * value)} ms"
    return f"{digits(value)} s" if value < 120 else f"{digits(value / 60)} min"


def size(value: float) -> str:
    unit = 0
    while value >= 1023.5 and unit < len(SIZE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{digits(value) if unit else int(value)} {SIZE_UNITS[unit]}"


def duration(value: float) -> str:
    """Formats seconds as a whole number of the largest unit."""
    for name, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= length:
            return f"{value // length:.0f} {name}"
    return f"{max(0, value):.0f} s"


def sparkline(values: Sequence[float | None], width: int, full: float | None = None) -> str:
    """Returns one line of blocks, the newest value at the right end, with gaps for unknown values.

    Args:
        values: Values at equal distances in time. If they are more than `width`, each block is a maximum of several.
        width: Number of blocks.
        full: Value of a full block; None for the maximum.
    """
    known = [value for value in values if value is not None]
    if not known:
        return " " * width
    top = full if full is not None else max(known)
    stride = -(-len(values) // width)  # rounded up
    padded = [None] * (-len(values) % stride) + list(values)
    groups = [
        [value for value in padded[at : at + stride] if value is not None] for at in range(0, len(padded), stride)
    ]
    return "".join(_block(max(group), top) if group else " " for group in groups).rjust(width)


def _block(value: float, top: float) -> str:
    return BLOCKS[min(len(BLOCKS) - 1, int(value / top * len(BLOCKS)))] if top > 0 else BLOCKS[0]
