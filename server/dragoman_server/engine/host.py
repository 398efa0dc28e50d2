"""Hosts: where a model's graphs can be loaded, this process or a worker process."""

from collections.abc import Callable
from typing import Protocol

from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.config.devices import split_devices
from dragoman_server.engine.engine import StepRuntime
from dragoman_server.engine.engine_options import EngineOptions, choose_engines, weight_bytes
from dragoman_server.engine.scorer import ScorerRuntime
from dragoman_server.runtime import huge_pages
from dragoman_server.runtime.device import Device, DeviceError, choose_device, first_line, is_out_of_memory
from dragoman_server.runtime.device_memory import DeviceMemory, device_memory
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.scorer_session import ScorerSession
from dragoman_server.runtime.sessions import Sessions


class LoadedModel(Protocol):
    """A model that is loaded on a host.

    Attributes:
        device: Device on which the graphs run.
        engines: Number of engines that should run there.
        threads: Threads of each engine.
        itemsize: Bytes of a number that the graphs compute with.
    """

    device: Device
    engines: int
    threads: int
    itemsize: int

    def memory(self) -> DeviceMemory:
        """Returns the memory of the device now."""

    def runtime(self, index: int, rows: int) -> StepRuntime:
        """Returns a runtime for an engine, after a first run.

        Raises:
            BundleError: The graphs do not match the manifest.
            DeviceError: The cache pool does not fit.
        """

    def scorer(self) -> ScorerRuntime:
        """Returns a runtime of the scorer graph.

        Raises:
            BundleError, DeviceError: The graph can't be loaded.
        """

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Registers what to call, in any thread and perhaps at once, when the model is gone with its worker."""

    def close(self) -> None:
        """Releases the model; its runtimes are not used any more."""


class Host(Protocol):
    """A process that can load models: this one, or a worker process.

    Attributes:
        name: Name in logs.
        restartable: Whether the host can load a model again after a failure that lost it.
    """

    name: str
    restartable: bool

    def load(self, bundle: Bundle, options: EngineOptions) -> LoadedModel:
        """Loads a bundle's graphs.

        Raises:
            BundleError: The graphs do not match the manifest.
            DeviceError: The device can't run them.
            WorkerLostError: The worker has ended.
        """

    @property
    def ready(self) -> bool:
        """Whether models can be loaded there now.

        Raises:
            WorkerLostError: They can't, and that will not change.
        """

    def restart(self) -> None:
        """Restarts the process, where possible, since its device only raises errors."""

    def close(self) -> None:
        """Ends the process, if it is a worker."""


class LocalModel:
    """A model loaded in this process.

    Raises:
        BundleError, DeviceError: See Host.load.
    """

    def __init__(self, bundle: Bundle, options: EngineOptions) -> None:
        self.device = choose_device(options.device, bundle.decoder, bundle.manifest.precision)
        self.engines, self.threads = choose_engines(options, self.device, weight_bytes(bundle.manifest))
        self._bundle = bundle
        # Engines whose operators use one thread can share sessions on a CPU; see Sessions for a GPU.
        count = 1 if self.threads == 1 and self.device.kind == "cpu" else self.engines
        graphs = options.cuda_graphs
        before = huge_pages.ranges()
        self._sessions = [Sessions(bundle, self.device, self.threads, max_cuda_graphs=graphs) for _ in range(count)]
        self.itemsize = self._sessions[0].compute_dtype.itemsize
        if self.device.kind == "cpu":
            huge_pages.move_soon(but=before)

    def memory(self) -> DeviceMemory:
        return device_memory(self.device)

    def runtime(self, index: int, rows: int) -> Runtime:
        try:
            runtime = Runtime(self._sessions[index % len(self._sessions)], rows)
            runtime.warm_up()
        except Exception as error:  # ONNX Runtime raises many types if shapes disagree
            if is_out_of_memory(error):
                reason = f"{self.device} ran out of memory at the first run of an engine with {rows} cache rows"
                raise DeviceError(f"{reason}; lower --max-rows, or give it more memory") from None
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise BundleError(f"{self._bundle.path}: the graphs do not run as the manifest says: {reason}") from None
        return runtime

    def scorer(self) -> ScorerSession:
        return ScorerSession(self._bundle, self.device, self.threads)

    def on_lost(self, callback: Callable[[], None]) -> None: ...

    def close(self) -> None:
        self._sessions.clear()


class LocalHost:
    """This process. It can't restart, so a device that fails ends it."""

    name, restartable, ready = "this process", False, True

    def load(self, bundle: Bundle, options: EngineOptions) -> LocalModel:
        if len(split_devices(options.device)) > 1:
            raise DeviceError(f"device {options.device}: a model can't have several of its own; name them in --device")
        return LocalModel(bundle, options)

    def restart(self) -> None: ...

    def close(self) -> None: ...
