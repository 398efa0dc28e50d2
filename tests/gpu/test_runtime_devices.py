"""The runtime on every device there is: the same checks for the CPU and, where a GPU is at hand, for CUDA.

`cpu-as-gpu` goes the way of a GPU on the CPU: the encoder writes into the cache, from sources padded to the capacity;
steps are filled up to a few sizes and keep their addresses; all that goes in or comes out is copied in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import Precision
from dragoman_server.runtime.device import CPU, DeviceError, choose_device
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.run.load import load_run
from tests.gpu.host_stream import HostStream, run_on

SLOTS = 12
Answer = tuple[list[int], list[float]]
TOLERANCES = {"cuda": 5e-2, "cuda-unrecorded": 5e-2, "cuda-bf16": 4e-1}  # bf16 has an eighth of the digits


@dataclass(frozen=True)
class Setting:
    """A device to test.

    Attributes:
        new_runtime: a runtime of so many max_rows on it.
        tolerance: of log-probabilities, against the fp32 bundle on the CPU.
    """

    new_runtime: Callable[[int], Runtime]
    tolerance: float


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return load_bundle(tiny_bundle)


@pytest.fixture(scope="module")
def sources(bundle: Bundle) -> list[list[int]]:
    """Random source ids of every length the model takes."""
    shape, end = bundle.manifest.shape, bundle.manifest.tokens.end
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, bundle.manifest.limits.max_source_tokens + 1, 40)
    return [[*rng.integers(end + 1, shape.source_vocabulary, length - 1).tolist(), end] for length in lengths]


@pytest.fixture(scope="module")
def answers(bundle: Bundle, sources: list[list[int]]) -> list[Answer]:
    """Each source decoded alone, on the CPU, in a pool of one row."""
    runtime = Runtime(Sessions(bundle, CPU, 1), 1)
    return [decode_alone(runtime, source) for source in sources]


@pytest.fixture(
    scope="module",
    params=["cpu", "cpu-as-gpu", *(pytest.param(name, marks=pytest.mark.gpu) for name in TOLERANCES)],
)
def setting(
    request: pytest.FixtureRequest, bundle: Bundle, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Setting:
    if request.param.startswith("cuda"):
        return cuda_setting(bundle, tiny_run, tmp_path_factory.mktemp("gpu"), request.param)
    sessions = Sessions(bundle, CPU, 1)
    if request.param == "cpu-as-gpu":
        run_on(HostStream(), sessions)
    return Setting(lambda max_rows: Runtime(sessions, max_rows), 1e-4)


def cuda_setting(bundle: Bundle, tiny_run: Path, folder: Path, name: str) -> Setting:
    """A bundle on the first GPU, in half precision: ONNX Runtime's grouped-query attention takes nothing wider there.

    Args:
        name: a key of `TOLERANCES`.
    """
    try:
        device = choose_device("cuda", bundle.encoder)
    except DeviceError as error:
        pytest.skip(f"no GPU to test on: {error}")
    from dragoman_export.export import ExportOptions, export_run

    precision: Precision = "bf16" if name == "cuda-bf16" else "fp16"
    records = name != "cuda-unrecorded"
    options = ExportOptions(name="tiny", precision=precision, max_quality_loss=100, device="cuda")
    export_run(tiny_run, folder / "bundle", options)
    sessions = Sessions(load_bundle(folder / "bundle"), device, 1, max_cuda_graphs=128 if records else 0)
    assert bool(sessions.max_cuda_graphs) == records, "the graph can't be recorded as a CUDA graph; the log says why"
    return Setting(lambda max_rows: Runtime(sessions, max_rows), TOLERANCES[name])


def decode_alone(runtime: Runtime, source: list[int]) -> Answer:
    runtime.encode([source], 0)
    ids: list[int] = []
    log_probabilities: list[float] = []
    while len(ids) < runtime.target_capacity:
        token, log_probability = runtime.top(1, 1).best(0)
        log_probabilities.append(log_probability)
        if token == runtime.manifest.tokens.end:
            break
        ids.append(token)
        runtime.tokens[0] = token
        runtime.positions[0] += 1
    return ids, log_probabilities


def test_rows_of_any_age_decode_as_if_alone(setting: Setting, sources: list[list[int]], answers: list[Answer]) -> None:
    """Requests come and go in an arbitrary order; the last row moves into each hole."""
    runtime = setting.new_runtime(SLOTS)
    end = runtime.manifest.tokens.end
    rng = np.random.default_rng(1)
    waiting = list(range(len(sources)))
    running: list[int] = []  # by row
    ids: dict[int, list[int]] = {i: [] for i in waiting}
    log_probabilities: dict[int, list[float]] = {i: [] for i in waiting}
    done = set()
    while waiting or running:
        newcomers = min(len(waiting), SLOTS - len(running), int(rng.integers(0, 5)) or int(not running))
        if newcomers:
            group, waiting = waiting[:newcomers], waiting[newcomers:]
            runtime.encode([sources[i] for i in group], len(running))
            running += group
        rows = len(running)
        scores = runtime.top(rows, 2)
        finished = []
        for row, i in enumerate(running):
            token, log_probability = scores.best(row)
            log_probabilities[i].append(log_probability)
            if token != end:
                ids[i].append(token)
                runtime.tokens[row] = token
            if token == end or len(ids[i]) == runtime.target_capacity:
                finished.append(row)
        runtime.positions[:rows] += 1
        for row in reversed(finished):
            done.add(running[row])
            last = len(running) - 1
            if row != last:
                runtime.move_row(last, row)
                running[row] = running[last]
            running.pop()
    assert len(done) == len(sources)
    different = [i for i in done if ids[i] != answers[i][0]]
    if setting.tolerance <= 1e-4:
        assert not different
    assert len(different) <= len(sources) // 10, "half precision may tip a close call now and then, not often"
    for i in done - set(different):
        np.testing.assert_allclose(log_probabilities[i], answers[i][1], atol=setting.tolerance)


def test_step_writes_the_new_position_of_active_rows_and_nothing_else(
    setting: Setting, sources: list[list[int]]
) -> None:
    runtime = setting.new_runtime(SLOTS)
    runtime.encode(sources[:SLOTS], 0)
    for _ in range(3):
        runtime.top(SLOTS, 1)
        runtime.positions += 1
    buffers = [
        memory
        for memory in (runtime.pool.self_cache, runtime.pool.cross_cache, runtime.pool.last)
        if memory is not None
    ]
    content = [
        [[memory.read(plane, row) for row in range(SLOTS)] for plane in range(memory.shape[0])] for memory in buffers
    ]
    active = 5
    runtime.top(active, 1)
    filling = range(active, runtime.padded_rows(active))
    for memory, before in zip(buffers, content, strict=True):
        for plane in range(memory.shape[0]):
            for row in set(range(SLOTS)) - set(filling):
                changed = memory.read(plane, row) != before[plane][row]
                if memory is not runtime.pool.self_cache or row >= active:
                    assert not changed.any()
                else:
                    assert changed[:, 3].any(), "the new key or value"
                    changed[:, 3] = False
                    assert not changed.any(), "other positions stay as they were"


def test_candidates_are_the_best_in_order(setting: Setting, sources: list[list[int]]) -> None:
    runtime = setting.new_runtime(SLOTS)
    runtime.encode(sources[:4], 0)
    one = runtime.top(4, 1)
    best_ids, best = one.ids.copy(), one.log_probabilities.copy()
    every = runtime.top(4, runtime.manifest.shape.target_vocabulary)
    ids, log_probabilities = every.ids, every.log_probabilities
    assert np.array_equal(ids[:, :1], best_ids)
    np.testing.assert_allclose(log_probabilities[:, :1], best, atol=1e-5)
    assert (log_probabilities[:, 1:] <= log_probabilities[:, :-1]).all()
    np.testing.assert_allclose(np.exp(log_probabilities.astype(np.float64)).sum(1), 1, atol=1e-3)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_rows_choose_in_every_way(setting: Setting, tiny_run: Path) -> None:
    from dragoman_export.checks.head_inputs import check_head_inputs
    from dragoman_export.checks.references import TorchReference

    runtime = setting.new_runtime(SLOTS)
    found = check_head_inputs(runtime, TorchReference(load_run(tiny_run).model, runtime.manifest.tokens)).graphs
    assert found["log_probabilities"] <= 4 * setting.tolerance
    assert found["attention"] <= setting.tolerance


def test_rows_branch(setting: Setting, sources: list[list[int]]) -> None:
    """A row that takes over another's target, and one that is a copy of it, go on as that one does."""
    runtime = setting.new_runtime(SLOTS)
    runtime.encode([sources[0], sources[0]], 0)
    ways = [[4, 5, 6, 7], [4, 5, 8, 9]]
    for tokens in zip(*ways, strict=True):
        runtime.top(2, 1)
        runtime.tokens[:2, 0] = tokens
        runtime.positions[:2] += 1
    runtime.copy_target(0, 1, 3)  # the begin token and two more are in both
    runtime.move_row(0, 2)
    runtime.tokens[:3, 0] = ways[0][-1]
    scores = runtime.top(3, 5)
    for row in (1, 2):
        assert np.array_equal(scores.ids[row], scores.ids[0])
        np.testing.assert_allclose(scores.log_probabilities[row], scores.log_probabilities[0], atol=setting.tolerance)
