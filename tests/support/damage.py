"""Damages to directories of Hugging Face models."""

import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.huggingface_models import write_model

WEIGHTS, PICKLED, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
FAILING = "/proc/self/mem"  # a file that cannot be read, not even by root
Damage = Callable[[Path], object]
Tensors = Mapping[str, Tensor]


def all_of(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


def remove(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return damage


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def write(name: str, content: str | bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def cut(name: str, size: int) -> Damage:
    """Keeps the first `size` bytes of a file; all but the last ones if it is negative."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def link(name: str, target: str) -> Damage:
    """Puts a symbolic link in a file's place."""

    def damage(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return damage


def folder_for(name: str) -> Damage:
    """Puts a directory in a file's place."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def take(layout: str, *names: str) -> Damage:
    """Copies files from the model of another layout."""

    def damage(folder: Path) -> None:
        other = write_model(folder.parent, layout)
        for name in names:
            shutil.copyfile(other / name, folder / name)

    return damage


def change(name: str, **keys: Any) -> Damage:
    """Sets keys of a JSON object; those that are `...` are removed."""

    def damage(folder: Path) -> None:
        document = json.loads((folder / name).read_text()) | keys
        kept = {key: value for key, value in document.items() if value is not ...}
        (folder / name).write_text(json.dumps(kept))

    return damage


def swap(name: str, first: str, second: str) -> Damage:
    """Exchanges the values of two keys of a JSON object."""

    def damage(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        document[first], document[second] = document[second], document[first]
        (folder / name).write_text(json.dumps(document))

    return damage


def retype(name: str, kind: Callable[[Any], Any]) -> Damage:
    """Passes all values of a JSON object through a function."""

    def damage(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({key: kind(value) for key, value in document.items()}))

    return damage


def rewrite(new: Callable[[Tensors], Tensors]) -> Damage:
    """Replaces the weights."""
    return lambda folder: save_file(dict(new(load_file(folder / WEIGHTS))), folder / WEIGHTS, {"format": "pt"})


def weight(name: str, new: Callable[[Tensor], Tensor]) -> Damage:
    """Replaces one weight."""
    return rewrite(lambda tensors: {**tensors, name: new(tensors[name]).contiguous()})


def pickled(new: Callable[[Tensors], object]) -> Damage:
    """Puts a PyTorch file with something else in the place of the weights."""

    def damage(folder: Path) -> None:
        torch.save(new(load_file(folder / WEIGHTS)), folder / PICKLED)
        (folder / WEIGHTS).unlink()

    return damage


def sharded(listed: Callable[[dict[str, str]], dict[str, str]], *damages: Damage) -> Damage:
    """Splits the weights into two shards, with an index that lists what the function makes of it."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        places = {name: SHARDS[index % 2] for index, name in enumerate(tensors)}
        for shard in SHARDS:
            save_file({name: tensors[name] for name in places if places[name] == shard}, folder / shard)
        (folder / INDEX).write_text(json.dumps({"weight_map": listed(places)}))

    return all_of(damage, *damages)


class Harmful:
    """When unpickled, creates the file `harmed` in the working directory."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("harmed"),)


def harmful_pickle(name: str) -> Damage:
    """Puts a pickle that runs code in the place of the weights, of the format before PyTorch 1.6."""
    content = pickle.dumps({name: Harmful()}, protocol=2)
    return all_of(remove(WEIGHTS), write(PICKLED, content))
