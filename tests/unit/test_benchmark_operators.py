"""Where the benchmark says that the time of a graph goes."""

from pathlib import Path
from typing import Any

import pytest

from server.bundle.load import load_bundle, shipped_bundle
from tests.benchmark.operators import OperatorTimes, measure_operators, shares_of
from tests.benchmark.operators_report import operator_sections
from tests.benchmark.workload import Workload


def node(operator: str, microseconds: int) -> dict[str, Any]:
    args = {"op_name": operator}
    return {"cat": "Node", "name": f"node_{operator}_kernel_time", "args": args, "dur": microseconds}


def test_what_recording_costs_is_taken_off_every_node() -> None:
    run = [
        node("Gemm", 50),
        node("Add", 12),
        node("Add", 12),
        node("Shape", 1),
        {"cat": "Session", "name": "model_run"},
    ]
    other = {"cat": "Node", "name": "node_Gemm_fence_before", "args": {"op_name": "Gemm"}, "dur": 9}
    nodes, shares = shares_of([*run, other, *run], 35e-6)  # 75 us recorded for 4 nodes: 10 us too many for each
    assert nodes == 4
    assert shares == {"Gemm": pytest.approx(40 / 44), "Add": pytest.approx(4 / 44), "Shape": 0}
    assert list(shares) == ["Gemm", "Add", "Shape"]


def test_report_tells_products_from_the_rest() -> None:
    shares = {"Gemm": 0.5, "MatMulIntegerToFloat": 0.3, "GroupQueryAttention": 0.191, "Add": 0.009}
    text = "\n".join(operator_sections([OperatorTimes("decoder", rows, 0.001, 90, shares) for rows in (1, 8)]))
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert cells[0] == ["decoder", "1 row", "8 rows"]
    found = {name: values for name, *values in cells[2:]}
    assert found["Gemm (product)"] == ["50.0 %"] * 2
    assert found["all others"] == ["0.9 %"] * 2
    assert found["**not matrix products**"] == ["20.0 %"] * 2
    assert found["ms a run"] == ["1.000"] * 2


def test_shares_of_the_shipped_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.benchmark.operators.SECONDS", 0.01)
    monkeypatch.setattr("tests.benchmark.operators.ROWS", (2,))
    bundle = load_bundle(Path(shipped_bundle()))
    ids = [encoding.ids for encoding in bundle.source_tokenizer.encode_batch(["hello", "it"])]
    told: list[str] = []
    times = measure_operators(bundle, Workload("words", ["hello", "it"], ids, [], 8), told.append)
    assert told == ["operators: 2 rows"]
    assert [each.graph for each in times] == ["decoder", "encoder"]
    for each in times:
        assert sum(each.shares.values()) == pytest.approx(1)
        assert 0 <= each.other_than_products <= 1  # 0 or 1 where something else had the machine for a moment
        assert each.nodes > 20
        assert each.seconds > 0
    assert times[0].shares.keys() > {"LayerNormalization", "TopK"}
    assert "TopK" not in times[1].shares
