"""Reads CTranslate2's model.bin: variables by name, in versions 4 to 6 of the binary format."""

import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dragoman_export.errors import ExportError

VERSIONS = range(4, 7)  # of the binary format; variables have types and aliases since 4
_DTYPES = {0: torch.float32, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.float16, 5: torch.bfloat16}


@dataclass(frozen=True)
class ModelFile:
    """The content of a file.

    Attributes:
        spec: Name of the kind of model.
        variables: Tensors by name, in the type of the file.
        aliases: Variable name by alias.
    """

    spec: str
    variables: dict[str, Tensor]
    aliases: dict[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.variables or name in self.aliases

    def __getitem__(self, name: str) -> Tensor:
        return self.variables[self.aliases.get(name, name)]

    def same(self, first: str, second: str) -> bool:
        """Returns whether two names mean the same variable."""
        return self.aliases.get(first, first) == self.aliases.get(second, second)


class _Reader:
    """Reads little-endian numbers and names in sequence."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self._content, self._at)
        self._at += struct.calcsize(f"<{form}")
        return int(value)

    def name(self) -> str:
        return bytes(self.bytes(self.number("H"))[:-1]).decode()  # its length counts a NUL

    def bytes(self, count: int) -> memoryview:
        if self._at + count > len(self._content):
            raise ValueError("it ends too early")
        found = memoryview(self._content)[self._at : self._at + count]
        self._at += count
        return found

    def variable(self) -> tuple[str, Tensor]:
        name = self.name()
        shape = [self.number("I") for _ in range(self.number("B"))]
        kind, size = self.number("B"), self.number("I")
        if kind not in _DTYPES:
            raise ValueError(f"variable {name} has an unknown type ({kind})")
        content = bytearray(self.bytes(size))
        return name, torch.frombuffer(content, dtype=_DTYPES[kind]).reshape(shape)


def read_model_file(path: Path) -> ModelFile:
    """Reads model.bin.

    Raises:
        ExportError: The file is missing, damaged or of another version.
    """
    try:
        reader = _Reader(path.read_bytes())
        version = reader.number("I")
        if version not in VERSIONS:
            expected = f"{VERSIONS.start} to {VERSIONS.stop - 1}"
            raise ExportError(f"{path}: binary version {version}; expected {expected} (CTranslate2's model.bin)")
        spec, _revision = reader.name(), reader.number("I")
        variables = dict(reader.variable() for _ in range(reader.number("I")))
        aliases = {reader.name(): reader.name() for _ in range(reader.number("I"))}
    except OSError as error:
        raise ExportError(f"{path}: {error.strerror or error}") from None
    except (struct.error, UnicodeDecodeError, RuntimeError, ValueError) as error:
        raise ExportError(f"{path}: damaged, or not a model of CTranslate2 ({error})") from None
    if missing := [name for name in aliases.values() if name not in variables]:
        raise ExportError(f"{path}: damaged; variable {missing[0]} is missing")
    return ModelFile(spec, variables, aliases)
