"""Weights in mapped files, whose memory can be given back while they are not needed."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

_LINE = 64  # bytes, to which arrays are aligned


class MappedFile:
    """A file whose contents are read when they are first used.

    Args:
        path: A file that is not empty.

    Attributes:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            # Copied on write, so that PyTorch may have it; nothing writes.
            self._pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def array(self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Returns an array that begins at a byte of the file."""
        count = int(np.prod(shape))
        return np.frombuffer(self._pages, dtype, count, offset).reshape(shape)

    def release(self) -> None:
        """Gives back the memory. Arrays that are used again are read again."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._pages.madvise(mmap.MADV_DONTNEED)


def map_parameters(model: nn.Module, path: Path) -> MappedFile:
    """Moves the parameters of a model to a file, and maps that.

    Args:
        model: A model in single precision.
        path: The file to write.
    """
    parameters = list(model.parameters())
    offsets = []
    with path.open("wb") as file:
        for parameter in parameters:
            file.write(bytes(-file.tell() % _LINE))
            offsets.append(file.tell())
            file.write(parameter.detach().contiguous().numpy().data)
    mapped = MappedFile(path)
    for parameter, offset in zip(parameters, offsets, strict=True):
        parameter.data = torch.from_numpy(mapped.array(offset, np.dtype(np.float32), tuple(parameter.shape)))
    return mapped
