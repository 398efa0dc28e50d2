"""Devices: which one a model runs on, the sessions opened there, and what goes wrong on it."""

from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal

import onnxruntime as ort

from dragoman_server.bundle.manifest import INTEGERS, Precision
from dragoman_server.runtime import cuda

# Phrases of ONNX Runtime, CUDA, cuBLAS and the C++ library, in lower case.
_OUT_OF_MEMORY = ("failed to allocate memory", "out of memory", "bad_alloc", "alloc_failed", "available memory of")


class DeviceError(Exception):
    """The requested device can't run the model; the message says why."""


class WorkerLostError(Exception):
    """The process that hosts a model has ended; the message says why."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether a smaller run might have succeeded; ONNX Runtime has no exception of its own for that."""
    if isinstance(error, MemoryError):
        return True
    # Runs with bound buffers raise a plain RuntimeError.
    from_runtime = type(error) is RuntimeError or type(error).__module__.startswith("onnxruntime")
    return from_runtime and any(phrase in str(error).lower() for phrase in _OUT_OF_MEMORY)


def first_line(error: BaseException) -> str:
    """Returns the first line of an exception's message, or its type if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True, slots=True)
class Device:
    """A device that works.

    Attributes:
        kind: "cpu" or "cuda".
        index: Number of the GPU.
        fallback: Why "auto" chose the CPU although there is a GPU; None otherwise.
    """

    kind: Literal["cpu", "cuda"]
    index: int = 0
    fallback: str | None = None

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


CPU = Device("cpu")
DEVICE_FILES = Path("/dev")  # where the driver lists GPUs, also in a container that has some


def open_session(
    path: Path, device: Device, threads: int, stream: cuda.CudaStream | None = None, *, cuda_graphs: bool = False
) -> ort.InferenceSession:
    """Opens a session of one graph on exactly this device.

    Args:
        path: The ONNX file.
        threads: Threads that compute one operator together, the calling thread included.
        stream: The CUDA stream to work on; None for a stream of the session's own.
        cuda_graphs: Whether runs can be captured as CUDA graphs, see `CudaGraphStep`.

    Raises:
        DeviceError: ONNX Runtime can't run the graph on the device. Its own fallback to the CPU is never wanted.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, so don't print them as well
    # Idle threads that spin would take the core of the event loop and of other engines.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.kind == "cuda":
        # Grow by what is requested: the cache pool is allocated once, the arena only holds activations.
        settings = {"device_id": str(device.index), "arena_extend_strategy": "kSameAsRequested"}
        if stream is not None:
            settings["user_compute_stream"] = str(stream.handle)
        if cuda_graphs:
            settings["enable_cuda_graph"] = "1"
            options.enable_mem_pattern = False  # a graph keeps its memory, and capture forbids allocation
        providers.insert(0, ("CUDAExecutionProvider", settings))
    try:
        if device.kind == "cuda":
            cuda.enter_thread()
        if linked := _linked_elsewhere(path):
            names, contents = list(linked), list(linked.values())
            options.add_external_initializers_from_files_in_memory(names, contents, list(map(len, contents)))
        session = ort.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime's exceptions have no common base
        raise DeviceError(f"{path} can't be loaded on {device}: {first_line(error)}") from None
    if device.kind == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise DeviceError(f"{path} can't be loaded on {device}: ONNX Runtime's CUDA provider did not start")
    return session


def choose_device(choice: str, probe: Path, precision: Precision = "fp32") -> Device:
    """Turns a --device option into a device that works.

    "auto" tries to load a graph, since ONNX Runtime's list of available providers includes those that fail to load.

    Args:
        choice: "cpu", "cuda" (the first GPU), "cuda:1" and so on, or "auto": the first GPU if it works, else the CPU
            with the reason in `fallback`.
        probe: The graph to load.
        precision: The precision of the model.

    Raises:
        DeviceError: The requested GPU does not work, or the device can't run the precision.
    """
    device = _choose(choice, probe, precision)
    reason = unfit_for_cpus(precision) if device.kind == "cpu" else None
    if reason:
        raise DeviceError("; ".join(filter(None, (f"device {choice}: {reason}", device.fallback))))
    return device


def _choose(choice: str, probe: Path, precision: Precision) -> Device:
    """Chooses a device without checking whether a CPU runs the precision."""
    if choice == "cpu":
        return CPU
    gpus = sorted(DEVICE_FILES.glob("nvidia[0-9]*"))
    reason = unfit_for_gpus(precision)
    if reason is None and "CUDAExecutionProvider" not in ort.get_available_providers():
        reason = "this ONNX Runtime has no CUDA provider; `pip install '.[server-gpu]'` brings one"
    if reason:
        if choice != "auto":
            raise DeviceError(f"device {choice}: {reason}")
        return Device("cpu", fallback=f"there is {gpus[0]}, but {reason}") if gpus else CPU
    ort.preload_dlls()  # CUDA and cuDNN from their Python packages
    gpu = Device("cuda", int(choice.partition(":")[2] or 0))
    try:
        open_session(probe, gpu, 1)
    except DeviceError as error:
        if choice != "auto":
            raise
        return Device("cpu", fallback=str(error))
    return gpu


def unfit_for_gpus(precision: Precision) -> str | None:
    """Returns why GPUs can't run a precision, as a clause; None if they can."""
    if precision in INTEGERS:
        return f"the model is {precision}, which is for CPUs; dragoman-export --precision fp16 makes one for GPUs"
    return None


def unfit_for_cpus(precision: Precision) -> str | None:
    """Returns why CPUs can't run a precision, as a clause; None if they can."""
    if precision == "bf16":
        return "the model is bf16, which is for GPUs; dragoman-export --precision int8 makes one for CPUs"
    return None


def precision_warning(precision: Precision, kind: Literal["cpu", "cuda"]) -> str | None:
    """Returns why a precision is slow on a device that can run it; None if it is not."""
    if kind == "cpu" and precision == "fp16":
        return "the model is fp16, which a CPU computes in fp32 after converting it; int8 or fp32 is faster there"
    return None


def _linked_elsewhere(graph: Path) -> dict[str, mmap]:
    """Returns the files beside a graph whose links lead out of the graph's real directory, as in blob stores.

    ONNX Runtime reads external weights only from the graph's own directory, but accepts the contents of such files.
    """
    home = graph.resolve().parent
    linked = {}
    for file in graph.parent.iterdir():
        if file.is_file() and file.stat().st_size and not file.resolve().is_relative_to(home):
            with file.open("rb") as opened:
                linked[file.name] = mmap(opened.fileno(), 0, access=ACCESS_READ)
    return linked
