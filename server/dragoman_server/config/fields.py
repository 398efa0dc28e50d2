"""What the declaration of an option says about its values: their type, bounds and secrecy."""

import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ByteSize, SecretStr
from pydantic.fields import FieldInfo


def kinds(annotation: Any) -> tuple[Any, ...]:
    """Returns the types that a value other than None may have; the choices of a Literal count as types.

    `int | None` -> (int,); `Literal["a", "b"]` -> ("a", "b"); `tuple[str, ...]` -> (tuple,).
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return kinds(arguments[0])
    if origin is Literal:
        return arguments
    if origin in (types.UnionType, typing.Union):
        return tuple(kind for argument in arguments for kind in kinds(argument))
    return () if annotation is type(None) else (origin or annotation,)


def is_secret(field: FieldInfo) -> bool:
    return SecretStr in kinds(field.annotation)


def is_path(field: FieldInfo) -> bool:
    return Path in kinds(field.annotation)


def is_switch(field: FieldInfo) -> bool:
    return kinds(field.annotation) == (bool,)


def placeholder(name: str, field: FieldInfo) -> str:
    """Returns the placeholder of the value in --help: "N", "PATH", "auto|cpu|cuda"."""
    allowed = kinds(field.annotation)
    if all(isinstance(kind, str) for kind in allowed):
        return "|".join(allowed)
    if name.endswith("_seconds"):
        return "SECONDS"
    return {int: "N", float: "X", ByteSize: "SIZE", Path: "PATH"}.get(allowed[0], "TEXT")


def expectation(field: FieldInfo) -> str | None:
    """Describes valid values, as in "expected a number"; None if the type does not say enough."""
    allowed = kinds(field.annotation)
    if all(isinstance(kind, str) for kind in allowed):
        *others, last = allowed
        return f"{', '.join(others)} or {last}" if others else str(last)
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        ByteSize: "a size such as 512MiB",
        Path: "a path",
        str: "text",
    }
    if len(allowed) != 1 or allowed[0] not in words:
        return None
    return words[allowed[0]] + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    least = next((bound.ge for bound in field.metadata if isinstance(bound, Ge)), None)
    most = next((bound.le for bound in field.metadata if isinstance(bound, Le)), None)
    over = next((bound.gt for bound in field.metadata if isinstance(bound, Gt)), None)
    under = next((bound.lt for bound in field.metadata if isinstance(bound, Lt)), None)
    if least is not None and most is not None:
        return f" from {least} to {most}"
    words = [("of at least", least), ("above", over), ("of at most", most), ("below", under)]
    return "".join(f" {word} {bound}" for word, bound in words if bound is not None)
