"""Work that the test processes of one run share through files: whichever needs it first does it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # imports PyTorch
    from dragoman_training.model import Transformer


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """Returns a folder of this run of pytest, the same in all of its processes."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Makes a folder or file unless another process has made it or, meanwhile, does.

    Args:
        folder: The folder or file, in an existing folder.
        make: Makes it.
    """
    done = folder.with_suffix(".made")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder


def remember_graphs(trace_graphs: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Returns a `trace_graphs` that traces a model once for all processes, which takes seconds even for a tiny one."""

    def remembered(model: Transformer, *arguments: Any) -> Any:
        digest = hashlib.sha256(repr((model.config, arguments)).encode())
        # Not state_dict(), which lacks the bias of the logits.
        for name, weights in chain(model.named_parameters(), model.named_buffers()):
            digest.update(f"{name} {weights.dtype} {[*weights.shape]}".encode())
            digest.update(weights.detach().numpy().tobytes())

        def trace(place: Path) -> None:
            place.write_bytes(pickle.dumps(trace_graphs(model, *arguments)))

        return pickle.loads(make_once(folder / f"graphs-{digest.hexdigest()}", trace).read_bytes())

    return remembered
