"""Checkpoints that survive a kill, and averages of them."""

import hashlib
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman_training.errors import TrainingError
from dragoman_training.files import write, write_text

PATTERN = "step-*.pt"


def checkpoint_path(run: Path, step: int) -> Path:
    """RUN/checkpoints/step-NNNNNNNN.pt."""
    return run / "checkpoints" / f"step-{step:08d}.pt"


def checkpoint_steps(run: Path) -> list[int]:
    """Steps of which there are checkpoints, oldest first."""
    return sorted(int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").glob(PATTERN))


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` atomically at `path`, and its sha256 beside it.

    NOTE: the sum is in place before the file it belongs to; in between, an older file of the same name does not match
    it and counts as damaged, which is what the checkpoint before is kept for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.whole")
    write(partial, lambda file: torch.save(state, file))
    write_text(path.with_suffix(".sha256"), hashlib.sha256(partial.read_bytes()).hexdigest())
    partial.replace(path)


def load_state(path: Path) -> dict[str, Any]:
    """Reads what `save_state` wrote, onto the CPU.

    Raises:
        TrainingError: the file is truncated or changed.
    """
    sum_file = path.with_suffix(".sha256")
    if not sum_file.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != sum_file.read_text().strip():
        raise TrainingError(f"{path}: truncated or changed (its sha256 differs)")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def latest_checkpoint(run: Path, warn: Callable[[str], object] = warnings.warn) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; warns of each that is not. None where there is none."""
    for step in reversed(checkpoint_steps(run)):
        try:
            return load_state(checkpoint_path(run, step))
        except TrainingError as error:
            warn(f"{error}; taking the checkpoint before it")
    return None


def drop_checkpoints(run: Path, keep: Collection[int]) -> None:
    """Deletes all checkpoints but those of the steps in `keep`, and what a killed `save_state` left half-written."""
    for step in checkpoint_steps(run):
        if step not in keep:
            path = checkpoint_path(run, step)
            path.unlink()
            path.with_suffix(".sha256").unlink(missing_ok=True)
    for partial in (run / "checkpoints").glob(".*"):
        partial.unlink()


def average_checkpoints(
    run: Path, steps: Sequence[int], warn: Callable[[str], object] = warnings.warn
) -> tuple[dict[str, Tensor], list[int]]:
    """The mean of the models of several checkpoints, summed in double precision; warns of damaged ones, left out.

    Returns:
        the averaged state dict, and the steps that went into it.

    Raises:
        TrainingError: none of them is whole.
    """
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    used: list[int] = []
    for step in steps:
        try:
            model: dict[str, Tensor] = load_state(checkpoint_path(run, step))["model"]
        except TrainingError as error:
            warn(f"{error}; averaging without it")
            continue
        used.append(step)
        for name, value in model.items():
            kinds[name] = value.dtype
            total[name] = total[name] + value.double() if name in total else value.double()
    if not used:
        raise TrainingError(f"{run}: no whole checkpoint to average")
    return {name: (value / len(used)).to(kinds[name]) for name, value in total.items()}, used
