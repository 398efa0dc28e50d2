"""What NVIDIA's driver tells of the GPUs, where there are some and `nvidia-ml-py` is installed; else nothing."""

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

import structlog
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

log = structlog.get_logger()


class GpuMetrics(Collector):
    """The GPUs that this process may see, by their number in the driver's order.

    The driver is asked when Prometheus asks. What a GPU can't tell (a part of one, its utilisation) is left out.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._library: Any = None
        self._tried = False

    def collect(self) -> Iterable[Metric]:
        info = GaugeMetricFamily(
            "dragoman_gpu_info", "A GPU that the server may see", labels=["gpu", "uuid", "name", "driver"]
        )
        families = [
            GaugeMetricFamily(name, text, labels=["gpu"], unit=name.rpartition("_")[2]) for name, text, _ in _FIGURES
        ]
        library = self._load()
        if library is not None:
            driver = _asked(library, library.nvmlSystemGetDriverVersion) or ""
            for index in range(_asked(library, library.nvmlDeviceGetCount) or 0):
                gpu = _asked(library, library.nvmlDeviceGetHandleByIndex, index)
                if gpu is None:
                    continue
                names = (
                    _asked(library, ask, gpu) or "" for ask in (library.nvmlDeviceGetUUID, library.nvmlDeviceGetName)
                )
                info.add_metric([str(index), *map(_text, names), _text(driver)], 1)
                for family, (_, _, figure) in zip(families, _FIGURES, strict=True):
                    if (value := _asked(library, figure, library, gpu)) is not None:
                        family.add_metric([str(index)], value)
        yield from (info, *families)

    def _load(self) -> Any:
        """The driver's library, ready; None where there is none."""
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
                    log.debug("no GPU is told of in the metrics", reason=str(error))
                    return None
                self._library = pynvml
            return self._library


def _memory(kind: str) -> Callable[[Any, Any], float]:
    return lambda library, gpu: float(getattr(library.nvmlDeviceGetMemoryInfo(gpu), kind))


_FIGURES: list[tuple[str, str, Callable[[Any, Any], float]]] = [
    ("dragoman_gpu_memory_bytes", "Memory of a GPU", _memory("total")),
    ("dragoman_gpu_memory_used_bytes", "Memory of a GPU in use, by whichever process", _memory("used")),
    (
        "dragoman_gpu_utilization_ratio",
        "Share of the driver's last sample, at most a second, in which a GPU computed anything",
        lambda library, gpu: library.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    (
        "dragoman_gpu_temperature_celsius",
        "Temperature of a GPU",
        lambda library, gpu: float(library.nvmlDeviceGetTemperature(gpu, library.NVML_TEMPERATURE_GPU)),
    ),
    (
        "dragoman_gpu_power_watts",
        "Power that a GPU draws",
        lambda library, gpu: library.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
]


def _asked(library: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
    """The driver's answer; None where it has none."""
    try:
        return ask(*arguments)
    except library.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
