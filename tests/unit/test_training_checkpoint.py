"""Checkpoints: whole or refused, the one before where the last is damaged, and averages."""

from pathlib import Path

import pytest
import torch

from dragoman_training.errors import TrainingError
from dragoman_training.run.checkpoint import (
    average_checkpoints,
    checkpoint_path,
    checkpoint_steps,
    delete_checkpoints,
    latest_checkpoint,
    load_state,
    save_state,
)


def fill(run: Path, *steps: int) -> None:
    for step in steps:
        weights = {"w": torch.full((1000,), float(step)), "half": torch.full((2,), step, dtype=torch.bfloat16)}
        save_state(checkpoint_path(run, step), {"model": weights, "step": step})


def test_save_and_load(tmp_path: Path) -> None:
    fill(tmp_path, 5, 12)
    assert checkpoint_steps(tmp_path) == [5, 12]
    state = latest_checkpoint(tmp_path)
    assert state is not None
    assert state["step"] == 12
    assert torch.equal(state["model"]["w"], torch.full((1000,), 12.0))
    assert latest_checkpoint(tmp_path / "elsewhere") is None
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000005.pt",
        "step-00000005.sha256",
        "step-00000012.pt",
        "step-00000012.sha256",
    ]


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "changed":
        path.write_bytes(content[:-300] + bytes([content[-300] ^ 1]) + content[-299:])
    else:
        path.with_suffix(".sha256").unlink()


@pytest.mark.parametrize("how", ["truncated", "empty", "changed", "without its sum"])
def test_the_one_before_a_damaged_one(how: str, tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3)
    damage(checkpoint_path(tmp_path, 3), how)
    with pytest.raises(TrainingError, match=r"step-00000003\.pt: truncated or modified"):
        load_state(checkpoint_path(tmp_path, 3))
    said: list[str] = []
    state = latest_checkpoint(tmp_path, said.append)
    assert state is not None
    assert state["step"] == 2
    assert len(said) == 1
    assert "step-00000003.pt" in said[0]
    assert "using the previous checkpoint" in said[0]


def test_a_kill_before_the_rename_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 1)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        fill(tmp_path, 2)
    monkeypatch.undo()
    state = latest_checkpoint(tmp_path)
    assert state is not None
    assert state["step"] == 1
    fill(tmp_path, 2)
    assert checkpoint_steps(tmp_path) == [1, 2]


def test_drop(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3, 4)
    (tmp_path / "checkpoints" / ".step-00000003.pt.whole").touch()
    delete_checkpoints(tmp_path, {4, 2})
    assert checkpoint_steps(tmp_path) == [2, 4]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 4


def test_average(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 6)
    weights, steps = average_checkpoints(tmp_path, [1, 2, 6])
    assert steps == [1, 2, 6]
    assert torch.equal(weights["w"], torch.full((1000,), 3.0))
    assert weights["half"].dtype == torch.bfloat16
    damage(checkpoint_path(tmp_path, 6), "truncated")
    said: list[str] = []
    weights, steps = average_checkpoints(tmp_path, [1, 2, 6], said.append)
    assert steps == [1, 2]
    assert weights["w"][0] == 1.5
    assert "averaging without it" in said[0]
    with pytest.raises(TrainingError, match="no intact checkpoint to average"):
        average_checkpoints(tmp_path, [6], said.append)
