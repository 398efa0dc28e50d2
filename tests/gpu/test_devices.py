"""The runtime and its workers on every device of this machine: the CPU and, if there is a GPU, CUDA.

`cpu-as-gpu` takes the code path of a GPU on the CPU: the encoder writes into the cache, with sources padded to the
capacity; steps are padded to a few sizes and keep their addresses; all inputs and outputs are copied in order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from dragoman import Client
from dragoman.local import LocalServer
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.bundle.manifest import Precision
from dragoman_server.metrics.machine import GpuMetrics
from dragoman_server.runtime.device import CPU, DeviceError, choose_device
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from dragoman_training.run.load import load_run
from tests.gpu.host_stream import HostStream, run_on

MAX_ROWS = 12
NUMBERS = ["7", "42", "365", "9801"]
Answer = tuple[list[int], list[float]]
TOLERANCES = {"cuda": 5e-2, "cuda-no-capture": 5e-2, "cuda-bf16": 4e-1}  # bf16 has an eighth of the precision


@dataclass(frozen=True)
class Setting:
    """A device under test.

    Attributes:
        new_runtime: Function from max_rows to a new runtime.
        tolerance: Largest error of log-probabilities against the fp32 bundle on the CPU.
    """

    new_runtime: Callable[[int], Runtime]
    tolerance: float


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return load_bundle(tiny_bundle)


@pytest.fixture(scope="module")
def sources(bundle: Bundle) -> list[list[int]]:
    """Random source ids of all lengths up to the model's limit."""
    shape, end = bundle.manifest.shape, bundle.manifest.tokens.end
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, bundle.manifest.limits.max_source_tokens + 1, 40)
    return [[*rng.integers(end + 1, shape.source_vocabulary, length - 1).tolist(), end] for length in lengths]


@pytest.fixture(scope="module")
def answers(bundle: Bundle, sources: list[list[int]]) -> list[Answer]:
    """The greedy output of each source, decoded alone on the CPU in a pool of one row."""
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
    """Exports a half-precision bundle for the first GPU, where ONNX Runtime's grouped-query attention needs one.

    Args:
        name: Key of `TOLERANCES`.
    """
    try:
        device = choose_device("cuda", bundle.encoder)
    except DeviceError as error:
        pytest.skip(f"no GPU to test on: {error}")
    from dragoman_export.export import ExportOptions, export_run

    precision: Precision = "bf16" if name == "cuda-bf16" else "fp16"
    capture = name != "cuda-no-capture"
    options = ExportOptions(name="tiny", precision=precision, max_quality_loss=100, device="cuda")
    export_run(tiny_run, folder / "bundle", options)
    sessions = Sessions(load_bundle(folder / "bundle"), device, 1, max_cuda_graphs=128 if capture else 0)
    assert bool(sessions.max_cuda_graphs) == capture, "the decoder can't be captured as a CUDA graph; see the log"
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


def test_rows_decode_as_if_alone(setting: Setting, sources: list[list[int]], answers: list[Answer]) -> None:
    """Requests start and end in arbitrary order; the last row moves into each hole."""
    runtime = setting.new_runtime(MAX_ROWS)
    end = runtime.manifest.tokens.end
    rng = np.random.default_rng(1)
    pending = list(range(len(sources)))
    running: list[int] = []  # by row
    ids: dict[int, list[int]] = {i: [] for i in pending}
    log_probabilities: dict[int, list[float]] = {i: [] for i in pending}
    done = set()
    while pending or running:
        started = min(len(pending), MAX_ROWS - len(running), int(rng.integers(0, 5)) or int(not running))
        if started:
            group, pending = pending[:started], pending[started:]
            runtime.encode([sources[i] for i in group], len(running))
            running += group
        rows = len(running)
        result = runtime.top(rows, 2)
        finished = []
        for row, i in enumerate(running):
            token, log_probability = result.best(row)
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
    assert len(different) <= len(sources) // 10, "half precision may change a close choice, but rarely"
    for i in done - set(different):
        np.testing.assert_allclose(log_probabilities[i], answers[i][1], atol=setting.tolerance)


def test_a_step_writes_only_the_new_position_of_active_rows(setting: Setting, sources: list[list[int]]) -> None:
    runtime = setting.new_runtime(MAX_ROWS)
    runtime.encode(sources[:MAX_ROWS], 0)
    for _ in range(3):
        runtime.top(MAX_ROWS, 1)
        runtime.positions += 1
    buffers = [
        memory
        for memory in (runtime.pool.self_cache, runtime.pool.cross_cache, runtime.pool.last)
        if memory is not None
    ]
    content = [
        [[memory.read(plane, row) for row in range(MAX_ROWS)] for plane in range(memory.shape[0])] for memory in buffers
    ]
    active = 5
    runtime.top(active, 1)
    padding = range(active, runtime.padded_rows(active))
    for memory, before in zip(buffers, content, strict=True):
        for plane in range(memory.shape[0]):
            for row in set(range(MAX_ROWS)) - set(padding):
                changed = memory.read(plane, row) != before[plane][row]
                if memory is not runtime.pool.self_cache or row >= active:
                    assert not changed.any()
                else:
                    assert changed[:, 3].any(), "the new key or value"
                    changed[:, 3] = False
                    assert not changed.any(), "other positions"


def test_candidates_are_sorted_and_normalized(setting: Setting, sources: list[list[int]]) -> None:
    runtime = setting.new_runtime(MAX_ROWS)
    runtime.encode(sources[:4], 0)
    best_result = runtime.top(4, 1)
    best_ids, best = best_result.ids.copy(), best_result.log_probabilities.copy()
    full = runtime.top(4, runtime.manifest.shape.target_vocabulary)
    ids, log_probabilities = full.ids, full.log_probabilities
    assert np.array_equal(ids[:, :1], best_ids)
    np.testing.assert_allclose(log_probabilities[:, :1], best, atol=1e-5)
    assert (log_probabilities[:, 1:] <= log_probabilities[:, :-1]).all()
    np.testing.assert_allclose(np.exp(log_probabilities.astype(np.float64)).sum(1), 1, atol=1e-3)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_rows_with_all_kinds_of_step_requests(setting: Setting, tiny_run: Path) -> None:
    from dragoman_export.checks.head_inputs import check_head_inputs, expect_head
    from dragoman_export.checks.references import TorchReference

    runtime = setting.new_runtime(MAX_ROWS)
    trained = TorchReference(load_run(tiny_run).model, runtime.manifest.tokens)
    errors = check_head_inputs(runtime, expect_head(runtime.manifest, trained, MAX_ROWS))
    assert errors["log_probabilities"] <= 4 * setting.tolerance
    assert errors["attention"] <= setting.tolerance


def test_rows_fork(setting: Setting, sources: list[list[int]]) -> None:
    """A row that receives another's target and a row that is a full copy both continue as the original does."""
    runtime = setting.new_runtime(MAX_ROWS)
    runtime.encode([sources[0], sources[0]], 0)
    targets = [[4, 5, 6, 7], [4, 5, 8, 9]]
    for tokens in zip(*targets, strict=True):
        runtime.top(2, 1)
        runtime.tokens[:2, 0] = tokens
        runtime.positions[:2] += 1
    runtime.copy_target(0, 1, 3)  # both share the begin token and two more
    runtime.move_row(0, 2)
    runtime.tokens[:3, 0] = targets[0][-1]
    result = runtime.top(3, 5)
    for row in (1, 2):
        assert np.array_equal(result.ids[row], result.ids[0])
        np.testing.assert_allclose(result.log_probabilities[row], result.log_probabilities[0], atol=setting.tolerance)


@pytest.fixture(params=["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def device_and_bundle(
    request: pytest.FixtureRequest, tiny_bundle: Path, tiny_run: Path, tmp_path: Path
) -> tuple[str, Path]:
    if request.param == "cpu":
        return "cpu", tiny_bundle
    try:
        choose_device(request.param, tiny_bundle / "encoder.onnx")
    except DeviceError as error:
        pytest.skip(f"no GPU to test on: {error}")
    from dragoman_export.export import ExportOptions, export_run

    export_run(tiny_run, tmp_path / "fp16", ExportOptions(name="tiny", precision="fp16", device="cuda"))
    return request.param, tmp_path / "fp16"


def test_a_worker_computes_on_its_device(
    device_and_bundle: tuple[str, Path], tiny_server: LocalServer, tmp_path: Path
) -> None:
    device, bundle = device_and_bundle
    arguments = ["--bundle", str(bundle), "--device", device, "--workers", "1"]
    with LocalServer(*arguments, log=tmp_path / "log") as server, Client(server.address) as client:
        with Client(tiny_server.address) as reference:
            for beam_size in (1, 4):
                answers = [client.generate(number, beam_size=beam_size).text for number in NUMBERS]
                assert answers == [reference.generate(number, beam_size=beam_size).text for number in NUMBERS]
        devices = [key for key, value in server.metrics().items() if key.startswith("dragoman_device_info") and value]
        assert len(devices) == 1
        assert f'device="{device}"' in devices[0]
        assert server.stop() == 0


@pytest.mark.gpu
def test_gpu_memory_metrics() -> None:
    pynvml = pytest.importorskip("pynvml", reason="needs nvidia-ml-py, of the extra `server-gpu`")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"needs an NVIDIA GPU: {error}")
    registry = CollectorRegistry()
    registry.register(GpuMetrics())
    total = registry.get_sample_value("dragoman_gpu_memory_bytes", {"gpu": "0"})
    used = registry.get_sample_value("dragoman_gpu_memory_used_bytes", {"gpu": "0"})
    assert total is not None
    assert used is not None
    assert 0 < used < total
    assert total == pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total
