"""`dragoman-train` on a corpus of many shards and blocks: killed while it prepares and while it trains, it goes on."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from dragoman_training.run.checkpoint import checkpoint_path, checkpoint_steps, load_state

# A large corpus, made small: shards of 100 lines, blocks of 400 pairs, and two processes that prepare it.
SMALL_PARTS = """
import os

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before PyTorch is imported, as the command does
from dragoman_training import cli
from dragoman_training.data import corpus, epochs, prepare

corpus.CHUNK_LINES = 100
epochs.BLOCK_PAIRS = 400
prepare.LARGE = 0
cli.main()
"""
STEPS = 60
OPTIONS = [
    *("--device", "cpu", "--threads", "2"),
    *("--set", f"training.steps={STEPS}"),
    *("--set", "training.batch_tokens=300"),
    *("--set", "training.checkpoint_every=10"),
    *("--set", "training.evaluate_every=60"),
    *("--set", "training.warmup_steps=5"),
    *("--set", "training.average_last=1"),
    *("--set", "training.patience=null"),
    *("--set", "data.temperature=2"),
    *("--set", "data.dev_held_out_sources=20"),
    *("--set", "data.test=null"),
    *("--set", "tokenizers.target={kind: bpe, vocabulary: 400, bpe_dropout: 0.1}"),
    *("--set", "augmentation.concatenated=0.1"),
    *("--set", "model.max_target_length=80"),
]


def start(run: Path, *options: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SMALL_PARTS, "tiny", "--out", str(run), *OPTIONS, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]") -> str:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return out + err


def kill_when(process: "subprocess.Popen[str]", ready: Callable[[], bool]) -> str:
    """Kills a process once something has happened; those it started must end by themselves.

    Returns:
        what the process has said.
    """
    deadline = time.monotonic() + 600
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    _, said = process.communicate()
    _, left = psutil.wait_procs(started, timeout=60)
    assert left == []
    return said


def test_kills_while_data_is_prepared_and_while_it_is_trained_on(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert "an epoch has 2,300 pairs" not in finish(start(whole)), "one file has nothing to mix with"
    assert len(list((whole / "prepared").glob("*.tokens"))) == 25
    partial = run / ".prepared.partial"
    kill_when(start(run), lambda: len(list(partial.glob("read-*.npz"))) >= 3)
    said = kill_when(start(run), lambda: any(step >= 20 for step in checkpoint_steps(run)))
    assert "resuming the preparation" in said
    output = finish(start(run, "--resume"))
    assert "resuming at step" in output
    assert "going on" not in output
    for name in (Path("model.pt"), checkpoint_path(Path(), STEPS)):
        first, second = load_state(whole / name), load_state(run / name)
        assert all(torch.equal(first["model"][key], second["model"][key]) for key in first["model"] | second["model"])
    position = first["epoch"], first["block"], first["position"]
    assert position == (second["epoch"], second["block"], second["position"])
    assert position[1] > 0
