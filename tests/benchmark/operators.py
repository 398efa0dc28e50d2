"""Where the time of a graph goes: its share for each type of operator, from ONNX Runtime's own records."""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import onnxruntime as ort

from server.bundle.load import Bundle
from server.runtime.device import CPU
from server.runtime.model import Runtime, Sessions
from tests.benchmark.effort import Notify
from tests.benchmark.workload import Workload

ROWS = (1, 8, 32)
SECONDS = 0.25  # of runs, with and without records
RUNS = (5, 200)  # at least, at most


@dataclass(frozen=True)
class OperatorTimes:
    """One graph at one number of rows.

    Attributes:
        graph: "decoder" or "encoder".
        seconds: of a run, median, nothing recorded.
        nodes: that ran.
        shares: of the time of all operators, by type, largest first.
    """

    graph: str
    rows: int
    seconds: float
    nodes: int
    shares: dict[str, float]

    @property
    def other_than_products(self) -> float:
        """The share that is not matrix products."""
        return sum(share for name, share in self.shares.items() if not is_product(name))


def is_product(operator: str) -> bool:
    """Whether an operator multiplies matrices, whatever else is fused into it: Gemm, FusedGemm, MatMulNBits, ..."""
    return "Gemm" in operator or "MatMul" in operator


def measure_operators(bundle: Bundle, workload: Workload, notify: Notify) -> list[OperatorTimes]:
    """The step and the encoder on one thread, rows in the middle of their targets."""
    found = []
    for rows in ROWS:
        notify(f"operators: {rows} rows")
        sources = [workload.source_ids[i % len(workload.source_ids)] for i in range(rows)]

        def encode(runtime: Runtime, sources: list[list[int]] = sources) -> None:
            runtime.encode(sources, 0)

        def step(runtime: Runtime, rows: int = rows) -> None:
            runtime.top(rows, 1)

        for graph, work in (("decoder", step), ("encoder", encode)):
            found.append(_measure(bundle, graph, rows, encode, work, workload.max_new_tokens // 2))
    return found


def _measure(
    bundle: Bundle,
    graph: str,
    rows: int,
    encode: Callable[[Runtime], None],
    work: Callable[[Runtime], None],
    position: int,
) -> OperatorTimes:
    sessions = Sessions(bundle, CPU, 1)
    runtime = Runtime(sessions, rows)
    encode(runtime)
    runtime.positions[:] = position
    seconds = _time(lambda: work(runtime))
    with tempfile.TemporaryDirectory() as folder:
        session = _recording(getattr(sessions, graph), getattr(bundle, graph), Path(folder) / graph)
        setattr(sessions, graph, session)
        recorded = Runtime(sessions, rows)
        if graph == "decoder":  # what encodes is not looked at, but gives the step something to look at
            encode(recorded)
        recorded.positions[:] = position
        _time(lambda: work(recorded))
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes, shares = shares_of(events, seconds)
    return OperatorTimes(graph, rows, seconds, nodes, shares)


def _recording(session: ort.InferenceSession, graph: Path, prefix: Path) -> ort.InferenceSession:
    """The same session, which records how long each node takes."""
    options = session.get_session_options()
    options.enable_profiling, options.profile_file_prefix = True, str(prefix)
    return ort.InferenceSession(str(graph), options, providers=session.get_providers())


def _time(work: Callable[[], None]) -> float:
    """Median seconds; the first run, in which memory is allocated, left out."""
    work()
    spent: list[float] = []
    least, most = RUNS
    while len(spent) < least or (sum(spent) < SECONDS and len(spent) < most):
        start = time.perf_counter()
        work()
        spent.append(time.perf_counter() - start)
    return median(spent)


def shares_of(events: Iterable[dict[str, Any]], seconds: float) -> tuple[int, dict[str, float]]:
    """Shares of operators from the events that ONNX Runtime wrote down.

    To write an event takes longer than a small operator does. What the nodes of a run took beyond the time of a run
    without records is therefore taken off again, from every node the same.

    Args:
        events: of any number of equal runs.
        seconds: of a run without records.

    Returns:
        nodes of a run, and the share of each operator type, largest first.
    """
    spent: Counter[str] = Counter()  # microseconds
    count: Counter[str] = Counter()
    runs = 0
    for event in events:
        runs += event["name"] == "model_run"
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
            count[event["args"]["op_name"]] += 1
    excess = max(0.0, spent.total() - runs * 1e6 * seconds) / count.total()
    own = {name: max(0.0, spent[name] - excess * count[name]) for name in spent}
    total = sum(own.values())
    shares = {name: time / total for name, time in own.items()}
    return count.total() // runs, dict(sorted(shares.items(), key=lambda item: -item[1]))
