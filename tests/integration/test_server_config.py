"""A server that is told what to do by a file, by the environment and by flags at once."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

import pytest

from dragoman import Client
from dragoman.local import free_port, serve_command
from tests.conftest import StartServer


def test_a_server_starts_as_file_environment_and_flags_say(
    start_server: StartServer, tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle").symlink_to(tiny_bundle)
    file = tmp_path / "server.yaml"
    file.write_text("bundle: bundle  # beside this file\nmax_rows: 3\nqueue_size: 4\nmetrics_port: 1\nengines: 1\n")
    monkeypatch.setenv("DRAGOMAN_CONFIG", str(file))
    monkeypatch.setenv("DRAGOMAN_MAX_BATCH_ITEMS", "5")
    monkeypatch.setenv("DRAGOMAN_QUEUE_SIZE", "6")
    monkeypatch.setenv("DRAGOMAN_PORT", "tcp://10.0.0.7:50051")  # as Kubernetes has it
    server = start_server("--max-hypotheses", "2")
    with Client(server.address) as client:
        assert client.generate("42").text == "forty two"
        [model] = client.models()
        assert (model.limits.beam_size, model.limits.hypotheses, model.limits.batch_items) == (3, 3, 5)
    metrics = urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics").read().decode()
    assert "dragoman_rows" in metrics
    log = [json.loads(line) for line in server.log.read_text().splitlines()]
    assert log[0]["event"] == "configured"
    options = log[0]["options"]
    assert options["max_rows"] == f"3 ({file}:2)"
    assert options["queue_size"] == "6 (DRAGOMAN_QUEUE_SIZE)"
    assert options["max_hypotheses"] == "2 (--max-hypotheses)"
    assert options["metrics_port"] == f"{server.metrics_port} (--metrics-port)"
    assert "drain_seconds" not in options


def test_a_wrong_configuration_stops_the_start_with_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("max_rows: none\n")
    command = [serve_command(), "--config", str(file), "--port", str(free_port())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr == f"dragoman-serve: {file}:1: max_rows is 'none'; expected a whole number of at least 1\n"
    environment = os.environ | {"DRAGOMAN_THREADS": "2"}
    done = subprocess.run([serve_command()], capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("dragoman-serve: DRAGOMAN_THREADS is not an option; ")
    assert done.stdout == ""


@pytest.mark.parametrize("option", ["--print-config", "--example-config"])
def test_output_that_can_not_be_written_is_told(option: str) -> None:
    with Path("/dev/full").open("w") as full:
        command = [serve_command(), option]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == "dragoman-serve: can't write to standard output: No space left on device\n"
