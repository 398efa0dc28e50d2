"""What pydantic found wrong with a recipe, as one sentence for the person who wrote it."""

import difflib
import typing
from typing import Any

from pydantic import BaseModel, ValidationError

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a path",  # no key but the paths is free text
    "path_type": "a path",
    "list_type": "a list",
    "tuple_type": "a list",
    "model_type": "a mapping of keys",
    "finite_number": "a finite number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


def sentence(error: ValidationError, model: type[BaseModel]) -> str:
    """The first thing wrong, naming the key with dots, what was expected and what stands there."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"] if not str(part).startswith("(")]  # without the tags of unions
    key = ".".join(place)
    kind = first["type"]
    if kind == "extra_forbidden":
        known = list(_section(model, place[:-1]).model_fields)
        close = difflib.get_close_matches(place[-1], known, 1)
        hint = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"unknown key {key} ({hint})"
    if kind == "missing":
        return f"the key {key} is missing"
    if kind == "value_error":
        return f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    expected = _EXPECTED.get(kind, first["msg"].removeprefix("Input should be "))
    return f"{key}: expected {expected.format(**first.get('ctx', {}))}, but got {first['input']!r}"


def _section(model: type[BaseModel], place: list[str]) -> type[BaseModel]:
    """The model that stands at a dotted place."""
    for key in place:
        if key.isdigit():
            continue
        found = _models(model.model_fields[key].annotation)
        if found:
            model = found[0]
    return model


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that occur in a type: list[Path | Model] -> [Model]."""
    arguments = typing.get_args(annotation)
    if not arguments and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in arguments for model in _models(argument)]
