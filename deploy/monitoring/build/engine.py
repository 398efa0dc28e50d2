"""What the engines do: steps, batches, padding, cache, and where the time goes."""

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
        figure("Steps", "Decode steps a second, of all engines.", "short", rate("dragoman_step_seconds_count")),
        figure("Step time", "Mean of a decode step.", "s", mean("dragoman_step_seconds")),
        figure("Rows per step", "Mean: how well requests share steps.", "short", mean("dragoman_step_rows")),
        figure(
            "Padding",
            "Share of what the encoder is given that is padding.",
            "percentunit",
            _padding(),
            amber=0.4,
            red=0.6,
        ),
        figure("Rows in use", "Of the cache, all engines together.", "short", total("dragoman_rows_running")),
        figure("At work", "Share of the time in which engines compute.", "percentunit", busy(), amber=0.9, red=0.97),
    ]


def _padding(by: str = "") -> str:
    padding, tokens = rate("dragoman_padding_tokens_total", by), rate("dragoman_source_tokens_total", by)
    return f"{padding} / ({padding} + {tokens})"


def _steps() -> list[Panel]:
    return [
        percentiles(
            "Step time", "One decode step of an engine, for all the rows that it has.", "dragoman_step_seconds"
        ),
        graph(
            "Rows per step",
            "Mean number of rows that share a step, by server. More rows: more tokens a second, and longer steps.",
            "short",
            Query(mean("dragoman_step_rows", "instance"), "{{instance}}"),
        ),
        graph(
            "Steps per second",
            "Of all engines, by model.",
            "short",
            Query(rate("dragoman_step_seconds_count", "model"), "{{model}}"),
        ),
        cells("Step times", "How many steps took how long.", "s", rate("dragoman_step_seconds_bucket", "le")),
        cells("Batch sizes", "How many steps had how many rows.", "short", rate("dragoman_step_rows_bucket", "le")),
    ]


def _encoder() -> list[Panel]:
    return [
        percentiles("Encoder run", "One run of the encoder, for all the requests in it.", "dragoman_encode_seconds"),
        graph(
            "Requests per run",
            "Mean: newcomers are gathered while decoding goes on, and encoded together.",
            "short",
            Query(mean("dragoman_encode_rows", "model"), "{{model}}"),
        ),
        graph(
            "Padding",
            "Share of the encoder's input that is padding. Requests of like length are put together to keep it low.",
            "percentunit",
            Query(_padding("model"), "{{model}}"),
        ),
    ]


def _behind(later: str, earlier: str) -> str:
    """Seconds between two means; not below 0, though a window may hold the earlier ends of other requests."""
    return f"clamp_min({later} - {earlier}, 0)"


def _phases() -> list[Panel]:
    engines = f"count(dragoman_rows{{{MODEL}}})"
    return [
        graph(
            "Engine time",
            "What engines spend their time on; what is left to 100 % is idle, or the server's own work between steps.",
            "percentunit",
            Query(f"{rate('dragoman_encode_seconds_sum')} / {engines}", "encoding"),
            Query(f"{rate('dragoman_step_seconds_sum')} / {engines}", "decode steps"),
            Query(f"{rate('dragoman_branch_seconds_total')} / {engines}", "copying of rows"),
            stacked=True,
        ),
        graph(
            "A request's time",
            "Mean time that a request spends in the queue, from there to its first token, and on to its answer.",
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
            "Cache rows copied a second where beams or samples branch.",
            "short",
            Query(rate("dragoman_branch_rows_total", "model"), "{{model}}"),
        ),
    ]


def _cache() -> list[Panel]:
    return [
        graph(
            "Rows in use",
            "Of each engine's cache.",
            "short",
            Query(total("dragoman_rows_running", "instance, model, engine"), "{{model}} {{instance}} #{{engine}}"),
        ),
        graph(
            "Rows there are",
            "What --max-rows or the memory allows.",
            "short",
            Query(total("dragoman_rows", "instance, model, engine"), "{{model}} {{instance}} #{{engine}}"),
        ),
        graph(
            "Memory of the caches",
            "Allocated once, when a model is loaded.",
            "bytes",
            Query(total("dragoman_cache_bytes", "instance, model"), "{{model}} {{instance}}"),
            stacked=True,
        ),
    ]


def _requests() -> list[Panel]:
    return [
        cells(
            "Source lengths",
            "Tokens of the inputs of answered requests.",
            "short",
            rate("dragoman_source_length_tokens_bucket", "le"),
        ),
        cells(
            "Target lengths",
            "Tokens of the answers.",
            "short",
            rate("dragoman_target_length_tokens_bucket", "le"),
        ),
    ]


def _scorer() -> list[Panel]:
    return [
        percentiles("Scorer run", "One teacher-forced run, beside the engines.", "dragoman_score_seconds"),
        graph(
            "Scorer at work",
            "Share of the time in which the scorer computes, of each server.",
            "percentunit",
            Query(rate("dragoman_score_seconds_sum", "instance, model"), "{{model}} {{instance}}"),
        ),
        graph("Targets per run", "Mean.", "short", Query(mean("dragoman_score_rows", "model"), "{{model}}")),
        graph("Scored tokens", "A second.", "short", Query(rate("dragoman_scored_tokens_total", "model"), "{{model}}")),
    ]


def _models() -> list[Panel]:
    return [
        labels(
            "Where models run",
            "Device and precision of each version that is served.",
            f"dragoman_device_info{{{MODEL}}}",
            ["instance", "model", "version", "device", "precision"],
        ),
        graph(
            "Time to load",
            "From the start of loading to ready, of the versions that are served.",
            "s",
            Query(f"dragoman_model_load_seconds{{{MODEL}}}", "{{model}} {{version}} {{instance}}"),
            span=HALF,
        ),
        graph(
            "Versions that could not be loaded",
            "Counted since the server's start.",
            "short",
            Query(f"dragoman_model_load_failures_total{{{MODEL}}}", "{{model}} {{instance}}"),
        ),
        graph(
            "Fall-back to the CPU",
            "1 where a GPU was found and does not work, so that the model runs on the CPU.",
            "short",
            Query(f"dragoman_device_fallback{{{MODEL}}}", "{{model}} {{version}} {{instance}}"),
        ),
        graph(
            "Failures of the device",
            "Runs of a graph that failed.",
            "reqps",
            Query(rate("dragoman_device_errors_total", "kind"), "{{kind}}"),
        ),
    ]
