"""Two processes on Gloo train what one does: equal losses, any number on resuming, kills, stops, restarts, shards."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from dragoman_training.run.checkpoint import checkpoint_steps, load_state
from dragoman_training.run.metrics_log import read_metrics_log
from tests.support.training import SMALL, run_training, small_recipe

STEPS = 200
OVERRIDES = [
    "training.precision=fp32",
    f"training.steps={STEPS}",
    "training.log_every=1",
    "training.checkpoint_every=20",
    "training.evaluate_every=100",
    "training.ema_decay=0.9",
    "model.dropout=0.2",
]
OPTIONS = ["--device", "cpu", "--threads", "1", *(f"--set={each}" for each in (*SMALL, *OVERRIDES))]
MODULE = ["-m", "dragoman_training", "tiny"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process with two batches a step."""
    run = tmp_path_factory.mktemp("alone") / "run"
    run_training(small_recipe(*OVERRIDES, "training.accumulate=2"), run)
    return run


@contextmanager
def started(command: list[str], variables: Mapping[str, str] | None = None) -> Iterator["subprocess.Popen[str]"]:
    """Starts a program in a session of its own; at the end, nothing of it is left."""
    process = subprocess.Popen(
        command,
        env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    family = psutil.Process(process.pid)
    try:
        yield process
    finally:
        for each in [*family.children(recursive=True), family] if family.is_running() else []:
            each.kill()
        process.wait()


@contextmanager
def together(run: Path, *options: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Starts two processes as a launcher does that only sets the variables of PyTorch."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, *MODULE, "--out", str(run), *OPTIONS, *options]
    with (
        started(command, {**variables, "RANK": "0"}) as first,
        started(command, {**variables, "RANK": "1"}) as second,
    ):
        yield [first, second]


def torchrun(run: Path, *options: str, launcher: tuple[str, ...] = ()) -> list[str]:
    own = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *launcher]
    return [*own, *MODULE, f"--out={run}", *OPTIONS, *options]


def output_of(process: "subprocess.Popen[str]", code: int) -> str:
    output, _ = process.communicate(timeout=200)
    assert process.returncode == code, output
    return output


def wait_for_checkpoint(process: "subprocess.Popen[str]", run: Path, step: int) -> None:
    deadline = time.monotonic() + 200
    while not any(saved >= step for saved in checkpoint_steps(run)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rank(process: "subprocess.Popen[str]", number: int) -> psutil.Process:
    """The process of a rank, below torchrun."""
    (found,) = [each for each in psutil.Process(process.pid).children() if each.environ().get("RANK") == str(number)]
    return found


def assert_same(run: Path, other: Path) -> None:
    """Compares every step's loss, and the quality of the final model."""
    losses = [
        {(record["kind"], record["step"]): record["loss"] for record in read_metrics_log(each) if "loss" in record}
        for each in (run, other)
    ]
    assert len(losses[0]) == STEPS + 2
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    reports: list[dict[str, Any]] = [json.loads((each / "report.json").read_text()) for each in (run, other)]
    assert reports[0]["dev"].keys() == reports[1]["dev"].keys()
    for name in ("loss", "word_error_rate"):
        assert reports[0]["dev"][name] == pytest.approx(reports[1]["dev"][name], rel=1e-4)
    assert reports[0]["steps_trained"] == STEPS


def test_two_processes_make_the_steps_of_one(alone: Path, tmp_path: Path) -> None:
    with together(tmp_path / "run") as (first, second):
        output = output_of(first, 0)
        assert output_of(second, 0) == "", "process 0 prints"
    assert f"step {STEPS}/{STEPS}" in output
    assert_same(tmp_path / "run", alone)
    # NOTE: Not so of shards, whose sums round in another way: the gradient of a bias of keys is zero but for rounding.
    weights = [load_state(each / "model.pt")["model"] for each in (tmp_path / "run", alone)]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-3, atol=1e-5)


def test_a_killed_process_ends_the_job_and_any_number_resumes(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(torchrun(run)) as process:
        wait_for_checkpoint(process, run, 20)
        rank(process, 1).kill()
        output = output_of(process, 1)
    errors = [line for line in output.splitlines() if line.startswith(("error: ", "stopped "))]
    step = checkpoint_steps(run)[-1]
    lost = "another process of this job has ended or cannot be reached"
    assert errors == [f"error: {lost}; continue with --resume from step {step}"]
    recipe = small_recipe(*OVERRIDES)  # a run keeps the batches of its steps
    assert f"resuming at step {step}" in run_training(recipe, run, resume=True)[1]
    assert_same(run, alone)


def test_torchrun_restarts_killed_processes(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(torchrun(run, "--resume", launcher=("--max-restarts=1",))) as process:
        wait_for_checkpoint(process, run, 20)
        rank(process, 0).kill()
        output = output_of(process, 0)
    assert "resuming at step " in output
    assert_same(run, alone)


def test_a_stop_of_one_process_stops_all_and_shards_become_whole(alone: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with started(torchrun(run, "--set=training.sharding=full")) as process:
        wait_for_checkpoint(process, run, 20)
        rank(process, 1).send_signal(signal.SIGTERM)
        output = output_of(process, 1)
    step = checkpoint_steps(run)[-1]
    assert f"stopped at step {step}, saved in {run}; continue with --resume" in output
    assert "exitcode  : 75" in output
    shutil.copytree(run, tmp_path / "whole")
    with together(run, "--resume", "--set=training.sharding=full") as both:
        for process in both:
            output_of(process, 0)
    assert_same(run, alone)
    assert run_training(small_recipe(*OVERRIDES), tmp_path / "whole", resume=True)[0].finished
    assert_same(tmp_path / "whole", alone)


def test_an_error_is_one_sentence(tmp_path: Path) -> None:
    with together(tmp_path / "run", "--set=training.accumulate=1") as (first, second):
        output = output_of(first, 1) + output_of(second, 1)
    assert output == (
        "error: training.accumulate is 1, but there are 2 processes: expected at least one batch of a step for each; "
        "add --set training.accumulate=2\n"
    )
