"""Checks the files of a Hugging Face directory, so that what is damaged is named before the library reads it."""

import json
from pathlib import Path
from typing import Any

from dragoman_export.errors import ExportError

CONFIG, ADAPTER = "config.json", "adapter_config.json"
SHOWN = 40  # characters of a wrong value
SUFFIXES = (".bin", ".json", ".model", ".safetensors", ".spm", ".txt")  # of files that an import may read


def check_directory(folder: Path) -> None:
    """Refuses a directory that cannot be a model.

    Raises:
        ExportError: It has no config.json or can't be listed, contains an adapter or links to missing files.
    """
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    except OSError as error:
        raise ExportError(f"{folder}: cannot be listed ({error.strerror})") from None
    for path in files:
        if path.is_symlink() and not path.exists():
            raise ExportError(f"{path}: links to {path.readlink()}, which is missing")
    if (folder / ADAPTER).exists():
        raise ExportError(f"{folder / ADAPTER}: adapters can't be imported; merge it into its base model and save that")
    if not (folder / CONFIG).is_file():
        raise ExportError(f"{folder}: not a Hugging Face model; config.json is missing")


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file.

    Raises:
        ExportError: The file cannot be read, or is not a JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ExportError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{path}: expected a JSON object in UTF-8 ({error})") from None
    if not isinstance(document, dict):
        raise ExportError(f"{path}: expected a JSON object, not {json.dumps(document)[:SHOWN]}")
    return document
