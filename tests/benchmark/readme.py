"""`python -m tests.benchmark.readme`: the main numbers of what `make bench` measured, into README.md and the like."""

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from tests.benchmark.cli import BUILD
from tests.benchmark.marks import TAIL_SHARE
from tests.benchmark.tables import table

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- measured: written by python -m tests.benchmark.readme -->", "<!-- end of measured -->"
KINDS = ("shipped", "base")
CALLERS = 64
LACKING = "–"

Model = dict[str, Any]
"""What the benchmark wrote of a model; of one that it did not measure, nothing."""


@dataclass(frozen=True)
class Row:
    """Of the table: its name in English and in Chinese, and what it says of a model in int8 and in fp32."""

    english: str
    chinese: str
    tell: Callable[[Model, Model], str]


def rate(system: str, load: int | None, search: str = "greedy", *, fp32: bool = False) -> Callable[[Model, Model], str]:
    """Tokens/s of the best setting at a load."""

    def tell(int8: Model, exact: Model) -> str:
        value = _rate(exact if fp32 else int8, search, system, load)
        return LACKING if value is None else _rounded(value)

    return tell


def beside(system: str, load: int, search: str, *, fp32: bool = False) -> Callable[[Model, Model], str]:
    """Tokens/s beside those of CTranslate2 at the same load."""

    def tell(int8: Model, exact: Model) -> str:
        return " / ".join(rate(each, load, search, fp32=fp32)(int8, exact) for each in (system, "ctranslate2"))

    return tell


def alone(int8: Model, _: Model) -> str:
    """Median latency of a call at a time, beside that of CTranslate2."""
    seconds = [_latency(int8, system) for system in ("unary", "ctranslate2")]
    return " / ".join(LACKING if each is None else _milliseconds(each) for each in seconds)


def arrivals(int8: Model, _: Model) -> str:
    """Calls a second, median and p99 of random arrivals at a share of the peak."""
    greedy = int8.get("greedy", {})
    busiest = [s for s in greedy.get("series", []) if (s["system"], s["in_flight"]) == ("unary", 64)]
    loads = greedy.get("open_loop", [])
    if not busiest or not loads:
        return LACKING
    peak = sum(s["sequences"] for s in busiest[0]["samples"]) / sum(s["seconds"] for s in busiest[0]["samples"])
    load = min(loads, key=lambda each: abs(each["calls_per_second"] / peak - TAIL_SHARE))
    calls, times = _rounded(load["calls_per_second"]), (load["p50_seconds"], load["p99_seconds"])
    return f"{calls}/s: {' / '.join(map(_milliseconds, times))}"


def memory(int8: Model, _: Model) -> str:
    """The most that the server held, and CTranslate2."""
    peaks = int8.get("greedy", {}).get("peak_megabytes", {})
    return " / ".join(f"{peaks[name]:.0f} MB" if name in peaks else LACKING for name in ("server", "CTranslate2"))


ROWS = (
    Row("the graphs alone, stepped in a loop, 64 rows", "只有计算图，循环执行解码步，64 行", rate("raw", 64)),
    Row("served, 64 inputs in one `GenerateBatch`", "服务，一次 `GenerateBatch` 含 64 个输入", rate("batch", 64)),
    Row("served, 64 `Generate` calls in flight", "服务，64 个 `Generate` 调用同时进行", rate("unary", 64)),
    Row("served, 8 `Generate` calls in flight", "服务，8 个 `Generate` 调用同时进行", rate("unary", 8)),
    Row("CTranslate2, batches of 64", "CTranslate2，每批 64 个", rate("ctranslate2", 64)),
    Row("CTranslate2, batches of 8", "CTranslate2，每批 8 个", rate("ctranslate2", 8)),
    Row(
        "CTranslate2, all inputs at once, sorted",
        "CTranslate2，一次给出全部输入，按长度排序",
        rate("ctranslate2", None),
    ),
    Row("one call at a time, median: served / CTranslate2", "每次只有一个调用，中位数：服务 / CTranslate2", alone),
    Row("calls at random moments: median / 99th percentile", "调用时刻随机：中位数 / 第 99 百分位", arrivals),
    Row(
        "beam of 4, one `GenerateBatch` of 8: served / CTranslate2",
        "束宽为 4，一次 `GenerateBatch` 含 8 个输入：服务 / CTranslate2",
        beside("batch", 8, "beam"),
    ),
    Row(
        "in fp32, one `GenerateBatch` of 64: served / CTranslate2",
        "fp32，一次 `GenerateBatch` 含 64 个输入：服务 / CTranslate2",
        beside("batch", 64, "greedy", fp32=True),
    ),
    Row(
        "in fp32, 64 `Generate` calls: served / CTranslate2",
        "fp32，64 个 `Generate` 调用：服务 / CTranslate2",
        beside("unary", 64, "greedy", fp32=True),
    ),
    Row("most memory held: server / CTranslate2", "内存峰值：服务器 / CTranslate2", memory),
)


def main(
    results: Annotated[Path, typer.Option(help="Where the benchmark wrote.")] = BUILD,
    folder: Annotated[Path, typer.Option(help="Where README.md, README.zh-CN.md and deploy/README.md are.")] = ROOT,
) -> None:
    """Puts the main numbers into the pages that tell of them."""
    documents = {precision: _document(results / f"benchmark-{precision}.json") for precision in ("int8", "fp32")}
    if not documents["int8"]:
        typer.echo(f"readme: {results / 'benchmark-int8.json'} is not there: run make bench", err=True)
        raise typer.Exit(1)
    for name, chinese in (("README.md", False), ("README.zh-CN.md", True)):
        _replace(folder / name, list(lines(documents["int8"], documents["fp32"], chinese)))
    _replace(folder / "deploy" / "README.md", [calls(documents["int8"])])


def lines(int8: dict[str, Any], exact: dict[str, Any], chinese: bool) -> Iterator[str]:
    """What stands between the marks."""
    models = [(_of_kind(int8, kind), _of_kind(exact, kind)) for kind in KINDS]
    titles = [one["model"].partition(", attention")[0] if one else LACKING for one, _ in models]
    rows = [[row.chinese if chinese else row.english, *(row.tell(*pair) for pair in models)] for row in ROWS]
    yield table(["tokens/s", *titles], rows)
    yield ""
    machine = int8["machine"]
    packages = ", ".join(f"{name} {machine['packages'][name]}" for name in ("onnxruntime", "ctranslate2"))
    cores, date = machine["cores"], machine["date"].split()[0]
    yield f"{machine['cpu']}, {cores} {'个核心' if chinese else 'cores'}; {packages}; {date}."


def calls(int8: dict[str, Any]) -> str:
    """What a server answers of single calls, as a table."""
    header = ["model", "calls in flight", "tokens per second", "tokens of an answer", "calls per second"]
    rows = []
    for model in (_of_kind(int8, kind) for kind in KINDS):
        rate = _rate(model, "greedy", "unary", CALLERS)
        if rate is not None:
            length = model["greedy"]["tokens_per_answer"]
            title = model["model"].partition(":")[0]
            rows.append([title, str(CALLERS), _rounded(rate), f"{length:.1f}", _rounded(rate / length)])
    return table(header, rows)


def _replace(path: Path, content: Sequence[str]) -> None:
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        typer.echo(f"readme: {path} lacks the lines {BEGIN!r} and {END!r}, once each", err=True)
        raise typer.Exit(1)
    block = "\n".join([BEGIN, *content, END])
    path.write_text(re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: block, text, flags=re.DOTALL), "utf-8")


def _document(path: Path) -> dict[str, Any]:
    parse: Callable[[str], dict[str, Any]] = json.loads
    return parse(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _of_kind(document: dict[str, Any], kind: str) -> Model:
    return next((model for model in document.get("models", []) if model["kind"] == kind), {})


def _rate(model: Model, search: str, system: str, load: int | None) -> float | None:
    found = [s for s in model.get(search, {}).get("series", []) if (s["system"], s["in_flight"]) == (system, load)]
    return max((s["tokens_per_second"] for s in found), default=None)


def _latency(model: Model, system: str) -> float | None:
    found = [s for s in model.get("greedy", {}).get("series", []) if (s["system"], s["in_flight"]) == (system, 1)]
    return min((median(sample["p50_seconds"] for sample in s["samples"]) for s in found), default=None)


def _rounded(value: float) -> str:
    """To three digits."""
    places = max(0, math.floor(math.log10(value)) - 2) if value > 0 else 0
    return f"{round(value, -places):,.0f}"


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    typer.run(main)
