"""What autoscalers ask Prometheus for is what waits in the pods that they scale, and in no others."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import DEPLOY
from tests.deploy.conftest import Render, only

pytestmark = pytest.mark.usefixtures("prometheus_installed")

# Requests that wait: namespace, pod, model, version -> how many.
WAITING = {
    ("speech", "dragoman-6d4cf56db6-x7k2p", "g2p", "1"): 5,
    ("speech", "dragoman-6d4cf56db6-x7k2p", "g2p", "2"): 1,
    ("speech", "dragoman-6d4cf56db6-q8w4n", "g2p", "1"): 3,
    ("speech", "dragoman-beta-7c9f8b5d4-bbbbb", "g2p", "1"): 100,
    ("speech", "g2p-predictor-5b7c6d8f9-ccccc", "g2p", "1"): 20,
    ("speech", "g2p-gpu-predictor-5b7c6d8f9-ddddd", "g2p", "1"): 1000,
    ("other", "dragoman-6d4cf56db6-x7k2p", "g2p", "1"): 10_000,
}


def evaluates(folder: Path, query: str, expected: dict[str, float]) -> subprocess.CompletedProcess[str]:
    """Whether Prometheus makes of a query what is expected: labels, such as '{pod="a"}', -> value."""
    selector = 'dragoman_requests_waiting{{namespace="{}",pod="{}",model="{}",version="{}"}}'
    series = [{"series": selector.format(*labels), "values": f"{waiting}x2"} for labels, waiting in WAITING.items()]
    samples = [{"labels": labels, "value": value} for labels, value in expected.items()]
    test = {"expr": query, "eval_time": "30s", "exp_samples": samples}
    content = {"tests": [{"interval": "15s", "input_series": series, "promql_expr_test": [test]}]}
    file = folder / "test.yaml"
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    return subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True, check=False)


def example(*path: str) -> Any:
    return yaml.safe_load(DEPLOY.joinpath(*path).read_text(encoding="utf-8"))


def test_keda_sums_what_waits_in_the_pods_of_the_release(render: Render, tmp_path: Path) -> None:
    scaled = only(render(example("helm", "examples", "autoscaling-keda.yaml"), "--namespace", "speech"), "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    done = evaluates(tmp_path, query, {"{}": 9})
    assert done.returncode == 0, done.stderr
    assert evaluates(tmp_path, query, {"{}": 109}).returncode != 0


def test_prometheus_adapter_tells_what_waits_in_each_pod(tmp_path: Path) -> None:
    """The adapter replaces << >> with the labels of the requested pods."""
    (rule,) = example("autoscaling", "prometheus-adapter.yaml")["rules"]["custom"]
    pods = ["dragoman-6d4cf56db6-x7k2p", "dragoman-6d4cf56db6-q8w4n"]
    query = (
        rule["metricsQuery"]
        .replace("<<.Series>>", "dragoman_requests_waiting")
        .replace("<<.LabelMatchers>>", f'namespace="speech",pod=~"{"|".join(pods)}"')
        .replace("<<.GroupBy>>", "pod")
    )
    done = evaluates(tmp_path, query, {f'{{pod="{pods[0]}"}}': 6, f'{{pod="{pods[1]}"}}': 3})
    assert done.returncode == 0, done.stderr


def test_kserve_sums_what_waits_in_the_pods_of_the_service(tmp_path: Path) -> None:
    service = example("kserve", "inference-service.yaml")
    metric = service["spec"]["predictor"]["autoScaling"]["metrics"][0]["external"]["metric"]
    done = evaluates(tmp_path, metric["query"], {"{}": 20})
    assert done.returncode == 0, done.stderr
