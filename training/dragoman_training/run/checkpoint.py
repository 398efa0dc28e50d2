"""Checkpoints: saved with a checksum, loaded only if intact, and averaged."""

import hashlib
import re
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from dragoman_training.errors import TrainingError
from dragoman_training.files import removed_on_error, write, write_text

_NAME = re.compile(r"step-(\d{8,})\.pt", re.ASCII)


def checkpoint_path(run: Path, step: int) -> Path:
    """Returns RUN/checkpoints/step-NNNNNNNN.pt."""
    return run / "checkpoints" / f"step-{step:08d}.pt"


def checkpoint_steps(run: Path) -> list[int]:
    """Returns the steps that have a checkpoint, oldest first; other files, such as copies, do not count."""
    return sorted(int(name[1]) for path in (run / "checkpoints").glob("*.pt") if (name := _NAME.fullmatch(path.name)))


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Writes `state` to `path` atomically, and its sha256 to a file beside it.

    NOTE: The checksum is in place before its file. In between, an older file of the same name does not match it and
    counts as damaged; the previous checkpoint is kept for that case.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.whole")
    write(partial, lambda file: _save(state, file))
    with removed_on_error(partial):
        write_text(path.with_suffix(".sha256"), hashlib.sha256(partial.read_bytes()).hexdigest())
        partial.replace(path)


def _save(state: dict[str, Any], file: BinaryIO) -> None:
    try:
        torch.save(state, file)
    except RuntimeError as error:
        # After a write that failed, PyTorch only says that the file is not as long as it should be.
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise


def load_state(path: Path) -> dict[str, Any]:
    """Loads what `save_state` wrote, onto the CPU.

    Raises:
        TrainingError: The file is truncated or modified.
    """
    sum_file = path.with_suffix(".sha256")
    if not sum_file.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != sum_file.read_text().strip():
        raise TrainingError(f"{path}: truncated or modified (its sha256 does not match)")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def latest_checkpoint(run: Path, warn: Callable[[str], object] = warnings.warn) -> dict[str, Any] | None:
    """Loads the newest intact checkpoint, warning of each damaged one; None if the run has none at all.

    Raises:
        TrainingError: All are damaged. A run that began anew would delete them, and might have started elsewhere.
    """
    steps = checkpoint_steps(run)
    for step in reversed(steps):
        try:
            return load_state(checkpoint_path(run, step))
        except TrainingError as error:
            if step == steps[0]:
                raise TrainingError(
                    f"{error}, and no other checkpoint is intact; restore one, or start a new run in another directory"
                ) from None
            warn(f"{error}; using the previous checkpoint")
    return None


def delete_checkpoints(run: Path, keep: Collection[int]) -> None:
    """Deletes all checkpoints except those of the steps in `keep`, and partial files of a killed `save_state`."""
    for step in checkpoint_steps(run):
        if step not in keep:
            path = checkpoint_path(run, step)
            path.unlink()
            path.with_suffix(".sha256").unlink(missing_ok=True)
    for pattern in (".*.partial", ".*.whole"):
        for partial in (run / "checkpoints").glob(pattern):
            partial.unlink(missing_ok=True)


def average_checkpoints(
    run: Path, steps: Sequence[int], warn: Callable[[str], object] = warnings.warn
) -> tuple[dict[str, Tensor], list[int]]:
    """Averages the weights of several checkpoints in double precision, skipping damaged ones with a warning.

    Of a run with a moving average of the weights, that is what is averaged.

    Returns:
        The averaged state dict and the steps it was made from.

    Raises:
        TrainingError: None of the checkpoints is intact.
    """
    total: dict[str, Tensor] = {}
    dtypes: dict[str, torch.dtype] = {}
    used: list[int] = []
    for step in steps:
        try:
            state = load_state(checkpoint_path(run, step))
        except TrainingError as error:
            warn(f"{error}; averaging without it")
            continue
        model: dict[str, Tensor] = state.get("ema", state["model"])
        used.append(step)
        for name, value in model.items():
            dtypes[name] = value.dtype
            total[name] = total[name] + value.double() if name in total else value.double()
    if not used:
        raise TrainingError(f"{run}: no intact checkpoint to average")
    return {name: (value / len(used)).to(dtypes[name]) for name, value in total.items()}, used
