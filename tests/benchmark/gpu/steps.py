"""Times of decode steps on a device, and the time that reading their data alone would take."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import onnx
import torch

from dragoman_server.bundle.load import Bundle
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.runtime.cuda import CudaStream
from dragoman_server.runtime.device import Device
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions

COPIED = 1 << 28  # bytes
REPLAYS = 50  # back to back


@dataclass(frozen=True)
class Load:
    """What to decode.

    Attributes:
        source: Source tokens of each row.
        steps: Steps of each row, from the begin token on.
        rounds: Number of samples for the median, without the warm-up.
    """

    source: int
    steps: int
    rounds: int


@dataclass(frozen=True)
class StepTime:
    """Times of a step, in seconds.

    Attributes:
        rows: Rows of the step.
        seconds: Time of a step as in the engine, with CUDA graphs on a GPU.
        unrecorded: Time without CUDA graphs; None on a CPU.
        busy: Time per step of the device alone, for steps launched back to back; None on a CPU.
        floor: Time to read weights and cache at the bandwidth of a copy.
    """

    rows: int
    seconds: float
    unrecorded: float | None
    busy: float | None
    floor: float


def copy_bandwidth(device: Device) -> float:
    """Returns the bytes per second that a copy within the device's memory reads and writes."""
    where = str(device)
    source, target = (torch.zeros(COPIED, dtype=torch.uint8, device=where) for _ in range(2))

    def copy() -> None:
        target.copy_(source)
        if device.kind == "cuda":
            torch.cuda.synchronize()

    return 2 * COPIED / median_seconds(copy, 7)


def step_times(bundle: Bundle, device: Device, counts: Sequence[int], load: Load, bandwidth: float) -> list[StepTime]:
    """Returns the times of steps with each of `counts` rows, all in use."""
    recorded = Runtime(Sessions(bundle, device, 1), max(counts))
    unrecorded = None if device.kind == "cpu" else Runtime(Sessions(bundle, device, 1, max_cuda_graphs=0), max(counts))
    weights = weight_bytes(bundle)
    times = []
    for rows in counts:
        seconds = decode(recorded, rows, load)
        cache = rows * cache_bytes(bundle.manifest, load, recorded.pool.self_cache.dtype.itemsize)
        times.append(
            StepTime(
                rows,
                seconds,
                None if unrecorded is None else decode(unrecorded, rows, load),
                None if unrecorded is None else busy_seconds(recorded, rows),
                (weights + cache) / bandwidth,
            )
        )
    return times


def decode(runtime: Runtime, rows: int, load: Load) -> float:
    """Returns the median over rounds of the mean time of a step, with greedy tokens fed back."""
    rng = np.random.default_rng(0)
    sources = rng.integers(4, runtime.manifest.shape.source_vocabulary, (rows, load.source)).tolist()

    def steps() -> None:
        runtime.positions[:rows] = 0
        runtime.tokens[:rows] = runtime.manifest.tokens.begin
        for _ in range(load.steps):
            runtime.tokens[:rows] = runtime.top(rows, 1).ids
            runtime.positions[:rows] += 1

    runtime.encode(sources, 0)
    return median_seconds(steps, load.rounds) / load.steps


def busy_seconds(runtime: Runtime, rows: int) -> float:
    """Returns the time of a step while the next is queued: the only launch gaps are those within a CUDA graph."""
    assert runtime.cuda_graphs is not None
    stream = runtime.cuda_graphs.stream
    assert isinstance(stream, CudaStream)
    again = runtime.cuda_graphs.launcher(rows, 1)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    on = torch.cuda.ExternalStream(stream.handle)  # type: ignore[no-untyped-call]
    again()
    stream.synchronize()
    start.record(on)
    for _ in range(REPLAYS):
        again()
    end.record(on)
    stream.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / REPLAYS


def weight_bytes(bundle: Bundle) -> int:
    """Returns the bytes of weights that a step reads in full: all of the decoder but embedding tables."""
    graph = onnx.load(bundle.decoder, load_external_data=False).graph
    looked_up = {node.input[0] for node in graph.node if node.op_type == "Gather"}
    read = {name for node in graph.node for name in node.input if node.op_type != "Gather"}
    return sum(
        int(np.prod(tensor.dims)) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        for tensor in graph.initializer
        if tensor.name in read or tensor.name not in looked_up
    )


def cache_bytes(manifest: Manifest, load: Load, itemsize: int) -> int:
    """Returns the cache bytes of one row that an average step reads: source and target keys and values."""
    shape = manifest.shape
    positions = load.source + (load.steps + 1) / 2
    return int(2 * shape.decoder_layers * shape.heads * shape.d_head * positions * itemsize)


def median_seconds(work: Callable[[], None], rounds: int) -> float:
    """Returns the median seconds, without the first run."""
    work()
    samples = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        samples.append(time.perf_counter() - started)
    return median(samples)
