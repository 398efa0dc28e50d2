"""Checkpoints that survive a kill: written beside their place, synced, then renamed into it."""

import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import torch

PATTERN = "step-*.pt"


def save_checkpoint(run: Path, step: int, state: dict[str, Any], keep: int) -> Path:
    """Writes `state` atomically as RUN/checkpoints/step-NNNNNNNN.pt with its sha256 beside it, and drops old ones.

    Args:
        run: the run's directory.
        step: optimizer steps done.
        state: what `torch.save` can hold.
        keep: how many checkpoints stay.
    """
    folder = run / "checkpoints"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.pt"
    temporary = folder / f".{path.name}.partial"
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    digest = hashlib.sha256(temporary.read_bytes()).hexdigest()
    path.with_suffix(".sha256").write_text(digest)
    os.replace(temporary, path)
    for old in sorted(folder.glob(PATTERN))[:-keep]:
        old.unlink()
        old.with_suffix(".sha256").unlink(missing_ok=True)
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Reads a checkpoint.

    Raises:
        ValueError: the file is truncated or changed.
    """
    sum_file = path.with_suffix(".sha256")
    if not sum_file.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != sum_file.read_text():
        raise ValueError(f"{path}: checkpoint is truncated or changed (its sha256 differs)")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def latest_checkpoint(run: Path) -> dict[str, Any] | None:
    """The newest checkpoint that is whole; warns of each that is not. None where there is none."""
    for path in sorted((run / "checkpoints").glob(PATTERN), reverse=True):
        try:
            return load_checkpoint(path)
        except ValueError as error:
            warnings.warn(f"{error}; trying the one before", stacklevel=2)
    return None
