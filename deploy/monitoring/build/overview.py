"""The Overview dashboard: traffic, errors, latency and saturation."""

from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.monitoring.build.panels import (
    HALF,
    Panel,
    Query,
    assemble,
    cells,
    figure,
    graph,
    models_served,
    percentiles,
    servers,
)
from deploy.monitoring.build.promql import (
    MODEL,
    SERVER,
    WORK,
    busy,
    cores,
    error_ratio,
    quantile,
    rate,
    total,
)

CALLS = "dragoman_requests_total"


def overview() -> Dashboard:
    return assemble(
        "Dragoman / Overview",
        "dragoman-overview",
        "Traffic, errors, latency and saturation of Dragoman servers.",
        [*servers(), models_served()],
        {
            "At a glance": _glance(),
            "Traffic": _traffic(),
            "Errors": _errors(),
            "Latency": _latency(),
            "Saturation": _saturation(),
        },
    )


def _glance() -> list[Panel]:
    return [
        figure(
            "Calls",
            "Finished calls per second that generate or score.",
            "reqps",
            rate(CALLS, "", f"{SERVER}, {WORK}"),
        ),
        figure(
            "Error ratio",
            "Share of calls that failed through no fault of the caller.",
            "percentunit",
            error_ratio(),
            amber=0.001,
            red=0.01,
        ),
        figure(
            "First token, p95",
            "Time from a request's arrival to its first token.",
            "s",
            quantile(0.95, "dragoman_first_token_seconds"),
            amber=0.5,
            red=1,
        ),
        figure(
            "Tokens", "Target tokens of answered requests per second.", "short", rate("dragoman_target_tokens_total")
        ),
        figure(
            "Waiting",
            "Requests that wait for cache rows.",
            "short",
            total("dragoman_requests_waiting"),
            amber=1,
            red=100,
        ),
        figure(
            "Rows in use",
            "Share of cache rows in use. At 100 % requests wait.",
            "percentunit",
            f"{total('dragoman_rows_running')} / {total('dragoman_rows')}",
            amber=0.8,
            red=0.95,
        ),
    ]


def _traffic() -> list[Panel]:
    return [
        graph(
            "Calls by code",
            "Finished calls by gRPC code. CANCELLED: the client cancelled; DEADLINE_EXCEEDED: the client's deadline"
            " passed before the answer was ready.",
            "reqps",
            Query(rate(CALLS, "code", SERVER), "{{code}}"),
            stacked=True,
        ),
        graph(
            "Calls by method",
            "Finished calls by method.",
            "reqps",
            Query(rate(CALLS, "method", SERVER), "{{method}}"),
            stacked=True,
        ),
        graph(
            "Tokens per second",
            "Encoded source tokens, target tokens of answered requests, and scored target tokens.",
            "short",
            Query(rate("dragoman_source_tokens_total"), "source"),
            Query(rate("dragoman_target_tokens_total"), "target"),
            Query(rate("dragoman_scored_tokens_total"), "scored"),
        ),
    ]


def _errors() -> list[Panel]:
    return [
        graph(
            "Error ratio",
            "Share of calls that failed through no fault of the caller: without cancelled and invalid ones, and those"
            " over the limit of their key.",
            "percentunit",
            Query(error_ratio(), "errors"),
        ),
        graph(
            "Error budget burn",
            "How fast the error budget of the 30-day objectives is used up: at 1 it lasts 30 days, at 14.4 two."
            " Computed by the recording rules; the alerts use it.",
            "short",
            Query('max by (job) (job:dragoman_call_errors:burn_rate1h{job=~"$job"})', "calls, 1 h, {{job}}"),
            Query('max by (job) (job:dragoman_call_errors:burn_rate5m{job=~"$job"})', "calls, 5 min, {{job}}"),
            Query(
                'max by (job, model) (job_model:dragoman_slow_first_tokens:burn_rate1h{job=~"$job", model=~"$model"})',
                "first token, 1 h, {{model}}, {{job}}",
            ),
        ),
        graph(
            "Refused",
            "Requests and batch items that were refused before they reached an engine. queue_full and queue_tokens: the"
            " load exceeds the capacity; all others are the caller's fault.",
            "reqps",
            Query(rate("dragoman_rejections_total", "reason", SERVER), "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Dropped",
            "Accepted requests that ended without an answer. expired: their deadline passed; failed: an engine could"
            " not continue.",
            "reqps",
            Query(rate("dragoman_drops_total", "reason, phase"), "{{reason}} while {{phase}}"),
            stacked=True,
            span=HALF,
        ),
        graph(
            "Answered",
            "Answered requests by finish reason. Many with length: the token limit truncates answers.",
            "reqps",
            Query(rate("dragoman_finishes_total", "reason"), "{{reason}}"),
            stacked=True,
            span=HALF,
        ),
    ]


def _latency() -> list[Panel]:
    return [
        percentiles("First token", "Time from arrival to the first token.", "dragoman_first_token_seconds"),
        percentiles("Between tokens", "Time between two tokens of a hypothesis.", "dragoman_inter_token_seconds"),
        percentiles("Whole answer", "Time from arrival to the answer.", "dragoman_generation_seconds"),
        percentiles("In the queue", "Time from arrival to cache rows.", "dragoman_queue_seconds"),
        graph(
            "Calls, p95 by method",
            "Time from a call's arrival to its last message, including streams and batches.",
            "s",
            Query(quantile(0.95, "dragoman_request_seconds", "method", f"{SERVER}, {WORK}"), "{{method}}"),
        ),
        cells(
            "Whole answers",
            "Distribution of the time to the answer.",
            "s",
            rate("dragoman_generation_seconds_bucket", "le"),
            span=8,
        ),
    ]


def _saturation() -> list[Panel]:
    return [
        graph(
            "Waiting",
            "Requests in the queue. The autoscaler uses this metric, since it rises before latency does.",
            "short",
            Query(total("dragoman_requests_waiting", "instance"), "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Rows in use",
            "Share of cache rows in use.",
            "percentunit",
            Query(
                f"{total('dragoman_rows_running', 'instance')} / {total('dragoman_rows', 'instance')}", "{{instance}}"
            ),
        ),
        graph(
            "Engines at work",
            "Share of time in which engines compute. Near 100 %, more load only makes the queue longer.",
            "percentunit",
            Query(busy("instance"), "{{instance}}"),
        ),
        graph(
            "Calls in flight",
            "Running and waiting calls, by method.",
            "short",
            Query(total("dragoman_requests_in_flight", "method", SERVER), "{{method}}"),
            stacked=True,
        ),
        graph(
            "Tokens in the queue",
            "Source tokens of waiting requests.",
            "short",
            Query(f"sum by (model) (dragoman_queue_tokens{{{MODEL}}})", "{{model}}"),
        ),
        graph(
            "CPU",
            "Cores used by the server and its workers.",
            "short",
            Query(cores("instance"), "{{instance}}"),
        ),
    ]
