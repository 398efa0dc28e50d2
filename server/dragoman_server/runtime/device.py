"""Where a model runs, and the ONNX Runtime sessions that run it there."""

from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal

import onnxruntime as ort

from dragoman_server.bundle.manifest import Precision
from dragoman_server.runtime import cuda
from dragoman_server.runtime.device_errors import first_line
from dragoman_server.runtime.precision import unfit_for_cpus, unfit_for_gpus


class DeviceError(Exception):
    """The device asked for can't run the model; the message says why."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that was found to work.

    Attributes:
        kind: "cpu" or "cuda".
        index: which of several.
        fallback: why the CPU is used although a GPU was looked for; None where the CPU was asked for or no GPU exists.
    """

    kind: Literal["cpu", "cuda"]
    index: int = 0
    fallback: str | None = None

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


CPU = Device("cpu")
DEVICE_FILES = Path("/dev")  # where the driver shows GPUs, also in a container that was given some


def open_session(
    path: Path, device: Device, threads: int, stream: cuda.CudaStream | None = None, *, records: bool = False
) -> ort.InferenceSession:
    """A session of one graph on exactly this device.

    Args:
        path: the ONNX file.
        threads: that compute one operator together, the calling thread included.
        stream: of the GPU, to work on; one of its own where there is none.
        records: whether runs can be recorded as CUDA graphs, see server.runtime.fixed.

    Raises:
        DeviceError: ONNX Runtime can't run the graph there. It would rather go on with the CPU; that is never wanted.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised; ONNX Runtime need not print them as well
    # Idle threads that spin would steal the core of the event loop and of other engines.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers: list[Any] = ["CPUExecutionProvider"]
    if device.kind == "cuda":
        # Same-as-requested growth: the cache pool is allocated once, the arena only holds activations.
        settings = {"device_id": str(device.index), "arena_extend_strategy": "kSameAsRequested"}
        if stream is not None:
            settings["user_compute_stream"] = str(stream.handle)
        if records:
            settings["enable_cuda_graph"] = "1"
            options.enable_mem_pattern = False  # a recording has its memory, and nothing may be allocated meanwhile
        providers.insert(0, ("CUDAExecutionProvider", settings))
    try:
        if device.kind == "cuda":
            cuda.enter_thread()
        if linked := _linked_elsewhere(path):
            names, contents = list(linked), list(linked.values())
            options.add_external_initializers_from_files_in_memory(names, contents, [len(each) for each in contents])
        session = ort.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # ONNX Runtime's own exceptions have no common base
        raise DeviceError(f"{path} can't be loaded on {device}: {first_line(error)}") from None
    if device.kind == "cuda" and "CUDAExecutionProvider" not in session.get_providers():
        raise DeviceError(f"{path} can't be loaded on {device}: ONNX Runtime's CUDA provider did not start")
    return session


def choose_device(choice: str, probe: Path, precision: Precision = "fp32") -> Device:
    """Turns "auto" into a device by trying to load a graph, since the list of available providers can't be trusted.

    Args:
        choice: "cpu", "cuda" (the first GPU), "cuda:1" and so on, or "auto", which takes the first GPU where it works,
            and else the CPU with the reason in `fallback`.
        probe: a graph to try.
        precision: of the model.

    Raises:
        DeviceError: a GPU was asked for and does not work, or the precision is not for what there is.
    """
    device = _choose(choice, probe, precision)
    unfit = unfit_for_cpus(precision) if device.kind == "cpu" else None
    if unfit:
        raise DeviceError("; ".join(filter(None, (f"device {choice}: {unfit}", device.fallback))))
    return device


def _choose(choice: str, probe: Path, precision: Precision) -> Device:
    """See `choose_device`; whether a CPU runs the precision is not looked at."""
    if choice == "cpu":
        return CPU
    wanted = choice != "auto"
    gpus = sorted(DEVICE_FILES.glob("nvidia[0-9]*"))
    if unfit := unfit_for_gpus(precision):
        if wanted:
            raise DeviceError(f"device {choice}: {unfit}")
        return Device("cpu", fallback=f"there is {gpus[0]}, but {unfit}") if gpus else CPU
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        lacking = "this ONNX Runtime has no CUDA provider; `pip install '.[server-gpu]'` brings one"
        if wanted:
            raise DeviceError(f"device {choice}: {lacking}")
        return Device("cpu", fallback=f"there is {gpus[0]}, but {lacking}") if gpus else CPU
    ort.preload_dlls()  # CUDA and cuDNN from their Python packages
    cuda = Device("cuda", int(choice.partition(":")[2] or 0))
    try:
        open_session(probe, cuda, 1)
    except DeviceError as error:
        if wanted:
            raise
        return Device("cpu", fallback=str(error))
    return cuda


def _linked_elsewhere(graph: Path) -> dict[str, mmap]:
    """Files beside a graph that lie in another directory than it does once links are followed, as in blob stores.

    ONNX Runtime reads a graph's weights from the graph's own directory only, but takes the contents of such files.
    """
    home = graph.resolve().parent
    linked = {}
    for file in graph.parent.iterdir():
        if file.is_file() and file.stat().st_size and not file.resolve().is_relative_to(home):
            with file.open("rb") as opened:
                linked[file.name] = mmap(opened.fileno(), 0, access=ACCESS_READ)
    return linked
