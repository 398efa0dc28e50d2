"""Dashboards, rules and runbook are consistent, and alerts fire when they should."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.build import __main__ as build
from dragoman_server.config import ServerConfig
from tests.deploy.kube_schemas import MINORS, faults
from tests.deploy.monitoring.contents import (
    MONITORING,
    ROOT,
    RULES,
    Panel,
    alerts,
    boards,
    legend_labels,
    panels,
    series_in,
)

RULE_TESTS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
SECTIONS = ("**What it means.**", "**How to look.**", "**What to do.**")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
GIVEN_BY_GRAFANA = {"__rate_interval", "__range", "__interval"}


def runbook() -> dict[str, str]:
    """Returns the text of each section by its anchor."""
    parts = re.split(r"^## (.+)$", (MONITORING / "RUNBOOK.md").read_text(), flags=re.MULTILINE)[1:]
    return {title.lower().replace(" ", "-"): text for title, text in zip(parts[::2], parts[1::2], strict=True)}


def test_generated_files_match_their_code() -> None:
    assert build.outdated() == []


def test_a_changed_dashboard_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "DASHBOARDS", tmp_path)
    monkeypatch.setattr(build, "RECORDING", tmp_path / "recording.yaml")
    for path, text in build.rendered().items():
        path.write_text(text)
    assert build.outdated() == []
    changed = tmp_path / "dragoman-fleet.json"
    changed.write_text(changed.read_text().replace("process_open_fds", "process_open_files"))
    (tmp_path / "of-old.json").touch()
    assert build.outdated() == [changed, tmp_path / "of-old.json"]


def test_check_sets_the_exit_status() -> None:
    command = [sys.executable, "-m", "deploy.monitoring.build", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("panel", panels(), ids=str)
def test_panels_have_description_and_unit(panel: Panel) -> None:
    assert panel.spec["description"].endswith(".")
    assert panel.spec["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel.queries
    assert panel.unit or panel.kind in ("table", "heatmap")


@pytest.mark.parametrize("board", boards(), ids=lambda board: str(board["uid"]))
def test_dashboards_are_complete(board: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in board["panels"]]
    assert ids == list(range(1, len(ids) + 1))
    declared = {variable["name"] for variable in board["templating"]["list"]}
    texts = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    texts += [str(variable["query"]) for variable in board["templating"]["list"]]
    used = {found[1] or found[2] for text in texts for found in VARIABLE.finditer(text)}
    assert used - GIVEN_BY_GRAFANA == declared - {"datasource"}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, f"{panel['title']} sticks out"
    titles = Counter((panel["title"], panel["type"]) for panel in board["panels"])
    assert [title for title, count in titles.items() if count > 1 and title[1] == "row"] == []


def test_no_two_panels_lie_on_each_other() -> None:
    for board in boards():
        taken: dict[tuple[int, int], str] = {}
        for panel in board["panels"]:
            place = panel["gridPos"]
            for x in range(place["x"], place["x"] + place["w"]):
                for y in range(place["y"], place["y"] + place["h"]):
                    assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                    taken[x, y] = panel["title"]


def test_uids_and_legends_are_well_formed() -> None:
    uids = [board["uid"] for board in boards()]
    assert len(set(uids)) == len(uids)
    for panel in panels():
        for expression, template in panel.queries:
            for label in legend_labels(template):
                assert re.search(rf"by \([^)]*\b{label}\b", expression) or "by (" not in expression, f"{panel}: {label}"


@pytest.mark.parametrize(("name", "rule"), alerts().items(), ids=str)
def test_an_alert_tells_how_bad_it_is_and_where_to_read_on(name: str, rule: dict[str, Any]) -> None:
    assert name.startswith("Dragoman")
    assert rule["labels"]["severity"] in ("critical", "warning")
    told = rule["annotations"]
    assert told.keys() == {"summary", "description", "runbook_url"}
    assert told["description"].endswith(".")
    file, _, anchor = told["runbook_url"].partition("#")
    assert ROOT / file == MONITORING / "RUNBOOK.md"
    assert anchor == name.lower()
    text = runbook()[anchor]
    assert [section for section in SECTIONS if section not in text] == []


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    assert {anchor for anchor in runbook() if anchor.startswith("dragoman")} == {name.lower() for name in alerts()}


def test_options_in_the_docs_exist() -> None:
    others = {"--previous", "--check", "--address", "--config", "--web", "--example-config", "--option"}
    others |= {"--namespace", "--filename", "--from-file"}
    for path in [*MONITORING.glob("*.md"), *RULES]:
        told = set(re.findall(r"--[a-z]+(?:-[a-z]+)*", path.read_text()))
        options = {f"--{name.replace('_', '-')}" for name in ServerConfig.model_fields}
        assert told - options - others == set()


def test_log_events_in_the_runbook_exist() -> None:
    text = (MONITORING / "RUNBOOK.md").read_text()
    told = [span for span in re.findall(r"`([a-z][A-Za-z';: ]+)`", text) if " " in span]
    events = {span for span in told if not span.startswith(("kubectl ", "dragoman "))}
    sources = "".join(path.read_text() for path in (ROOT / "server").rglob("*.py"))
    assert len(events) > 7
    assert [event for event in events if f'"{event}"' not in sources] == []


def test_alertmanager_configuration_is_valid() -> None:
    document = yaml.safe_load((MONITORING / "alertmanager.yaml").read_text())
    assert faults(document, MINORS[-1]) == []
    assert faults({**document, "spec": {**document["spec"], "receiver": "inbox"}}, MINORS[-1]) != []
    spec = document["spec"]
    named = {spec["route"]["receiver"], *(route["receiver"] for route in spec["route"]["routes"])}
    assert named == {receiver["name"] for receiver in spec["receivers"]}
    (secret,) = re.findall(r"create secret generic (.+)", (MONITORING / "README.md").read_text())
    name, *keys = re.sub("--from-file ", "", secret).split()
    wanted = re.findall(r"\{name: (\w+), key: ([\w-]+)\}", (MONITORING / "alertmanager.yaml").read_text())
    assert set(wanted) == {(name, key) for key in keys}


def test_the_readme_counts_right() -> None:
    assert f"{len(alerts())} alerts" in (MONITORING / "README.md").read_text()


def test_every_alert_has_cases_in_which_it_fires_and_does_not() -> None:
    fires: set[str] = set()
    stays: set[str] = set()
    for path in RULE_TESTS:
        for case in yaml.safe_load(path.read_text())["tests"]:
            for check in case.get("alert_rule_test", []):
                (fires if check.get("exp_alerts") else stays).add(check["alertname"])
    assert fires == stays == alerts().keys()


def test_names_of_series_are_found() -> None:
    expression = 'sum by (job) (rate(dragoman_a_total{job=~"up_x"}[5m])) / job:dragoman_b:rate5m + on (pod) kube_c'
    assert series_in(expression) == {"dragoman_a_total", "job:dragoman_b:rate5m", "kube_c"}
    assert series_in("up == 0 and scalar(dragoman:call_error_budget:ratio)") == {
        "up",
        "dragoman:call_error_budget:ratio",
    }


# Prometheus' own tool on the rules


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("prometheus_installed")
def test_rules_are_valid() -> None:
    done = promtool("check", "rules", *RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "duplicate" not in done.stdout + done.stderr


@pytest.mark.usefixtures("prometheus_installed")
def test_prometheus_configuration_is_valid() -> None:
    done = promtool("check", "config", MONITORING / "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rule files found" in done.stdout


@pytest.mark.usefixtures("prometheus_installed")
@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: str(path.stem))
def test_alerts_fire_when_they_should(path: Path) -> None:
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.usefixtures("prometheus_installed")
def test_a_wrong_expectation_fails(tmp_path: Path) -> None:
    text = RULE_TESTS[0].read_text().replace("../../../../deploy", str(ROOT / "deploy"))
    file = tmp_path / "test.yaml"
    file.write_text(text)
    assert promtool("test", "rules", file).returncode == 0
    file.write_text(text.replace("exp_alerts: []", "exp_alerts: [{}]"))
    assert promtool("test", "rules", file).returncode != 0
