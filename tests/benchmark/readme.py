"""`python -m tests.benchmark.readme`: writes the main results of `make bench` into README.md and other pages."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tests.benchmark.results import RESULTS, Served, serving
from tests.benchmark.tables import table

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- measured: written by python -m tests.benchmark.readme -->", "<!-- end of measured -->"
MODELS = ("g2p-en", "base")
CALLERS = 64
MISSING = "–"
INT8, FP32 = "int8", "fp32"

Found = Mapping[str, Served]
"""Results of one model, by precision."""


class Line(NamedTuple):
    """A row of the table: its title in English and Chinese, and the cell of a model."""

    english: str
    chinese: str
    tell: Callable[[Found], str]


def rate(system: str, load: int | None) -> Callable[[Found], str]:
    """Returns tokens/s in int8."""
    return lambda found: _rate(found, INT8, system, load)


def beside(system: str, load: int, precision: str, *, beam: bool = False) -> Callable[[Found], str]:
    """Returns tokens/s and CTranslate2's at the same load."""
    return lambda found: " / ".join(_rate(found, precision, each, load, beam=beam) for each in (system, "ctranslate2"))


def alone(found: Found) -> str:
    """Returns the median latency of one call at a time, and CTranslate2's."""
    rows = [INT8 in found and found[INT8].at(system, 1) for system in ("unary", "ctranslate2")]
    return " / ".join(_milliseconds(row.p50) if row and row.p50 else MISSING for row in rows)


def arrivals(found: Found) -> str:
    """Returns rate, median and p99 of calls with random arrivals."""
    if INT8 not in found or not (calls := found[INT8].arrivals):
        return MISSING
    return f"{_rounded(calls.calls_per_second)}/s: {' / '.join(map(_milliseconds, (calls.p50, calls.p99)))}"


def memory(found: Found) -> str:
    """Returns the peak memory of the server and of CTranslate2."""
    peaks = found[INT8].peak_mb if INT8 in found else {}
    return " / ".join(f"{peaks[name]:.0f} MB" if name in peaks else MISSING for name in ("server", "CTranslate2"))


LINES = (
    Line("the graphs alone, stepped in a loop, 64 rows", "只有计算图，循环执行解码步，64 行", rate("raw", 64)),
    Line("served, 64 inputs in one `GenerateBatch`", "服务，一次 `GenerateBatch` 含 64 个输入", rate("batch", 64)),
    Line("served, 64 `Generate` calls in flight", "服务，64 个 `Generate` 调用同时进行", rate("unary", 64)),
    Line("served, 8 `Generate` calls in flight", "服务，8 个 `Generate` 调用同时进行", rate("unary", 8)),
    Line("CTranslate2, batches of 64", "CTranslate2，每批 64 个", rate("ctranslate2", 64)),
    Line("CTranslate2, batches of 8", "CTranslate2，每批 8 个", rate("ctranslate2", 8)),
    Line(
        "CTranslate2, all inputs at once, sorted",
        "CTranslate2，一次给出全部输入，按长度排序",
        rate("ctranslate2", None),
    ),
    Line("one call at a time, median: served / CTranslate2", "每次只有一个调用，中位数：服务 / CTranslate2", alone),
    Line("calls at random moments: median / 99th percentile", "调用时刻随机：中位数 / 第 99 百分位", arrivals),
    Line(
        "beam of 4, one `GenerateBatch` of 8: served / CTranslate2",
        "束宽为 4，一次 `GenerateBatch` 含 8 个输入：服务 / CTranslate2",
        beside("batch", 8, INT8, beam=True),
    ),
    Line(
        "in fp32, one `GenerateBatch` of 64: served / CTranslate2",
        "fp32，一次 `GenerateBatch` 含 64 个输入：服务 / CTranslate2",
        beside("batch", 64, FP32),
    ),
    Line(
        "in fp32, 64 `Generate` calls: served / CTranslate2",
        "fp32，64 个 `Generate` 调用：服务 / CTranslate2",
        beside("unary", 64, FP32),
    ),
    Line("most memory held: server / CTranslate2", "内存峰值：服务器 / CTranslate2", memory),
)


def main(
    results: Annotated[Path, typer.Option(help="Folder of serving.json.")] = RESULTS,
    folder: Annotated[Path, typer.Option(help="Where README.md, README.zh-CN.md and deploy/README.md are.")] = ROOT,
) -> None:
    """Writes the main results into the pages that show them."""
    served = serving(results)
    if f"{MODELS[0]} {INT8}" not in served:
        typer.echo(f"readme: {results / 'serving.json'} has no {MODELS[0]} in {INT8}: run make bench", err=True)
        raise typer.Exit(1)
    for name, chinese in (("README.md", False), ("README.zh-CN.md", True)):
        _replace(folder / name, list(lines(served, chinese)))
    _replace(folder / "deploy" / "README.md", [calls(served)])


def lines(served: Mapping[str, Served], chinese: bool) -> Iterator[str]:
    """What stands between the marks."""
    models = [_of(served, model) for model in MODELS]
    titles = [found[INT8].model if INT8 in found else MISSING for found in models]
    rows = [[line.chinese if chinese else line.english, *map(line.tell, models)] for line in LINES]
    yield table(["tokens/s", *titles], rows)
    yield ""
    machine = served[f"{MODELS[0]} {INT8}"].machine
    packages = ", ".join(f"{name} {machine['packages'][name]}" for name in ("onnxruntime", "ctranslate2"))
    cores, date = machine["cores"], machine["date"].split()[0]
    yield f"{machine['cpu']}, {cores} {'个核心' if chinese else 'cores'}; {packages}; {date}."


def calls(served: Mapping[str, Served]) -> str:
    """Returns the table of servers under single calls."""
    header = ["model", "calls in flight", "tokens per second", "tokens of an answer", "calls per second"]
    rows = []
    for model in MODELS:
        found = served.get(f"{model} {INT8}")
        row = found and found.at("unary", CALLERS)
        if found and row:
            length = found.tokens_per_answer
            rows.append([model, str(CALLERS), _rounded(row.rate), f"{length:.1f}", _rounded(row.rate / length)])
    return table(header, rows)


def _of(served: Mapping[str, Served], model: str) -> Found:
    found = {precision: served.get(f"{model} {precision}") for precision in (INT8, FP32)}
    return {precision: each for precision, each in found.items() if each}


def _replace(path: Path, content: Sequence[str]) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        typer.echo(f"readme: {path} lacks the lines {BEGIN!r} and {END!r}, once each", err=True)
        raise typer.Exit(1)
    block = "\n".join([BEGIN, *content, END])
    path.write_text(re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL), "utf-8")


def _rate(found: Found, precision: str, system: str, load: int | None, *, beam: bool = False) -> str:
    row = found[precision].at(system, load, beam=beam) if precision in found else None
    return _rounded(row.rate) if row else MISSING


def _rounded(value: float) -> str:
    """Rounds to three digits."""
    places = max(0, math.floor(math.log10(value)) - 2) if value > 0 else 0
    return f"{round(value, -places):,.0f}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    typer.run(main)
