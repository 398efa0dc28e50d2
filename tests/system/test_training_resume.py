"""`dragoman-train` as a process: after kills, stops and resumes, the weights equal those of an uninterrupted run."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dragoman_training import cli
from dragoman_training.recipe import load_recipe
from dragoman_training.run.checkpoint import checkpoint_path, checkpoint_steps, load_state
from tests.support.training import TINY, run_training

OVERRIDES = [
    "training.steps=120",
    "training.checkpoint_every=10",
    "training.evaluate_every=30",
    "training.precision=auto",  # bf16 where the CPU has it
    "data.dev_held_out_sources=40",
    "data.test=null",
]
OPTIONS = ["--device", "cpu", "--threads", "1", *(f"--set={each}" for each in OVERRIDES)]


def start(run: Path, *options: str) -> "subprocess.Popen[str]":
    command = [str(Path(sys.executable).with_name("dragoman-train")), "tiny", "--out", str(run), *OPTIONS, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]", code: int = 0) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out + err


def wait_for_checkpoint(process: "subprocess.Popen[str]", run: Path, step: int) -> None:
    deadline = time.monotonic() + 120
    while not any(saved >= step for saved in checkpoint_steps(run)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same recipe in this process."""
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    run_training(load_recipe(TINY, OVERRIDES), run)
    return run


def assert_bit_equal(run: Path, other: Path) -> None:
    last = checkpoint_path(Path(), 120)
    for name in (Path("model.pt"), last):
        first, second = load_state(run / name), load_state(other / name)
        assert all(torch.equal(first["model"][key], second["model"][key]) for key in first["model"] | second["model"])
    assert (first["epoch"], first["position"]) == (second["epoch"], second["position"])
    for key, state in first["optimizer"]["state"].items():
        assert all(torch.equal(value, second["optimizer"]["state"][key][name]) for name, value in state.items())
    reports = [json.loads((folder / "report.json").read_text()) for folder in (run, other)]
    assert reports[0] == reports[1]


def test_kills(uninterrupted_run: Path, tmp_path: Path) -> None:
    """Before the first checkpoint, and at different points between two later ones."""
    run = tmp_path / "run"
    process = start(run)
    while not (run / "source_tokenizer.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.005)
    for step in (10, 70):
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = start(run, "--resume")
        wait_for_checkpoint(process, run, step)
        time.sleep(0.03 * (step % 7))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (run / "model.pt").exists()
    assert "resuming at step" in finish(start(run, "--resume"))
    assert_bit_equal(run, uninterrupted_run)


STUCK = """
import sys
import torch
from dragoman_training import cli
from dragoman_training.optimization.learner import Learner

def update(self, *arguments, update=Learner.update):
    while self.step == 25:
        # Each takes about a second to import, and nothing here needs them.
        print("stuck", sorted({"sympy", "torch._dynamo", "torch.distributed.tensor"} & sys.modules.keys()), flush=True)
        torch.linalg.svd(torch.ones(6000, 6000))  # takes a minute, in which Python runs no handler of signals
    return update(self, *arguments)

Learner.update = update
cli.main()
"""


def test_sigterm_saves_a_checkpoint(uninterrupted_run: Path, tmp_path: Path) -> None:
    """Also in a step that does not end."""
    run = tmp_path / "run"
    command = [sys.executable, "-c", STUCK, "tiny", "--out", str(run), *OPTIONS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "stuck []\n"
    process.send_signal(signal.SIGTERM)
    assert f"stopped at step 25, saved in {run}; continue with --resume" in finish(process, code=75)

    process = start(run, "--resume")
    wait_for_checkpoint(process, run, 40)
    process.send_signal(signal.SIGTERM)
    output = finish(process, code=75)
    assert "resuming at step 25" in output
    step = checkpoint_steps(run)[-1]
    assert f"stopped at step {step}, saved in {run}; continue with --resume" in output
    assert f"resuming at step {step}" in finish(start(run, "--resume"))
    assert_bit_equal(run, uninterrupted_run)


def test_tiny_recipe_learns_its_task(tiny_run: Path) -> None:
    report = json.loads((tiny_run / "report.json").read_text())
    assert report["test"]["exact_match"] > 95
    assert report["test"]["sources"] == 300


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.yaml"], "error: none.yaml: no such recipe"),
        (["tiny", "--set", "model.heads=7"], "d_model (64) must be divisible by heads (7)"),
        (["tiny", "--set", "data.train=[none.tsv]"], "error: none.tsv: no such data file"),
        (["tiny", "--out", "/dev/null/run"], "error: /dev/null/run"),
    ],
)
def test_errors_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_stop_on_signals", lambda **_: threading.Event())  # signals are for pytest
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 1, done.output
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
