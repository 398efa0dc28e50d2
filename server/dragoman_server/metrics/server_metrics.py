"""All of the server's metrics together."""

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
from dragoman_server.metrics.gpus import GpuMetrics
from dragoman_server.metrics.machine_memory import MemoryMetrics
from dragoman_server.metrics.model_counts import ModelMetrics
from dragoman_server.metrics.model_families import MODEL_FAMILIES
from dragoman_server.metrics.workers import RestartReason, WorkerMetrics


@dataclass(frozen=True, slots=True)
class Load:
    """How a version of a model was loaded, and where."""

    seconds: float
    device: str
    precision: str
    fallback: bool


class ServerMetrics(Collector):
    """All of the server's metrics.

    Attributes:
        registry: what an HTTP endpoint exposes.
        calls: of every method.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = CallMetrics()
        self._workers = WorkerMetrics()
        self._models: dict[tuple[str, str], ModelMetrics] = {}  # by name and version
        self._loads: dict[tuple[str, str], Load] = {}
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
        """Where the engines of a version of a model report to."""
        return self._models.setdefault((name, version), ModelMetrics())

    def models(self) -> dict[tuple[str, str], ModelMetrics]:
        """What is reported of each version of a model, by name and version, at this moment."""
        return self._models.copy()

    def loads(self) -> dict[tuple[str, str], Load]:
        """The versions that are ready."""
        return self._loads.copy()

    def show(self, name: str, version: str, metrics: ModelMetrics) -> None:
        """Exposes what is reported there, in place of any that the version had before."""
        self._models[name, version] = metrics

    def loaded(
        self, name: str, seconds: float, device: str, precision: str, fallback: bool, version: str = "1"
    ) -> None:
        """A version of a model is ready."""
        self._loads[name, version] = Load(seconds, device, precision, fallback)

    def load_failed(self, name: str) -> None:
        """A version of a model could not be loaded."""
        self._load_failures[name] = self._load_failures.get(name, 0) + 1

    def refused(self, name: str, versions: int) -> None:
        """So many versions of a model should be served, and can't be loaded as they are now."""
        self._refused[name] = versions

    def unloaded(self, name: str, version: str, metrics: ModelMetrics) -> None:
        """A version is gone, and with it all that was said of it, unless it has been loaded anew meanwhile."""
        if self._models.get((name, version)) is metrics:
            del self._models[name, version]
            self._loads.pop((name, version), None)

    def forget(self, name: str) -> None:
        """There is no such model any more."""
        self._load_failures.pop(name, None)
        self._refused.pop(name, None)

    def rejected(self, reason: Rejection) -> None:
        """A request, or an item of a batch, was refused. For the event loop alone."""
        self.calls.rejections[reason] += 1

    def worker_up(self, worker: str, up: bool, process: int | None = None) -> None:
        """A worker process runs, or does not. For use from any thread.

        Args:
            process: its id, where its memory and its time shall be told of.
        """
        self._workers.up(worker, up, process)

    def worker_restarted(self, worker: str, reason: RestartReason) -> None:
        """A worker process was started anew. For use from any thread."""
        self._workers.restarted(worker, reason)

    def load(self) -> tuple[int, int]:
        """Requests in the queues of all models, and rows in use in their engines' caches."""
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
            "From the start of a model's loading until it could answer",
            labels=model,
            unit="seconds",
        )
        fallback = GaugeMetricFamily(
            "dragoman_device_fallback",
            "1 where a GPU was found but does not work, so that the model runs on the CPU",
            labels=model,
        )
        device = GaugeMetricFamily(
            "dragoman_device_info", "Where a model runs, and in which precision", labels=[*model, "device", "precision"]
        )
        for labels, load in list(self._loads.items()):
            seconds.add_metric(labels, load.seconds)
            fallback.add_metric(labels, load.fallback)
            device.add_metric([*labels, load.device, load.precision], 1)
        failures = CounterMetricFamily(
            "dragoman_model_load_failures", "Versions of a model that could not be loaded", labels=["model"]
        )
        for name, count in list(self._load_failures.items()):
            failures.add_metric([name], count)
        refused = GaugeMetricFamily(
            "dragoman_model_refused",
            "Versions of a model that should be served and could not be loaded as they are now",
            labels=["model"],
        )
        for name, count in list(self._refused.items()):
            refused.add_metric([name], count)
        yield from (seconds, fallback, device, failures, refused)
