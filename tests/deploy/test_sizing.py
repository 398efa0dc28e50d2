"""The sums by which deploy/README.md has people choose memory and pods are those of the server."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.generate import DEPLOY
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.engine.memory_budget import DEFAULT_ROWS, Memory, plan_rows
from dragoman_server.machine import format_bytes
from dragoman_server.runtime.device import DeviceError
from dragoman_server.runtime.device_memory import row_bytes
from tests.conftest import ROOT
from tests.ramp.results import Moment, Ramp
from tests.support.bundles import SHIPPED_G2P
from tests.support.servers import G2PServer

PAGE = (DEPLOY / "README.md").read_text(encoding="utf-8")
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def formulas(name: str) -> list[Callable[..., float]]:
    """Each `NAME = ...` of the page, to be called with the values of the names in it."""
    found = re.findall(rf"^{name} = (.*?)(?:\s+#.*)?$", PAGE, re.MULTILINE)
    return [lambda _formula=formula, **values: eval(_formula, {}, values) for formula in found]


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    return load_bundle(SHIPPED_G2P).manifest


def bytes_of_row(manifest: Manifest, size: int) -> float:
    (formula,) = formulas("row")
    return formula(**manifest.shape.model_dump(), **manifest.limits.model_dump(), bytes=size)


def in_bytes(words: str) -> float:
    amount, unit = words.split()
    return float(amount) * UNITS[unit]


def test_rows_are_as_large_as_the_page_says(manifest: Manifest) -> None:
    table = re.findall(
        r"^\| (\d+), (\d+) × (\d+), (\d+)[^|]* \| (\d+) \+ (\d+) \| (.+) / (.+) \| (.+) / (.+) \|$", PAGE, re.MULTILINE
    )
    assert len(table) == 3
    for layers, heads, size, width, source, target, *told in table:
        shape = {"decoder_layers": int(layers), "heads": int(heads), "d_head": int(size), "d_model": int(width)}
        limits = {"max_source_tokens": int(source), "max_target_tokens": int(target)}
        of = manifest.model_copy(
            update={
                "shape": manifest.shape.model_copy(update=shape),
                "limits": manifest.limits.model_copy(update=limits),
            }
        )
        sizes = [row_bytes(of, each) for each in (4, 2)]
        assert sizes == [bytes_of_row(of, each) for each in (4, 2)]
        assert told == [format_bytes(count * each) for count in (1, DEFAULT_ROWS) for each in sizes]
        integers = row_bytes(of.model_copy(update={"cache": "int8"}), 4)
        assert integers == sizes[0] / 4 + 6 * int(layers) * int(width), "as the sentence about int8 says"
    assert table[0][:4] == tuple(
        str(getattr(manifest.shape, name)) for name in ("decoder_layers", "heads", "d_head", "d_model")
    )


def test_a_server_does_the_sum_that_the_page_shows(tmp_path: Path, manifest: Manifest) -> None:
    budget, engines = "300MiB", 1
    with G2PServer(
        "--memory-budget",
        budget,
        "--engines",
        str(engines),
        "--max-rows",
        "7",
        "--log-format",
        "json",
        log=tmp_path / "log",
    ) as server:
        page = server.metrics()
        lines = [json.loads(line) for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    (cache,) = [value for name, value in page.items() if name.startswith("dragoman_cache_bytes{")]
    assert cache == 7 * bytes_of_row(manifest, 4)
    (told,) = [line["sum"] for line in lines if line["event"] == "memory"]
    in_use, computing, left, row, total = (in_bytes(words) for words in re.findall(r"[\d.]+ [KMG]iB", told)[1:])
    assert row == bytes_of_row(manifest, 4)
    assert total == pytest.approx(7 * row, rel=0.02)
    _, by_budget = formulas("rows")
    rows = by_budget(budget=300 * 2**20, in_use=in_use, computing=computing, row=row, engines=engines)
    assert rows == pytest.approx(left / row, abs=4)  # what the log tells is rounded


def test_the_line_that_is_shown_is_one_of_the_server() -> None:
    shown = " ".join(re.findall(r"^of [\d.]+ GiB that the machine.*\n.*$", PAGE, re.MULTILINE)[0].split())
    free, spare, computing, left, row, total = (in_bytes(words) for words in re.findall(r"[\d.]+ [KMG]iB", shown))
    plan = plan_rows(Memory(round(free), "machine", 0), round(computing), round(row), 2, None)
    assert plan.explanation == shown
    by_free, _ = formulas("rows")
    assert (
        DEFAULT_ROWS
        < by_free(free=free, computing=computing, row=row, engines=2)
        == pytest.approx(left / row / 2, rel=0.01)
    )
    assert (format_bytes(round(free / 10)), format_bytes(round(2 * DEFAULT_ROWS * row))) == (
        format_bytes(round(spare)),
        format_bytes(round(total)),
    )


@pytest.mark.parametrize("engines", [1, 2])
def test_the_least_limit_is_enough_and_less_is_not(engines: int) -> None:
    (formula,) = formulas("limit")
    in_use, computing, rows, row = 133 * 2**20, 104 * 2**20 * engines, 64, 516 * 2**10
    limit = math.ceil(formula(in_use=in_use, computing=computing, rows=rows, row=row, engines=engines))

    def given(free: int) -> int:
        return plan_rows(Memory(free, "container", in_use), computing, row, engines, rows).rows

    assert given(limit - in_use + 10) == rows
    with pytest.raises(DeviceError):
        given(limit - in_use - 10)


def test_calls_follow_from_tokens_and_tokens_from_the_benchmark() -> None:
    measured = (ROOT / "README.md").read_text(encoding="utf-8")
    (served,) = re.findall(
        r"^\| served, 64 `Generate` calls in flight +\| ([\d,]+) +\| ([\d,]+) +\|$", measured, re.MULTILINE
    )
    table = re.findall(r"^\| [^|]+ \| 64 +\| ([\d,]+) +\| ([\d.]+) +\| ([\d,]+) +\|$", PAGE, re.MULTILINE)
    assert [row[0] for row in table] == list(served)
    for tokens, length, calls in table:
        assert number(calls) == pytest.approx(number(tokens) / float(length), rel=0.01)


def number(words: str) -> float:
    return float(words.replace(",", ""))


def test_the_queue_rose_before_latency_did_as_the_page_tells() -> None:
    shown = json.loads((DEPLOY / "autoscaling" / "ramp.json").read_text(encoding="utf-8"))
    threshold = shown.pop("threshold")
    shown.pop("machine")
    ramp = Ramp(**{**shown, "moments": tuple(Moment(**each) for each in shown["moments"])})
    queue, latency = ramp.queue_rises(threshold), ramp.latency_rises()
    assert queue is not None
    assert queue.p95_seconds is not None
    assert latency is not None
    assert queue.second < latency.second
    assert queue.p95_seconds < ramp.slow_seconds
    text = " ".join(PAGE.split())
    assert f"more than {threshold:g} requests wait from {queue.offered:,} calls a second on" in text
    assert f"95 % of calls are then answered within {1000 * queue.p95_seconds:.0f} ms" in text
    slow = f"From {latency.offered:,} calls a second on they take more than {1000 * ramp.slow_seconds:.0f} ms"
    assert slow in text
    assert f"this was at {queue.offered / ramp.capacity:.2f} of the server's maximum" in text
