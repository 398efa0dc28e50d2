"""Identifies the files that an import was made from. Imports nothing heavy, see `existing`."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.errors import ExportError

FINGERPRINT = "files_sha256"  # key of the manifest's `training`
NOTES = (".md",)  # endings of files that do not change the model


def fingerprint(imported: ImportOptions) -> str:
    """Returns a SHA-256 of the files of a model and of its tokenizer; empty for a model of the hub.

    Raises:
        ExportError: A file cannot be read.
    """
    if not Path(imported.model).exists():
        return ""
    digest = hashlib.sha256(imported.program.encode())
    for path in (Path(imported.model), *imported.tokenizer):
        for file in _files(path):
            digest.update(f"\n{file.name}\n".encode())
            try:
                with file.open("rb") as opened:
                    digest.update(hashlib.file_digest(opened, "sha256").digest())
            except OSError as error:
                raise ExportError(f"{file}: cannot be read ({error.strerror})") from None
    return digest.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    """Yields a file, or the files of a directory that are neither hidden nor notes, in order of their names."""
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.iterdir()):
        if file.is_file() and not file.name.startswith(".") and file.suffix not in NOTES:
            yield file
