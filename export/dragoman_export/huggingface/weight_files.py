"""Reads the weights of a directory by name, one at a time, from safetensors or PyTorch files."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dragoman_export.errors import ExportError
from dragoman_export.huggingface.directory import read_object

FILES = ("model.safetensors", "pytorch_model.bin")
INDEX = ".index.json"
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class WeightFiles:
    """The tensors of a directory by name, in 32-bit floats. Safetensors files are read on demand, `.bin` files at once.

    Args:
        folder: Directory with one of FILES, or with its shards and their index. Safetensors are preferred.

    Raises:
        ExportError: There is no such file, or one is damaged, missing, or holds anything but tensors.
    """

    def __init__(self, folder: Path) -> None:
        self._readers: dict[str, Callable[[], Tensor]] = {}
        self._taken: set[str] = set()
        files, listed, index = _files(folder)
        for file in files:
            self._readers |= _safetensors(file) if file.suffix == ".safetensors" else _pickled(file)
        if missing := [name for name in listed if name not in self._readers]:
            raise ExportError(f"{index}: the shards lack {missing[0]}, which it lists")

    def __contains__(self, name: str) -> bool:
        return name in self._readers

    def take(self, *names: str, shape: tuple[int, ...]) -> Tensor:
        """Returns the first existing tensor of several synonymous names.

        Raises:
            ExportError: None exists, or it has another shape, or numbers that are not finite.
        """
        found = [name for name in names if name in self._readers]
        self._taken.update(found)
        if not found:
            raise ExportError(f"the weights lack {names[0]}" + (f" (or {', '.join(names[1:])})" if names[1:] else ""))
        tensor = self._read(found[0])
        if tuple(tensor.shape) != shape:
            raise ExportError(f"weight {found[0]} is {_size(tensor.shape)}, but config.json makes it {_size(shape)}")
        if not tensor.isfinite().all():
            raise ExportError(f"weight {found[0]} contains numbers that are not finite")
        return tensor

    def same(self, first: str, second: str) -> bool:
        """Returns whether two existing tensors are equal."""
        return torch.equal(self._read(first), self._read(second))

    def ignore(self, *names: str) -> None:
        """Excludes tensors, which may be missing, from `unused`."""
        self._taken.update(names)

    def unused(self) -> list[str]:
        """Returns the names of tensors that were not taken."""
        return sorted(self._readers.keys() - self._taken)

    def _read(self, name: str) -> Tensor:
        tensor = self._readers[name]()
        if tensor.dtype not in TYPES:
            raise ExportError(f"weight {name} is of type {tensor.dtype}; quantized checkpoints can't be imported")
        return tensor.float()


def _files(folder: Path) -> tuple[list[Path], list[str], Path]:
    """Returns the files, and of shards the names of tensors in the index, and that."""
    for name in FILES:
        if (folder / name).is_file():
            return [folder / name], [], folder
        if (index := folder / f"{name}{INDEX}").is_file():
            return _shards(index)
    raise ExportError(f"{folder}: no weights found; expected {' or '.join(FILES)}, or its shards with an index")


def _shards(index: Path) -> tuple[list[Path], list[str], Path]:
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(name, str) for name in places.values()):
        raise ExportError(f"{index}: weight_map is missing or damaged; expected the shard of each tensor")
    names = sorted(set(places.values()))
    for name in names:
        if Path(name).name != name:
            raise ExportError(f"{index}: {name!r} is not a plain file name")
        if not (index.parent / name).is_file():
            raise ExportError(f"{index.parent / name} is missing, but {index.name} lists it")
    return [index.parent / name for name in names], list(places), index


def _safetensors(path: Path) -> dict[str, Callable[[], Tensor]]:
    try:
        file: Any = safe_open(path, "pt")
        return {name: _lazy(file, name) for name in file.keys()}  # noqa: SIM118  # not a dictionary
    except (SafetensorError, OSError) as error:
        raise ExportError(f"{path}: cannot be read as safetensors ({error})") from None


def _lazy(file: Any, name: str) -> Callable[[], Tensor]:
    return lambda: file.get_tensor(name)


def _pickled(path: Path) -> dict[str, Callable[[], Tensor]]:
    """Reads a file of torch.save. Only tensors are loaded, so no code in it runs."""
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # written by PyTorch before 1.6, which cannot be mapped
        loaded = None
        with suppress(Exception):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # pickle raises various types
        loaded = None
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in loaded.items()
    ):
        raise ExportError(f"{path}: cannot be read as a PyTorch file that holds only tensors by name")
    return {name: partial(_identity, tensor) for name, tensor in loaded.items()}


def _identity(tensor: Tensor) -> Tensor:
    return tensor


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"
