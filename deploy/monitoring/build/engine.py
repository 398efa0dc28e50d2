"""The Engine dashboard: steps, batches, padding, cache, and phases."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.monitoring.build.panels import (
    HALF,
    Panel,
    Query,
    assemble,
    cells,
    figure,
    graph,
    labels,
    models_served,
    percentiles,
    servers,
)
from deploy.monitoring.build.promql import MODEL, busy, mean, rate, total


def engine() -> Dashboard:
    return assemble(
        "Dragoman / Engine",
        "dragoman-engine",
        "Steps, batches, padding, cache and phases of Dragoman's engines.",
        [*servers(), models_served()],
        {
            "At a glance": _glance(),
            "Steps": _steps(),
            "Encoder": _encoder(),
            "Where the time goes": _phases(),
            "Cache": _cache(),
            "Requests": _requests(),
            "Scorer": _scorer(),
            "Models": _models(),
        },
    )


def _glance() -> list[Panel]:
    return [
        figure("Steps", "Decode steps per second of all engines.", "short", rate("dragoman_step_seconds_count")),
        figure("Step time", "Mean time of a decode step.", "s", mean("dragoman_step_seconds")),
        figure(
            "Rows per step", "Mean rows per step: how well requests share steps.", "short", mean("dragoman_step_rows")
        ),
        figure(
            "Padding",
            "Share of the encoder's input that is padding.",
            "percentunit",
            _padding(),
            amber=0.4,
            red=0.6,
        ),
        figure("Rows in use", "Cache rows in use, of all engines.", "short", total("dragoman_rows_running")),
        figure("At work", "Share of time in which engines compute.", "percentunit", busy(), amber=0.9, red=0.97),
    ]


def _padding(by: str = "") -> str:
    padding, tokens = rate("dragoman_padding_tokens_total", by), rate("dragoman_source_tokens_total", by)
    return f"{padding} / ({padding} + {tokens})"


def _steps() -> list[Panel]:
    return [
        percentiles("Step time", "Time of one decode step of an engine, for all its rows.", "dragoman_step_seconds"),
        graph(
            "Rows per step",
            "Mean rows per step, by server. More rows give more tokens per second and longer steps.",
            "short",
            Query(mean("dragoman_step_rows", "instance"), "{{instance}}"),
        ),
        graph(
            "Steps per second",
            "Decode steps of all engines, by model.",
            "short",
            Query(rate("dragoman_step_seconds_count", "model"), "{{model}}"),
        ),
        cells("Step times", "Distribution of step times.", "s", rate("dragoman_step_seconds_bucket", "le")),
        cells("Batch sizes", "Distribution of rows per step.", "short", rate("dragoman_step_rows_bucket", "le")),
    ]


def _encoder() -> list[Panel]:
    return [
        percentiles("Encoder run", "Time of one encoder run, for all its requests.", "dragoman_encode_seconds"),
        graph(
            "Requests per run",
            "Mean. Requests that arrive during a step are encoded together.",
            "short",
            Query(mean("dragoman_encode_rows", "model"), "{{model}}"),
        ),
        graph(
            "Padding",
            "Share of the encoder's input that is padding. Requests of similar length run together to keep it low.",
            "percentunit",
            Query(_padding("model"), "{{model}}"),
        ),
    ]


def _behind(later: str, earlier: str) -> str:
    """Returns the difference of two means in seconds, at least 0, since their windows cover different requests."""
    return f"clamp_min({later} - {earlier}, 0)"


def _phases() -> list[Panel]:
    engines = f"count(dragoman_rows{{{MODEL}}})"
    return [
        graph(
            "Engine time",
            "Share of time per activity; the rest is idle, or the server's own work between steps.",
            "percentunit",
            Query(f"{rate('dragoman_encode_seconds_sum')} / {engines}", "encoding"),
            Query(f"{rate('dragoman_step_seconds_sum')} / {engines}", "decode steps"),
            Query(f"{rate('dragoman_branch_seconds_total')} / {engines}", "copying of rows"),
            stacked=True,
        ),
        graph(
            "A request's time",
            "Mean time of a request in the queue, from there to its first token, and from there to its answer.",
            "s",
            Query(mean("dragoman_queue_seconds"), "queue"),
            Query(_behind(mean("dragoman_first_token_seconds"), mean("dragoman_queue_seconds")), "first token"),
            Query(
                _behind(mean("dragoman_generation_seconds"), mean("dragoman_first_token_seconds")), "the other tokens"
            ),
            stacked=True,
        ),
        graph(
            "Rows copied",
            "Cache rows copied per second when beams or samples branch.",
            "short",
            Query(rate("dragoman_branch_rows_total", "model"), "{{model}}"),
        ),
    ]


def _cache() -> list[Panel]:
    return [
        graph(
            "Rows in use",
            "Cache rows in use, by engine.",
            "short",
            Query(total("dragoman_rows_running", "instance, model, engine"), "{{model}} {{instance}} #{{engine}}"),
        ),
        graph(
            "Row limit",
            "Cache rows that --max-rows or the memory allows.",
            "short",
            Query(total("dragoman_rows", "instance, model, engine"), "{{model}} {{instance}} #{{engine}}"),
            Query(
                total("dragoman_batch_rows", "instance, model, engine"),
                "{{model}} {{instance}} #{{engine}}, for batches",
            ),
        ),
        graph(
            "Memory of the caches",
            "Memory of the caches, allocated when a model is loaded.",
            "bytes",
            Query(total("dragoman_cache_bytes", "instance, model"), "{{model}} {{instance}}"),
            stacked=True,
        ),
    ]


def _requests() -> list[Panel]:
    return [
        cells(
            "Source lengths",
            "Distribution of source tokens of answered requests.",
            "short",
            rate("dragoman_source_length_tokens_bucket", "le"),
        ),
        cells(
            "Target lengths",
            "Distribution of target tokens.",
            "short",
            rate("dragoman_target_length_tokens_bucket", "le"),
        ),
    ]


def _scorer() -> list[Panel]:
    return [
        percentiles(
            "Scorer run", "Time of one teacher-forced run, in parallel with the engines.", "dragoman_score_seconds"
        ),
        graph(
            "Scorer at work",
            "Share of time in which the scorer computes, by server.",
            "percentunit",
            Query(rate("dragoman_score_seconds_sum", "instance, model"), "{{model}} {{instance}}"),
        ),
        graph(
            "Targets per run",
            "Mean targets per run of the scorer.",
            "short",
            Query(mean("dragoman_score_rows", "model"), "{{model}}"),
        ),
        graph(
            "Scored tokens",
            "Scored target tokens per second.",
            "short",
            Query(rate("dragoman_scored_tokens_total", "model"), "{{model}}"),
        ),
    ]


def _models() -> list[Panel]:
    return [
        labels(
            "Where models run",
            "Device and precision of each served version.",
            f"dragoman_device_info{{{MODEL}}}",
            ["instance", "model", "version", "device", "precision"],
        ),
        graph(
            "Time to load",
            "Time from the start of loading until ready, of the served versions.",
            "s",
            Query(f"dragoman_model_load_seconds{{{MODEL}}}", "{{model}} {{version}} {{instance}}"),
            span=HALF,
        ),
        graph(
            "Versions that could not be loaded",
            "Failed loads since the server's start.",
            "short",
            Query(f"dragoman_model_load_failures_total{{{MODEL}}}", "{{model}} {{instance}}"),
        ),
        graph(
            "Fallback to the CPU",
            "1 if a GPU was found but does not work, so the model runs on the CPU.",
            "short",
            Query(f"dragoman_device_fallback{{{MODEL}}}", "{{model}} {{version}} {{instance}}"),
        ),
        graph(
            "Device errors",
            "Failed runs of a graph per second.",
            "reqps",
            Query(rate("dragoman_device_errors_total", "kind"), "{{kind}}"),
        ),
    ]
