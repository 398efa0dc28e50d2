"""A model's graphs on a device, and what is made of them there."""

from collections.abc import Callable
from typing import Protocol

from dragoman_server.bundle.load import Bundle, BundleError
from dragoman_server.config.devices import split_devices
from dragoman_server.engine.engine import StepRuntime
from dragoman_server.engine.layout import EngineOptions, layout, weights_of
from dragoman_server.engine.scorer import ScoringRuntime
from dragoman_server.runtime.device import Device, DeviceError, choose_device, first_line, is_out_of_memory
from dragoman_server.runtime.device_memory import device_memory
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.scorer_session import ScorerSession
from dragoman_server.runtime.sessions import Sessions


class CachedRuntime(StepRuntime, Protocol):
    """A runtime that tells how large its cache is."""

    @property
    def cache_bytes(self) -> int: ...


class HostedModel(Protocol):
    """A model that is loaded somewhere.

    Attributes:
        device: where.
        engines: that it shall have there.
        threads: of each.
        itemsize: bytes of a number that the graphs compute with.
    """

    device: Device
    engines: int
    threads: int
    itemsize: int

    def memory(self) -> tuple[int, str, int]:
        """See device_memory."""

    def runtime(self, index: int, rows: int) -> CachedRuntime:
        """A runtime that has run, for an engine.

        Raises:
            BundleError: the graphs are not what the manifest says.
            DeviceError: the caches do not fit.
        """

    def scorer(self) -> ScoringRuntime:
        """What scores targets.

        Raises:
            BundleError, DeviceError: it can't be loaded.
        """

    def watch(self, lost: Callable[[], None]) -> None:
        """Has `lost` called, in any thread, when it is gone with the worker that it was loaded in; perhaps at once."""

    def close(self) -> None:
        """Lets go of what it holds; its runtimes are not used any more."""


class Host(Protocol):
    """Where models can be loaded: this process, or a worker process.

    Attributes:
        name: in logs.
        revives: what it ran is gone after a failure, but can be loaded there anew.
    """

    name: str
    revives: bool

    def load(self, bundle: Bundle, options: EngineOptions) -> HostedModel:
        """Loads a bundle's graphs.

        Raises:
            BundleError: the graphs are not what the manifest says.
            DeviceError: the device can't run them.
            WorkerLostError: the worker has ended meanwhile.
        """

    @property
    def ready(self) -> bool:
        """Whether models can be loaded there now.

        Raises:
            WorkerLostError: they can't, and that will not change.
        """

    def broken(self) -> None:
        """It makes nothing but errors."""

    def close(self) -> None:
        """It is not used any more."""


class LocalModel:
    """A model in this process.

    Raises:
        BundleError, DeviceError: see Host.load.
    """

    def __init__(self, bundle: Bundle, options: EngineOptions) -> None:
        self.device = choose_device(options.device, bundle.decoder, bundle.manifest.precision)
        self.engines, self.threads = layout(options, self.device, weights_of(bundle.manifest))
        self._bundle = bundle
        # One is enough for engines whose operators use one thread, but see Sessions for a GPU.
        count = 1 if self.threads == 1 and self.device.kind == "cpu" else self.engines
        graphs = options.cuda_graphs
        self._sessions = [Sessions(bundle, self.device, self.threads, max_cuda_graphs=graphs) for _ in range(count)]
        self.itemsize = self._sessions[0].compute_dtype.itemsize

    def memory(self) -> tuple[int, str, int]:
        return device_memory(self.device)

    def runtime(self, index: int, rows: int) -> Runtime:
        try:
            runtime = Runtime(self._sessions[index % len(self._sessions)], rows)
            runtime.warm_up()
        except Exception as error:  # whatever ONNX Runtime raises where shapes disagree
            if is_out_of_memory(error):
                reason = f"{self.device} ran out of memory at the first run of an engine with {rows} cache rows"
                raise DeviceError(f"{reason}; lower --max-rows, or give it more memory") from None
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise BundleError(f"{self._bundle.path}: the graphs do not run as the manifest says: {reason}") from None
        return runtime

    def scorer(self) -> ScorerSession:
        return ScorerSession(self._bundle, self.device, self.threads)

    def watch(self, lost: Callable[[], None]) -> None: ...

    def close(self) -> None:
        self._sessions.clear()


class LocalHost:
    """This process. It can't be started anew, so a device that fails ends it."""

    name, revives, ready = "this process", False, True

    def load(self, bundle: Bundle, options: EngineOptions) -> LocalModel:
        if len(split_devices(options.device)) > 1:
            raise DeviceError(f"device {options.device}: a model can't have several of its own; name them in --device")
        return LocalModel(bundle, options)

    def broken(self) -> None: ...

    def close(self) -> None: ...
