"""Every query of every dashboard, and every rule, on a real Prometheus that scrapes real servers under real load.

What only Kubernetes and GPUs can tell comes from a page of the same shape; the rest is measured.
"""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from dragoman import Tls
from dragoman.local import LOOPBACK, LocalServer
from dragoman_server.new_key import add
from tests.deploy.monitoring import exporters
from tests.deploy.monitoring.contents import (
    RULES,
    Panel,
    alerts,
    boards,
    documented_queries,
    legend,
    legend_labels,
    panels,
    rules,
    series_in,
)
from tests.deploy.monitoring.load import MODEL, infer, load
from tests.deploy.monitoring.prometheus import Prometheus
from tests.support.bundles import SHIPPED_G2P
from tests.support.certificates import Authority
from tests.support.metrics_page import sum_of
from tests.support.servers import G2PServer
from tests.support.waiting import until

LOAD_SECONDS = 6.0
SMALL = ("--max-rows", "4", "--engines", "1", "--queue-size", "12")
FACES = ("dragoman.v1", "inference")  # watches of clients' health may stay
# Titles of panels, and legends, of what does not happen here, but may: they show zero.
QUIET = {
    "first token, 1 h, {{model}}, {{job}}",
    "Device errors",
    "Fallback to the CPU",
    "Files that can't be used",
    "Last error (Xid)",
    "Log lines lost",
    "On the CPU by mistake",
    "Restarts",
    "Restarts of containers",
    "Servers down",
    "Worker restarts",
}
# What Grafana puts in place of its variables: its own, then all values of those of the dashboards.
VARIABLES = {
    "$__rate_interval": "4s",
    "$job": "dragoman",
    "$instance": ".*",
    "$model": ".*",
    "$deployment": ".*dragoman.*",
}


@dataclass(frozen=True)
class Watched:
    """Servers that were under load, as Prometheus knows them.

    Attributes:
        workers: a server with worker processes.
        start, end: of the time to look at, in seconds since 1970.
        ended: how many calls ended in which way, as the client saw it.
    """

    prometheus: Prometheus
    workers: LocalServer
    start: float
    end: float
    ended: Counter[tuple[str, str]]


def filled(text: str) -> str:
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    return text


def repository(folder: Path) -> Path:
    """One model, and another whose only version is broken."""
    shutil.copytree(SHIPPED_G2P, folder / MODEL / "1")
    shutil.copytree(SHIPPED_G2P, folder / "broken" / "1")
    with (folder / "broken" / "1" / "weights.bin").open("r+b") as weights:
        weights.write(b"other")
    return folder


def job(name: str, *targets: str, **labels: str) -> dict[str, Any]:
    return {"job_name": name, "static_configs": [{"targets": list(targets), "labels": labels}]}


def quickened(folder: Path) -> list[Path]:
    """Copies of the rule files whose groups are evaluated every second."""
    copies = []
    for path in RULES:
        copy = folder / path.name
        copy.write_text(path.read_text().replace("interval: 2m", "interval: 1s"))
        copies.append(copy)
    return copies


@pytest.fixture(scope="module")
def watched(prometheus_installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("monitoring")
    ours = Authority(folder, "ours")
    pair = ours.sign("server", days=7)
    keys = folder / "keys"
    key, little = add(keys, "speech-team"), add(keys, "visitor", per_second="0.1")
    secured = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--api-keys", str(keys))
    models = ("--model-repository", str(repository(folder / "models")))
    with ExitStack() as stack:
        busy = stack.enter_context(G2PServer(*SMALL, *secured, *models, log=folder / "busy.log"))
        idle = stack.enter_context(G2PServer("--workers", "2", log=folder / "idle.log"))
        servers = [f"{LOOPBACK}:{server.metrics_port}" for server in (busy, idle)]
        page = {text: stack.enter_context(exporters.exporter(text)) for text in exporters.ALL}
        scrapes = [
            job("dragoman", *servers),
            job("kube-state-metrics", page[exporters.KUBERNETES]),
            # Without and with labels of the exporter's own pod, as the Prometheus operator attaches them.
            job("dcgm-exporter", page[exporters.DCGM]),
            job("dcgm-exporter-operated", page[exporters.DCGM_OPERATED], pod="dcgm-exporter-x", namespace="gpus"),
        ]
        scrapes[0]["static_configs"].append({"targets": [page[exporters.OURS_ELSEWHERE]]})
        config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": scrapes}
        prometheus = stack.enter_context(Prometheus(folder, config, quickened(folder)))
        prometheus.until(f"count(up == 1) == {len(servers) + len(page)}")
        start = time.time()
        ended = asyncio.run(load(busy.address, Tls(ca=ours.ca), key, little, seconds=LOAD_SECONDS))
        infer(busy.address, ours.ca, key, times=20)
        ended["infer", "OK"] = 20
        # Calls are counted when their clients have heard.
        until(lambda: all(sum_of(busy, "dragoman_requests_in_flight", face) == 0 for face in FACES))
        total = sum_of(busy, "dragoman_requests_total")
        prometheus.until(f"sum(dragoman_requests_total) == {total}")
        prometheus.until('ALERTS{alertname="DragomanModelNotLoaded"}')
        yield Watched(prometheus, idle, start, time.time(), ended)
        for server in (busy, idle):
            assert server.stop() == 0, server.log_tail()


def test_the_load_was_of_every_kind(watched: Watched) -> None:
    kinds = {kind for _, kind in watched.ended}
    assert kinds >= {
        "OK",
        "InvalidArgumentError",
        "NotFoundError",
        "DeadlineExceededError",
        "ResourceExhaustedError",
        "UnauthenticatedError",
    }


def test_prometheus_counts_what_the_client_saw(watched: Watched) -> None:
    def counted(method: str, code: str) -> float:
        return watched.prometheus.value(f'sum(dragoman_requests_total{{method=~".+/{method}", code="{code}"}})')

    assert counted("Generate", "OK") == watched.ended["generate", "OK"] > 50
    assert counted("ModelInfer", "OK") == watched.ended["infer", "OK"]
    assert counted(".+", "UNAUTHENTICATED") == watched.ended["stranger", "UnauthenticatedError"]
    assert counted(".+", "CANCELLED") > 0
    kinds: Counter[str] = Counter()
    for (_, kind), count in watched.ended.items():
        kinds[kind] += count
    refused = kinds["ResourceExhaustedError"]
    # The deadline of some has passed before they heard that they were refused.
    assert 0 < refused <= counted(".+", "RESOURCE_EXHAUSTED") <= refused + kinds["DeadlineExceededError"]


@pytest.mark.parametrize("panel", panels(), ids=str)
def test_a_panel_shows_something_and_it_is_possible(panel: Panel, watched: Watched) -> None:
    names: list[str] = []
    for expression, template in panel.queries:
        course = watched.prometheus.course(filled(expression), watched.start, watched.end)
        values = [value for _, series in course for value in series]
        assert values, f"there is nothing to see of {expression}"
        assert min(values) >= 0, expression
        quiet = not QUIET.isdisjoint({panel.title, template})
        # A server that is not asked in time looks as one that is down; more than now and then it is not.
        most = sorted(values)[len(values) * 9 // 10] if panel.title == "Servers down" else max(values)
        if "slow_first_tokens" not in expression:  # which depends on what else the machine does
            assert (most == 0) == quiet, expression
        if panel.unit == "percentunit":
            assert max(values) <= 1 + 1e-9, expression
        for labels, _ in course:
            assert labels.keys() >= set(legend_labels(template)), f"{template} has more labels than {labels}"
            names.append(legend(template, labels))
        if panel.kind == "heatmap":
            assert "+Inf" in {labels["le"] for labels, _ in course}
        elif panel.kind == "table":
            [columns] = [
                t["options"]["include"]["names"] for t in panel.spec["transformations"] if "include" in t["options"]
            ]
            assert all(labels.keys() >= set(columns) for labels, _ in course)
        elif panel.kind == "stat":
            assert len(course) == 1
    if panel.kind in ("timeseries", "bargauge"):
        assert all(names)
        assert [name for name, count in Counter(names).items() if count > 1] == [], "names must be unique"


@pytest.mark.parametrize("board", boards(), ids=lambda board: str(board["uid"]))
def test_a_dashboard_s_choices_are_filled(board: dict[str, Any], watched: Watched) -> None:
    for variable in board["templating"]["list"][1:]:
        metric, label = variable["query"]["query"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
        values = watched.prometheus.ask(f"label/{label}/values", **{"match[]": filled(metric)})
        assert values, variable["name"]
        if variable["name"] == "job":
            assert values == ["dragoman"]


def test_dashboards_show_what_went_on(watched: Watched) -> None:
    def course(title: str, board: str = "dragoman-overview") -> dict[str, list[float]]:
        [panel] = [p for p in panels() if (p.board, p.title, p.kind) == (board, title, "timeseries")]
        return {
            legend(template, labels): values
            for expression, template in panel.queries
            for labels, values in watched.prometheus.course(filled(expression), watched.start, watched.end)
        }

    codes = {code for code, values in course("Calls by code").items() if max(values) > 0}
    assert codes >= {"OK", "CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
    refusals = {reason for reason, values in course("Refused").items() if max(values) > 0}
    assert refusals >= {"queue_full", "invalid", "unknown_model", "unauthenticated", "key_limit"}
    assert 0 < max(course("Error ratio")["errors"]) < 1
    assert max(max(values) for values in course("Waiting").values()) > 1
    assert max(max(values) for values in course("Rows in use").values()) > 0.25
    assert max(max(values) for values in course("Engines at work").values()) > 0.1
    first = course("First token")
    assert max(first["p50"]) < max(first["p99"])
    spent = course("Engine time", "dragoman-engine")
    assert all(max(spent[phase]) > 0 for phase in ("encoding", "decode steps", "copying of rows"))


def test_prometheus_takes_every_rule_and_each_makes_its_series(watched: Watched) -> None:
    groups = watched.prometheus.ask("rules")["groups"]
    taken = [rule for group in groups for rule in group["rules"]]
    assert len(taken) == len(rules())
    assert [rule for rule in taken if rule["health"] != "ok"] == []
    for rule in rules():
        if "record" in rule:
            watched.prometheus.until(rule["record"])


def test_rules_and_dashboards_read_series_that_there_are(watched: Watched) -> None:
    there = set(watched.prometheus.ask("label/__name__/values"))
    expressions = [rule["expr"] for rule in rules()]
    expressions += [expression for panel in panels() for expression, _ in panel.queries]
    expressions += documented_queries()
    for expression in expressions:
        assert series_in(expression) or expression.startswith("vector("), expression
        assert series_in(expression) - there == set(), expression


@pytest.mark.parametrize("query", documented_queries())
def test_queries_of_the_runbook_are_ones(query: str, watched: Watched) -> None:
    watched.prometheus.query(query)


def test_alerts_take_up_what_is_wrong_and_nothing_else(watched: Watched) -> None:
    active = watched.prometheus.ask("alerts")["alerts"]
    state = {alert["labels"]["alertname"]: alert["state"] for alert in active}
    assert state["DragomanModelNotLoaded"] == "firing"
    expected = {"DragomanErrorRatioHigh", "DragomanQueueFull", "DragomanCertificateEnds"}  # on their way
    expected |= {"DragomanPodsMissing", "DragomanAutoscalerAtLimit"}  # of the pages that stand for a cluster
    assert {name for name in expected if state.get(name) != "pending"} == set()
    unfounded = {"DragomanDown", "DragomanServesNothing", "DragomanNoReadyPod", "DragomanOnCpuByMistake"}
    unfounded |= {"DragomanRestarts", "DragomanFilesUnusable", "DragomanCertificateEndsSoon", "DragomanRequestsFail"}
    assert unfounded <= alerts().keys()
    assert unfounded & state.keys() == set()


def test_bounds_in_rules_are_bounds_of_the_histograms(watched: Watched) -> None:
    bounds = set(watched.prometheus.ask("label/le/values", **{"match[]": "dragoman_first_token_seconds_bucket"}))
    used = {part.split('"')[1] for rule in rules() for part in rule["expr"].split("{") if part.startswith("le=")}
    assert used
    assert used <= bounds


def test_a_worker_that_is_killed_makes_its_alert_fire(watched: Watched) -> None:
    firing = 'ALERTS{alertname="DragomanWorkerRestarts", reason="died", alertstate="firing"}'
    assert watched.prometheus.query(firing) == []
    children = psutil.Process(watched.workers.process.pid).children()
    next(child for child in children if "dragoman_server.workers.worker_main" in child.cmdline()).kill()
    watched.prometheus.until(firing)
