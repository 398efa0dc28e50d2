"""The metric families of models; each function builds one from the counts of all models."""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from dragoman_server.metrics.histogram import Histogram, Labels
from dragoman_server.metrics.model_counts import ModelMetrics

Models = dict[tuple[str, str], ModelMetrics]
Samples = Callable[[ModelMetrics], Iterable[tuple[Labels, float]]]


def _unit(name: str) -> str:
    """Returns the unit that a metric's name ends with, which OpenMetrics declares separately; "" for plain counts."""
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
        "From a request's arrival in the queue to the start of its decoding",
        lambda m: m.queue_seconds,
    ),
    _histogram(
        "dragoman_first_token_seconds",
        "From a request's arrival in the queue to its first token",
        lambda m: m.first_token_seconds,
    ),
    _histogram(
        "dragoman_inter_token_seconds",
        "Between two tokens of a hypothesis: a step, and the time until the next",
        lambda m: m.inter_token_seconds,
    ),
    _histogram(
        "dragoman_generation_seconds",
        "From a request's arrival in the queue to its response",
        lambda m: m.generation_seconds,
    ),
    _histogram("dragoman_encode_seconds", "One run of the encoder", lambda m: m.encode_seconds),
    _histogram("dragoman_encode_rows", "Requests per run of the encoder", lambda m: m.encode_rows),
    _histogram("dragoman_step_seconds", "One decode step of all rows", lambda m: m.step_seconds),
    _histogram("dragoman_step_rows", "Rows per decode step", lambda m: m.step_rows),
    _numbers(
        CounterMetricFamily,
        "dragoman_branch_seconds",
        "Time spent copying cache rows between steps, when hypotheses branch",
        (),
        lambda m: [((), m.branch_seconds)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_branch_rows",
        "Cache rows copied when hypotheses branch",
        (),
        lambda m: [((), m.branch_rows)],
    ),
    _histogram("dragoman_score_seconds", "One run of the scorer", lambda m: m.score_seconds),
    _histogram("dragoman_score_rows", "Targets per run of the scorer", lambda m: m.score_rows),
    _histogram("dragoman_source_length_tokens", "Source tokens of an answered request", lambda m: m.source_length),
    _histogram(
        "dragoman_target_length_tokens",
        "Target tokens of all hypotheses of an answered request",
        lambda m: m.target_length,
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_source_tokens",
        "Source tokens encoded, without padding",
        (),
        lambda m: [((), m.encoded_tokens)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_target_tokens",
        "Target tokens of all hypotheses of answered requests",
        (),
        lambda m: [((), m.target_length.sum)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_scored_tokens",
        "Target tokens scored, with end tokens, without padding",
        (),
        lambda m: [((), m.scored_tokens)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_padding_tokens",
        "Padding tokens in encoder batches; only attention computes anything for them",
        (),
        lambda m: [((), m.padding_tokens)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_finishes",
        "Answered requests, by the finish reason of the best hypothesis",
        ("reason",),
        lambda m: [((reason.value,), count) for reason, count in m.finishes.items()],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_unseen_source_requests",
        "Answered requests with source tokens that do not occur in the model's training data",
        (),
        lambda m: [((), m.unseen_source_requests)],
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_drops",
        "Requests that reached the queue or an engine and ended without a response",
        ("reason", "phase"),
        lambda m: list(m.drops.items()),
    ),
    _numbers(
        CounterMetricFamily,
        "dragoman_device_errors",
        "Graph runs that failed on the device",
        ("kind",),
        lambda m: [((kind,), count) for kind, count in m.device_errors.items()],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_requests_waiting",
        "Requests waiting in the queue, and targets waiting to be scored",
        (),
        lambda m: [((), m.waits()[0])],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_queue_tokens",
        "Source tokens of everything that waits",
        (),
        lambda m: [((), m.waits()[1])],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_rows_running",
        "Cache rows in use, one for each running hypothesis",
        ("engine",),
        lambda m: [((str(engine),), running) for engine, (running, _) in list(m.engines.items())],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_rows",
        "Cache rows of the engine: the maximum number of running hypotheses",
        ("engine",),
        lambda m: [((str(engine),), max_rows) for engine, (_, max_rows) in list(m.engines.items())],
    ),
    _numbers(
        GaugeMetricFamily,
        "dragoman_batch_rows",
        "Cache rows of the engine that batch requests may have at the moment",
        ("engine",),
        lambda m: [((str(engine),), rows) for engine, rows in m.batch_rows().items()],
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
