"""Prometheus' own tool on the rules: that it takes them, and when they fire."""

import subprocess
from pathlib import Path

import pytest

from tests.deploy.monitoring.contents import MONITORING, ROOT, RULES

RULE_TESTS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
pytestmark = pytest.mark.usefixtures("prometheus_installed")


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)


def test_rules_are_valid() -> None:
    done = promtool("check", "rules", *RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "duplicate" not in done.stdout + done.stderr


def test_the_configuration_for_one_machine_is_valid() -> None:
    done = promtool("check", "config", MONITORING / "prometheus.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rule files found" in done.stdout


@pytest.mark.parametrize("path", RULE_TESTS, ids=lambda path: str(path.stem))
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_expectation_fails(tmp_path: Path) -> None:
    text = RULE_TESTS[0].read_text().replace("../../../../deploy", str(ROOT / "deploy"))
    assert promtool("test", "rules", _written(tmp_path / "right.yaml", text)).returncode == 0
    wrong = _written(tmp_path / "wrong.yaml", text.replace("exp_alerts: []", "exp_alerts: [{}]"))
    assert promtool("test", "rules", wrong).returncode != 0


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path
