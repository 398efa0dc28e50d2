"""What Prometheus sees. Every label comes from a closed set: nothing that a client sends becomes one.

What is counted at every step or call is plain Python data, behind one lock for each model: that costs a microsecond or
two. It is put into words when Prometheus asks.
"""

import platform
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from threading import Lock

import onnxruntime
from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from server.api.errors import Rejection
from server.engine.metrics import DropReason, Phase
from server.engine.requests import FinishReason

Labels = tuple[str, ...]


def geometric(first: float, last: float, count: int) -> list[float]:
    """`count` bucket bounds from `first` to `last`, each the same factor above the one before, to two digits."""
    factor = (last / first) ** (1 / (count - 1))
    return [float(f"{first * factor**i:.2g}") for i in range(count)]


STEP_SECONDS = geometric(0.0002, 2, 16)  # factor 1.85
REQUEST_SECONDS = geometric(0.001, 60, 20)  # factor 1.78
ROWS = [float(2**i) for i in range(10)]  # 1 to 512
TOKENS = [float(2**i) for i in range(14)]  # 1 to 8192


class Histogram:
    """Counts by bucket. Unlike prometheus_client's it takes many equal values at once. Its owner sees to threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def write(self, family: HistogramMetricFamily, labels: Labels) -> None:
        """Adds what was observed so far to a family, as cumulative counts."""
        counts, total, buckets = list(self.counts), 0, []
        for bound, count in zip([*self.bounds, float("inf")], counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
        family.add_metric(labels, buckets, self.sum)


class ModelMetrics:
    """What engines (server.engine.metrics.EngineMetrics) and scorer of one model report; for use from any thread."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.encode_seconds = Histogram(STEP_SECONDS)
        self.encode_rows = Histogram(ROWS)
        self.step_seconds = Histogram(STEP_SECONDS)
        self.step_rows = Histogram(ROWS)
        self.inter_token_seconds = Histogram(STEP_SECONDS)
        self.queue_seconds = Histogram(REQUEST_SECONDS)
        self.first_token_seconds = Histogram(REQUEST_SECONDS)
        self.generation_seconds = Histogram(REQUEST_SECONDS)
        self.source_length = Histogram(TOKENS)
        self.target_length = Histogram(TOKENS)
        self.score_seconds = Histogram(STEP_SECONDS)
        self.score_rows = Histogram(ROWS)
        self.scored_tokens = 0
        self.branch_seconds = 0.0
        self.branch_rows = 0
        self.encoded_tokens = 0
        self.padding_tokens = 0
        self.finishes = dict.fromkeys(FinishReason, 0)
        self.drops: dict[tuple[DropReason, Phase], int] = {
            (reason, phase): 0 for reason in ("expired", "cancelled", "failed") for phase in ("waiting", "running")
        }
        self.waits: Callable[[], tuple[int, int]] = lambda: (0, 0)  # requests, and their source tokens
        self.engines: dict[int, tuple[int, int]] = {}  # rows running, rows there are
        self.cache_bytes: dict[int, int] = {}

    def encoded(self, seconds: float, rows: int, source_tokens: int, padding_tokens: int) -> None:
        with self.lock:
            self.encode_seconds.observe(seconds)
            self.encode_rows.observe(rows)
            self.encoded_tokens += source_tokens
            self.padding_tokens += padding_tokens

    def stepped(self, seconds: float, rows: int, gap_seconds: float | None) -> None:
        with self.lock:
            self.step_seconds.observe(seconds)
            self.step_rows.observe(rows)
            if gap_seconds is not None:
                self.inter_token_seconds.observe(gap_seconds, rows)

    def branched(self, seconds: float, rows: int) -> None:
        with self.lock:
            self.branch_seconds += seconds
            self.branch_rows += rows

    def admitted(self, queue_seconds: float) -> None:
        with self.lock:
            self.queue_seconds.observe(queue_seconds)

    def first_token(self, seconds: float) -> None:
        with self.lock:
            self.first_token_seconds.observe(seconds)

    def finished(self, reason: FinishReason, source_tokens: int, target_tokens: int, seconds: float) -> None:
        with self.lock:
            self.finishes[reason] += 1
            self.source_length.observe(source_tokens)
            self.target_length.observe(target_tokens)
            self.generation_seconds.observe(seconds)

    def scored(self, seconds: float, rows: int, target_tokens: int) -> None:
        with self.lock:
            self.score_seconds.observe(seconds)
            self.score_rows.observe(rows)
            self.scored_tokens += target_tokens

    def dropped(self, reason: DropReason, phase: Phase) -> None:
        with self.lock:
            self.drops[reason, phase] += 1

    def queue(self, waits: Callable[[], tuple[int, int]]) -> None:
        self.waits = waits

    def state(self, engine: int, running: int, slots: int) -> None:
        self.engines[engine] = running, slots

    def cache(self, engine: int, bytes_: int) -> None:
        self.cache_bytes[engine] = bytes_


class CallMetrics:
    """The calls of every method, counted by the interceptor; for use from the event loop alone."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}  # by method and code
        self.in_flight: dict[str, int] = {}
        self.seconds: dict[str, Histogram] = {}

    def begin(self, method: str) -> None:
        self.in_flight[method] = self.in_flight.get(method, 0) + 1
        if method not in self.seconds:
            self.seconds[method] = Histogram(REQUEST_SECONDS)

    def end(self, method: str, code: str, seconds: float) -> None:
        self.in_flight[method] -= 1
        self.requests[method, code] = self.requests.get((method, code), 0) + 1
        self.seconds[method].observe(seconds)

    def running(self, *services: str) -> int:
        """Calls of some services that run now."""
        return sum(count for method, count in self.in_flight.items() if method.partition("/")[0] in services)


@dataclass(frozen=True, slots=True)
class _Load:
    """How a version of a model was loaded, and where."""

    seconds: float
    device: str
    precision: str
    fallback: bool


class ServerMetrics(Collector):
    """All of the server's metrics.

    Attributes:
        registry: what an HTTP endpoint exposes.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = CallMetrics()
        self._models: dict[tuple[str, str], ModelMetrics] = {}  # by name and version
        self._rejections = dict.fromkeys(Rejection, 0)
        self._loads: dict[tuple[str, str], _Load] = {}
        self._load_failures: dict[str, int] = {}
        build = Gauge("dragoman_build_info", "Versions", ["version", "onnxruntime", "python"], registry=self.registry)
        build.labels(version("dragoman"), onnxruntime.__version__, platform.python_version()).set(1)
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def model(self, name: str, version: str = "1") -> ModelMetrics:
        """Where the engines of a version of a model report to."""
        return self._models.setdefault((name, version), ModelMetrics())

    def show(self, name: str, version: str, metrics: ModelMetrics) -> None:
        """Exposes what is reported there, in place of any that the version had before."""
        self._models[name, version] = metrics

    def loaded(
        self, name: str, seconds: float, device: str, precision: str, fallback: bool, version: str = "1"
    ) -> None:
        """A version of a model is ready."""
        self._loads[name, version] = _Load(seconds, device, precision, fallback)

    def load_failed(self, name: str) -> None:
        """A version of a model could not be loaded."""
        self._load_failures[name] = self._load_failures.get(name, 0) + 1

    def unloaded(self, name: str, version: str, metrics: ModelMetrics) -> None:
        """A version is gone, and with it all that was said of it, unless it has been loaded anew meanwhile."""
        if self._models.get((name, version)) is metrics:
            del self._models[name, version]
            self._loads.pop((name, version), None)

    def forget(self, name: str) -> None:
        """There is no such model any more."""
        self._load_failures.pop(name, None)

    def rejected(self, reason: Rejection) -> None:
        """A request, or an item of a batch, was refused. For the event loop alone."""
        self._rejections[reason] += 1

    def load(self) -> tuple[int, int]:
        """Requests in the queues of all models, and rows in use in their engines' caches."""
        models = list(self._models.values())
        running = sum(rows for model in models for rows, _ in list(model.engines.values()))
        return sum(model.waits()[0] for model in models), running

    def collect(self) -> Iterable[Metric]:
        yield from self._collect_calls()
        yield from self._collect_loads()
        for model_family in _MODEL_FAMILIES:
            yield model_family(self._models)

    def _collect_loads(self) -> Iterable[Metric]:
        model = ["model", "version"]
        seconds = GaugeMetricFamily(
            "dragoman_model_load_seconds", "Time from the start of loading to ready", labels=model
        )
        fallback = GaugeMetricFamily(
            "dragoman_device_fallback",
            "1 where a GPU was found but does not work, so that the model runs on the CPU",
            labels=model,
        )
        device = GaugeMetricFamily("dragoman_device_info", "Where a model runs", labels=[*model, "device", "precision"])
        for labels, load in list(self._loads.items()):
            seconds.add_metric(labels, load.seconds)
            fallback.add_metric(labels, load.fallback)
            device.add_metric([*labels, load.device, load.precision], 1)
        failures = CounterMetricFamily(
            "dragoman_model_load_failures", "Versions of a model that could not be loaded", labels=["model"]
        )
        for name, count in list(self._load_failures.items()):
            failures.add_metric([name], count)
        yield from (seconds, fallback, device, failures)

    def _collect_calls(self) -> Iterable[Metric]:
        requests = CounterMetricFamily("dragoman_requests", "Calls that ended", labels=["method", "code"])
        in_flight = GaugeMetricFamily("dragoman_requests_in_flight", "Calls that run", labels=["method"])
        seconds = HistogramMetricFamily(
            "dragoman_request_seconds", "From a call's arrival to its last message", labels=["method"]
        )
        for labels, count in list(self.calls.requests.items()):
            requests.add_metric(labels, count)
        for method, running in list(self.calls.in_flight.items()):
            in_flight.add_metric([method], running)
        for method, histogram in list(self.calls.seconds.items()):
            histogram.write(seconds, (method,))
        rejections = CounterMetricFamily(
            "dragoman_rejections", "Requests and batch items refused before an engine", labels=["reason"]
        )
        for reason, count in self._rejections.items():
            rejections.add_metric([reason.value], count)
        yield from (requests, in_flight, seconds, rejections)


Models = dict[tuple[str, str], ModelMetrics]
Samples = Callable[[ModelMetrics], Iterable[tuple[Labels, float]]]


def _histogram(name: str, text: str, get: Callable[[ModelMetrics], Histogram]) -> Callable[[Models], Metric]:
    def collect(models: Models) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["model", "version"])
        for model, metrics in list(models.items()):
            with metrics.lock:
                get(metrics).write(family, model)
        return family

    return collect


def _numbers(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, text: str, labels: Labels, get: Samples
) -> Callable[[Models], Metric]:
    def collect(models: Models) -> Metric:
        family = kind(name, text, labels=["model", "version", *labels])
        for model, metrics in list(models.items()):
            with metrics.lock:
                samples = list(get(metrics))
            for values, number in samples:
                family.add_metric((*model, *values), number)
        return family

    return collect


_MODEL_FAMILIES = [
    _histogram("dragoman_queue_seconds", "From arrival to a cache row", lambda m: m.queue_seconds),
    _histogram("dragoman_first_token_seconds", "From arrival to the first token", lambda m: m.first_token_seconds),
    _histogram("dragoman_inter_token_seconds", "Between two tokens of a row", lambda m: m.inter_token_seconds),
    _histogram("dragoman_generation_seconds", "From arrival to the answer", lambda m: m.generation_seconds),
    _histogram("dragoman_encode_seconds", "One run of the encoder", lambda m: m.encode_seconds),
    _histogram("dragoman_encode_rows", "Rows of an encoder run", lambda m: m.encode_rows),
    _histogram("dragoman_step_seconds", "One decode step", lambda m: m.step_seconds),
    _histogram("dragoman_step_rows", "Rows of a decode step", lambda m: m.step_rows),
    _numbers(
        CounterMetricFamily,
        "dragoman_branch_seconds",
        "Copying of cache rows between steps, where hypotheses branch",
        (),
        lambda m: [((), m.branch_seconds)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_branch_rows",
        "Cache rows copied where hypotheses branch",
        (),
        lambda m: [((), m.branch_rows)],
    ),
    _histogram("dragoman_score_seconds", "One run of the scorer", lambda m: m.score_seconds),
    _histogram("dragoman_score_rows", "Targets of a scorer run", lambda m: m.score_rows),
    _histogram("dragoman_source_length_tokens", "Source tokens of an answered request", lambda m: m.source_length),
    _histogram("dragoman_target_length_tokens", "Target tokens of an answered request", lambda m: m.target_length),
    _numbers(
        CounterMetricFamily,
        "dragoman_source_tokens",
        "Source tokens encoded, padding not counted",
        (),
        lambda m: [((), m.encoded_tokens)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_target_tokens",
        "Target tokens of answered requests",
        (),
        lambda m: [((), m.target_length.sum)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_scored_tokens",
        "Target tokens scored, end tokens included, padding not counted",
        (),
        lambda m: [((), m.scored_tokens)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_padding_tokens",
        "Padding in encoder batches, for which attention alone computes anything",
        (),
        lambda m: [((), m.padding_tokens)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_finishes",
        "Answered requests by finish reason",
        ("reason",),
        lambda m: [((reason.value,), count) for reason, count in m.finishes.items()],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_drops",
        "Accepted requests that ended without an answer",
        ("reason", "phase"),
        lambda m: list(m.drops.items()),
    ),
    _numbers(
        GaugeMetricFamily, "dragoman_requests_waiting", "Requests in the queue", (), lambda m: [((), m.waits()[0])]
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_queue_tokens",
        "Source tokens of the requests in the queue",
        (),
        lambda m: [((), m.waits()[1])],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_rows_running",
        "Cache rows in use",
        ("engine",),
        lambda m: [((str(engine),), running) for engine, (running, _) in list(m.engines.items())],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_rows",
        "Cache rows there are",
        ("engine",),
        lambda m: [((str(engine),), slots) for engine, (_, slots) in list(m.engines.items())],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_cache_bytes",
        "Memory of the cache pool",
        ("engine",),
        lambda m: [((str(engine),), size) for engine, size in list(m.cache_bytes.items())],
    ),
]
