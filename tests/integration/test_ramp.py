"""The metric by which pods scale shows that a server is full before its answers become slow."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.ramp.measure import load_generator, sample_queue, total
from tests.ramp.results import SLOW
from tests.support.load import percentile
from tests.support.servers import G2PServer

CHART_VALUES = ROOT / "deploy" / "helm" / "dragoman" / "values.yaml"
SECONDS, MOST_ROUNDS = 0.8, 3


def test_queue_passes_the_scaling_threshold_before_calls_are_slow(tmp_path: Path) -> None:
    """Alternates calls for all rows with calls for a few more, so that other load on this machine affects both."""
    threshold = yaml.safe_load(CHART_VALUES.read_text(encoding="utf-8"))["autoscaling"]["waitingPerPod"]
    with G2PServer("--engines", "1", "--max-rows", "32", "--log-requests", "none", log=tmp_path / "log") as server:
        generator, rows = load_generator(server), round(total(server.metrics(), "dragoman_rows"))
        ratios, waiting = [], []
        for _ in range(MOST_ROUNDS):
            full = generator.closed(rows, SECONDS)
            with sample_queue(server) as samples:
                beyond = generator.closed(rows + 3 * threshold, SECONDS)
            ratios.append(percentile(beyond.latencies, 0.5) / percentile(full.latencies, 0.5))
            waiting.append(max(sample.waiting for sample in samples))
            if max(waiting) > threshold and min(ratios) < SLOW:
                break
    assert max(waiting) > threshold
    assert min(ratios) < SLOW, (ratios, waiting)


def test_command_measures_and_plots(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.ramp", "--seconds", "2", "--full-seconds", "0.2", "--output", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "requests wait" in done.stdout
    measured = json.loads((tmp_path / "ramp.json").read_text(encoding="utf-8"))
    moments = measured["moments"]
    assert [moment["second"] for moment in moments] == [0, 1]
    assert moments[0]["offered"] < moments[1]["offered"]
    assert sum(moment["offered"] for moment in moments) == pytest.approx(
        measured["capacity"] * 2 * (0.2 + 1.4) / 2, rel=0.5
    )
    assert all(moment["running"] is None or 0 <= moment["running"] <= measured["rows"] for moment in moments)
    assert any(moment["p95_seconds"] for moment in moments)
    picture = (tmp_path / "ramp.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">II", picture[16:24]) == (900, 800)
