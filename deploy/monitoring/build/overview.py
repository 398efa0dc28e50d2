"""Traffic, errors, latency, saturation: what whoever is on call looks at first."""

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
            "Calls that ended, a second: generation and scoring.",
            "reqps",
            rate(CALLS, "", f"{SERVER}, {WORK}"),
        ),
        figure(
            "Error ratio",
            "Share of the calls that failed through no fault of the caller.",
            "percentunit",
            error_ratio(),
            amber=0.001,
            red=0.01,
        ),
        figure(
            "First token, p95",
            "From a request's arrival to its first token.",
            "s",
            quantile(0.95, "dragoman_first_token_seconds"),
            amber=0.5,
            red=1,
        ),
        figure(
            "Tokens", "Target tokens of answered requests, a second.", "short", rate("dragoman_target_tokens_total")
        ),
        figure(
            "Waiting",
            "Requests that wait for rows of the cache.",
            "short",
            total("dragoman_requests_waiting"),
            amber=1,
            red=100,
        ),
        figure(
            "Rows in use",
            "Share of the cache rows in which a hypothesis runs. At 100 % requests wait.",
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
            "Calls that ended, by gRPC code. CANCELLED is the client's doing; DEADLINE_EXCEEDED means that the client's"
            " time was up before the answer was there.",
            "reqps",
            Query(rate(CALLS, "code", SERVER), "{{code}}"),
            stacked=True,
        ),
        graph(
            "Calls by method",
            "Calls that ended.",
            "reqps",
            Query(rate(CALLS, "method", SERVER), "{{method}}"),
            stacked=True,
        ),
        graph(
            "Tokens per second",
            "Source tokens that were encoded, target tokens of answered requests, and target tokens that were scored.",
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
            "Share of the calls that failed through no fault of the caller: not cancelled, not refused for what they"
            " ask, and not over the limit of their key.",
            "percentunit",
            Query(error_ratio(), "errors"),
        ),
        graph(
            "Error budget burn",
            "How fast the error budget of the 30-day objectives goes: at 1 it lasts just 30 days, at 14.4 two. Comes"
            " from the recording rules beside this dashboard; the alerts act on it.",
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
            "Requests, and items of batches, that were refused before they got to an engine. queue_full and"
            " queue_tokens: there is more work than this server does; the others are the caller's.",
            "reqps",
            Query(rate("dragoman_rejections_total", "reason", SERVER), "{{reason}}"),
            stacked=True,
        ),
        graph(
            "Dropped",
            "Requests that were accepted and ended without an answer. expired: their deadline came first; failed: an"
            " engine could not go on.",
            "reqps",
            Query(rate("dragoman_drops_total", "reason, phase"), "{{reason}} while {{phase}}"),
            stacked=True,
            span=HALF,
        ),
        graph(
            "Answered",
            "Answered requests by what ended them. Many with length: the limit of tokens cuts answers off.",
            "reqps",
            Query(rate("dragoman_finishes_total", "reason"), "{{reason}}"),
            stacked=True,
            span=HALF,
        ),
    ]


def _latency() -> list[Panel]:
    return [
        percentiles("First token", "From arrival to the first token.", "dragoman_first_token_seconds"),
        percentiles(
            "Between tokens", "The time from a token of a hypothesis to its next.", "dragoman_inter_token_seconds"
        ),
        percentiles("Whole answer", "From arrival to the answer.", "dragoman_generation_seconds"),
        percentiles("In the queue", "From arrival to rows in the cache.", "dragoman_queue_seconds"),
        graph(
            "Calls, p95 by method",
            "From a call's arrival to its last message, streams and batches included.",
            "s",
            Query(quantile(0.95, "dragoman_request_seconds", "method", f"{SERVER}, {WORK}"), "{{method}}"),
        ),
        cells(
            "Whole answers",
            "How many answers took how long.",
            "s",
            rate("dragoman_generation_seconds_bucket", "le"),
            span=8,
        ),
    ]


def _saturation() -> list[Panel]:
    return [
        graph(
            "Waiting",
            "Requests in the queue. This is what the autoscaler looks at, as it rises before latency does.",
            "short",
            Query(total("dragoman_requests_waiting", "instance"), "{{instance}}"),
            stacked=True,
        ),
        graph(
            "Rows in use",
            "Share of the cache rows in use.",
            "percentunit",
            Query(
                f"{total('dragoman_rows_running', 'instance')} / {total('dragoman_rows', 'instance')}", "{{instance}}"
            ),
        ),
        graph(
            "Engines at work",
            "Share of the time in which engines compute. Near 100 % more load only makes the queue longer.",
            "percentunit",
            Query(busy("instance"), "{{instance}}"),
        ),
        graph(
            "Calls in flight",
            "Calls that run or wait, by method.",
            "short",
            Query(total("dragoman_requests_in_flight", "method", SERVER), "{{method}}"),
            stacked=True,
        ),
        graph(
            "Tokens in the queue",
            "Source tokens of the requests that wait.",
            "short",
            Query(f"sum by (model) (dragoman_queue_tokens{{{MODEL}}})", "{{model}}"),
        ),
        graph(
            "CPU",
            "Cores in use, by the server and its workers.",
            "short",
            Query(cores("instance"), "{{instance}}"),
        ),
    ]
