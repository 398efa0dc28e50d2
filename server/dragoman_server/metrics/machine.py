"""Metrics of the machine: available memory and, if `nvidia-ml-py` is installed, NVIDIA GPUs."""

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman_server.machine import free_memory

log = structlog.get_logger()


class MemoryMetrics(Collector):
    """The memory available to the process, read at each scrape."""

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "dragoman_memory_available_bytes",
            "Memory available to the server under the container's limit, or on the machine if there is none",
            value=free_memory()[0],
            unit="bytes",
        )


class GpuMetrics(Collector):
    """The GPUs that this process may see, numbered in the driver's order.

    Each scrape queries the driver. Values that a GPU does not report, such as the utilization of a MIG slice, are left
    out.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._library: Any = None
        self._tried = False

    def collect(self) -> Iterable[Metric]:
        info = GaugeMetricFamily(
            "dragoman_gpu_info", "A GPU visible to the server", labels=["gpu", "uuid", "name", "driver"]
        )
        families = [
            GaugeMetricFamily(name, text, labels=["gpu"], unit=name.rpartition("_")[2]) for name, text, _ in _GAUGES
        ]
        library = self._load()
        if library is not None:
            driver = _query(library, library.nvmlSystemGetDriverVersion) or ""
            for index in range(_query(library, library.nvmlDeviceGetCount) or 0):
                gpu = _query(library, library.nvmlDeviceGetHandleByIndex, index)
                if gpu is None:
                    continue
                uuid, name = (
                    _query(library, get, gpu) or "" for get in (library.nvmlDeviceGetUUID, library.nvmlDeviceGetName)
                )
                info.add_metric([str(index), _text(uuid), _text(name), _text(driver)], 1)
                for family, (_, _, get_value) in zip(families, _GAUGES, strict=True):
                    if (value := _query(library, get_value, library, gpu)) is not None:
                        family.add_metric([str(index)], value)
        yield from (info, *families)

    def _load(self) -> Any:
        """Returns the driver's library, initialized; None if there is no driver or GPU."""
        with self._lock:
            if not self._tried:
                self._tried = True
                try:
                    import pynvml
                except ImportError:
                    return None
                try:
                    pynvml.nvmlInit()
                except pynvml.NVMLError as error:
                    log.debug("no GPU metrics", reason=str(error))
                    return None
                self._library = pynvml
            return self._library


def _memory(kind: str) -> Callable[[Any, Any], float]:
    return lambda library, gpu: float(getattr(library.nvmlDeviceGetMemoryInfo(gpu), kind))


_GAUGES: list[tuple[str, str, Callable[[Any, Any], float]]] = [
    ("dragoman_gpu_memory_bytes", "GPU memory", _memory("total")),
    ("dragoman_gpu_memory_used_bytes", "GPU memory in use by all processes", _memory("used")),
    (
        "dragoman_gpu_utilization_ratio",
        "Share of the driver's last sample period, at most a second, during which the GPU was busy",
        lambda library, gpu: library.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    (
        "dragoman_gpu_temperature_celsius",
        "GPU temperature",
        lambda library, gpu: float(library.nvmlDeviceGetTemperature(gpu, library.NVML_TEMPERATURE_GPU)),
    ),
    (
        "dragoman_gpu_power_watts",
        "GPU power draw",
        lambda library, gpu: library.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
]


def _query(library: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the driver; returns None if it reports an error."""
    try:
        return function(*arguments)
    except library.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
