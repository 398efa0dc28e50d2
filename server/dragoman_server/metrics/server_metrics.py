"""All metrics of the server."""

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version

import onnxruntime
from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dragoman_server.core.errors import Rejection
from dragoman_server.metrics.calls import CallMetrics
from dragoman_server.metrics.machine import GpuMetrics, MemoryMetrics
from dragoman_server.metrics.model_counts import ModelMetrics
from dragoman_server.metrics.model_families import MODEL_FAMILIES
from dragoman_server.metrics.workers import RestartReason, WorkerMetrics


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """How a version of a model was loaded.

    Attributes:
        seconds: Loading time.
        fallback: Whether it runs on the CPU because a GPU does not work.
    """

    seconds: float
    device: str
    precision: str
    fallback: bool


class ServerMetrics(Collector):
    """All metrics of the server.

    Attributes:
        registry: The registry that /metrics exposes.
        calls: Counts of calls.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = CallMetrics()
        self._workers = WorkerMetrics()
        self._models: dict[tuple[str, str], ModelMetrics] = {}  # by name and version
        self._loads: dict[tuple[str, str], ModelLoad] = {}
        self._load_failures: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        build = Gauge(
            "dragoman_build_info",
            "Versions of the server, of ONNX Runtime and of Python",
            ["version", "onnxruntime", "python"],
            registry=self.registry,
        )
        build.labels(version("dragoman"), onnxruntime.__version__, platform.python_version()).set(1)
        self.registry.register(self)
        self.registry.register(MemoryMetrics())
        self.registry.register(GpuMetrics())
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def model(self, name: str, version: str = "1") -> ModelMetrics:
        """Returns the counts of a version, creating them if needed."""
        return self._models.setdefault((name, version), ModelMetrics())

    def models(self) -> dict[tuple[str, str], ModelMetrics]:
        """Returns the counts of all loaded versions, by name and version."""
        return self._models.copy()

    def loads(self) -> dict[tuple[str, str], ModelLoad]:
        """Returns how each version that is ready was loaded, by name and version."""
        return self._loads.copy()

    def show(self, name: str, version: str, metrics: ModelMetrics) -> None:
        """Exposes the counts of a version; they replace its previous ones."""
        self._models[name, version] = metrics

    def loaded(self, name: str, version: str, load: ModelLoad) -> None:
        """Records that a version is ready."""
        self._loads[name, version] = load

    def load_failed(self, name: str) -> None:
        """Counts a failed load of a version."""
        self._load_failures[name] = self._load_failures.get(name, 0) + 1

    def refused(self, name: str, versions: int) -> None:
        """Sets how many versions should be served but can't be loaded as they are now."""
        self._refused[name] = versions

    def unloaded(self, name: str, version: str, metrics: ModelMetrics) -> None:
        """Removes the metrics of a version, unless it has been reloaded meanwhile."""
        if self._models.get((name, version)) is metrics:
            del self._models[name, version]
            self._loads.pop((name, version), None)

    def forget(self, name: str) -> None:
        """Removes the counts of a model that no longer exists."""
        self._load_failures.pop(name, None)
        self._refused.pop(name, None)

    def rejected(self, reason: Rejection) -> None:
        """Counts a refused request or batch item. For the event loop only."""
        self.calls.rejections[reason] += 1

    def worker_up(self, worker: str, up: bool, process: int | None = None) -> None:
        """Records whether a worker process runs. Thread-safe.

        Args:
            process: The process id, for its memory and CPU time; None to leave them out.
        """
        self._workers.up(worker, up, process)

    def worker_restarted(self, worker: str, reason: RestartReason) -> None:
        """Counts a restart of a worker process. Thread-safe."""
        self._workers.restarted(worker, reason)

    def load(self) -> tuple[int, int]:
        """Returns the requests that wait and the cache rows in use, of all models."""
        models = self.models().values()
        running = sum(rows for model in models for rows, _ in list(model.engines.values()))
        return sum(model.waits()[0] for model in models), running

    def collect(self) -> Iterable[Metric]:
        yield from self.calls.collect()
        yield from self._workers.collect()
        yield from self._collect_loads()
        for model_family in MODEL_FAMILIES:
            yield model_family(self._models)

    def _collect_loads(self) -> Iterable[Metric]:
        model = ["model", "version"]
        seconds = GaugeMetricFamily(
            "dragoman_model_load_seconds",
            "Time to load a model, until it could serve requests",
            labels=model,
            unit="seconds",
        )
        fallback = GaugeMetricFamily(
            "dragoman_device_fallback",
            "1 if a GPU was found but does not work, so that the model runs on the CPU",
            labels=model,
        )
        device = GaugeMetricFamily(
            "dragoman_device_info", "Device and precision of a model", labels=[*model, "device", "precision"]
        )
        for labels, load in list(self._loads.items()):
            seconds.add_metric(labels, load.seconds)
            fallback.add_metric(labels, load.fallback)
            device.add_metric([*labels, load.device, load.precision], 1)
        failures = CounterMetricFamily(
            "dragoman_model_load_failures", "Failed attempts to load a version of a model", labels=["model"]
        )
        for name, count in list(self._load_failures.items()):
            failures.add_metric([name], count)
        refused = GaugeMetricFamily(
            "dragoman_model_refused",
            "Versions of a model that should be served but can't be loaded as they are now",
            labels=["model"],
        )
        for name, count in list(self._refused.items()):
            refused.add_metric([name], count)
        yield from (seconds, fallback, device, failures, refused)
