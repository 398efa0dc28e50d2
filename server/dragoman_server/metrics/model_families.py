"""What is told of models: each function makes one metric of what was counted of all of them."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dragoman_server.metrics.histogram import Histogram, Labels
from dragoman_server.metrics.model_counts import ModelMetrics

Models = dict[tuple[str, str], ModelMetrics]
Samples = Callable[[ModelMetrics], Iterable[tuple[Labels, float]]]


def _unit(name: str) -> str:
    """Of a metric, as OpenMetrics wants it told beside the name that ends with it; "" for mere counts."""
    last = name.rpartition("_")[2]
    return last if last in ("seconds", "bytes", "tokens", "rows") else ""


def _histogram(name: str, text: str, get: Callable[[ModelMetrics], Histogram]) -> Callable[[Models], Metric]:
    def collect(models: Models) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["model", "version"], unit=_unit(name))
        for model, metrics in list(models.items()):
            with metrics.lock:
                get(metrics).write(family, model)
        return family

    return collect


def _numbers(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, text: str, labels: Labels, get: Samples
) -> Callable[[Models], Metric]:
    def collect(models: Models) -> Metric:
        family = kind(name, text, labels=["model", "version", *labels], unit=_unit(name))
        for model, metrics in list(models.items()):
            with metrics.lock:
                samples = list(get(metrics))
            for values, number in samples:
                family.add_metric((*model, *values), number)
        return family

    return collect


MODEL_FAMILIES = [
    _histogram(
        "dragoman_queue_seconds",
        "From a request's arrival in the queue to its place among those that are decoded",
        lambda m: m.queue_seconds,
    ),
    _histogram(
        "dragoman_first_token_seconds",
        "From a request's arrival in the queue to its first token",
        lambda m: m.first_token_seconds,
    ),
    _histogram(
        "dragoman_inter_token_seconds",
        "Between two tokens of a hypothesis: steps, and what lies between them",
        lambda m: m.inter_token_seconds,
    ),
    _histogram(
        "dragoman_generation_seconds",
        "From a request's arrival in the queue to its answer",
        lambda m: m.generation_seconds,
    ),
    _histogram("dragoman_encode_seconds", "One run of the encoder", lambda m: m.encode_seconds),
    _histogram("dragoman_encode_rows", "Requests that share a run of the encoder", lambda m: m.encode_rows),
    _histogram("dragoman_step_seconds", "One decode step, all rows together", lambda m: m.step_seconds),
    _histogram("dragoman_step_rows", "Rows that share a decode step", lambda m: m.step_rows),
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
    _histogram("dragoman_score_rows", "Targets that share a run of the scorer", lambda m: m.score_rows),
    _histogram("dragoman_source_length_tokens", "Source tokens of an answered request", lambda m: m.source_length),
    _histogram(
        "dragoman_target_length_tokens",
        "Target tokens of an answered request, all its hypotheses",
        lambda m: m.target_length,
    ),
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
        "Target tokens of answered requests, all their hypotheses",
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
        "Answered requests, by why the best hypothesis ended",
        ("reason",),
        lambda m: [((reason.value,), count) for reason, count in m.finishes.items()],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_unseen_source_requests",
        "Answered requests with source tokens that occur in no source the model was trained on",
        (),
        lambda m: [((), m.unseen_source_requests)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_drops",
        "Requests that an engine had and that ended without an answer",
        ("reason", "phase"),
        lambda m: list(m.drops.items()),
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_device_errors",
        "Runs of a graph that failed on the device",
        ("kind",),
        lambda m: [((kind,), count) for kind, count in m.device_errors.items()],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_requests_waiting",
        "Requests that wait in the queue, and targets that wait to be scored",
        (),
        lambda m: [((), m.waits()[0])],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_queue_tokens",
        "Source tokens of all that waits",
        (),
        lambda m: [((), m.waits()[1])],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_rows_running",
        "Cache rows in use: hypotheses that are decoded now",
        ("engine",),
        lambda m: [((str(engine),), running) for engine, (running, _) in list(m.engines.items())],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_rows",
        "Cache rows there are: the most that can be decoded at once",
        ("engine",),
        lambda m: [((str(engine),), max_rows) for engine, (_, max_rows) in list(m.engines.items())],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_cache_bytes",
        "Memory of all cache rows",
        ("engine",),
        lambda m: [((str(engine),), size) for engine, size in list(m.cache_bytes.items())],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_cache_used_bytes",
        "Memory of the cache rows in use",
        ("engine",),
        lambda m: [((str(engine),), size) for engine, size in m.cache_used_bytes().items()],
    ),
]
