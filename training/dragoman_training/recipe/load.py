"""Reads recipe files, applies --set overrides, and describes mistakes in one sentence."""

import difflib
import json
import re
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from dragoman_training.errors import RecipeError
from dragoman_training.files import write_text
from dragoman_training.recipe.data import DataFile, PairsFile
from dragoman_training.recipe.schema import Recipe

SHIPPED_RECIPES = Path(__file__).parents[1] / "recipes"

# What pydantic's error types expected, for error messages.
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "a path",  # all free text in a recipe is paths
    "string_too_short": "a name",
    "path_type": "a path",
    "list_type": "a list",
    "tuple_type": "a list",
    "model_type": "a mapping of keys",
    "finite_number": "a finite number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "string_pattern_mismatch": "the number 1234.5 as this side writes it, such as 1.234,5",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


class _Loader(yaml.SafeLoader):
    """Reads 1e-3 as a number (a string in YAML 1.1) and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Builds a mapping; a duplicate key is an error."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                line = node.value[i][0].start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: the key {key} is duplicated; keep one")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes strings that `_Loader` would read as numbers; a file may be called 1e3."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def find_recipe(name: Path) -> Path:
    """Returns the path of a recipe: the path itself if it exists, else the shipped recipe of that name.

    Raises:
        RecipeError: Neither exists.
    """
    for path in (name, SHIPPED_RECIPES / name.name, SHIPPED_RECIPES / f"{name.name}.yaml"):
        if path.is_file():
            return path
    shipped = ", ".join(sorted(path.stem for path in SHIPPED_RECIPES.glob("*.yaml")))
    raise RecipeError(f"{name}: no such recipe; name a YAML file or a shipped recipe ({shipped})")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads and validates a recipe.

    A relative path of data or of a teacher is resolved against the current directory, then against the directory of
    the recipe. A path that exists in neither stays unchanged: a run can be loaded and exported without its data.

    Args:
        path: YAML file.
        overrides: Assignments `key.with.dots=value`, applied in order.

    Raises:
        RecipeError: The recipe is invalid; the message names the key.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: cannot be read ({error})") from None
    document = _parse(text, str(path))
    if not isinstance(document, dict):
        raise RecipeError(f"{path}: expected a mapping with the keys {', '.join(Recipe.model_fields)}")
    for assignment in overrides:
        _override(document, assignment)
    try:
        as_json = json.dumps(document, default=str)
    except (TypeError, ValueError, RecursionError) as error:  # a date as a key, or a value that contains itself
        raise RecipeError(f"{path}: expected keys and values as in a shipped recipe ({error})") from None
    try:
        # Validated as JSON, since strict mode then means what YAML users expect: "3" is not a number and true is not 1,
        # but a list may become a tuple and a string a path.
        recipe = Recipe.model_validate_json(as_json, strict=True)
    except ValidationError as error:
        raise RecipeError(f"{path}: {_describe(error, Recipe)}") from None
    return _resolve_paths(recipe, path.parent)


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Writes the recipe with all defaults and overrides as YAML that `load_recipe` can read."""
    write_text(path, yaml.dump(recipe.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _parse(text: str, origin: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise RecipeError(f"{origin} is not valid YAML: it is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise RecipeError(f"{origin} is not valid YAML: {position}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{origin} is not valid YAML: {' '.join(str(error).split())}") from None


def _override(document: dict[str, Any], assignment: str) -> None:
    """Applies one `key.with.dots=value` to the document; the value is parsed as YAML."""
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise RecipeError(f"--set {assignment}: expected key=value, for example training.steps=1000")
    *parents, last = key.split(".")
    section = document
    for parent in parents:
        if section.get(parent) is None:
            section[parent] = {}
        section = section[parent]
        if not isinstance(section, dict):
            raise RecipeError(f"--set {assignment}: {parent} is a value, not a section")
    section[last] = _parse(value, f"--set {assignment}")


def _resolve_paths(recipe: Recipe, folder: Path) -> Recipe:
    """Returns the recipe with each path that exists only beside the recipe file pointing there."""

    def resolve(path: Path) -> Path:
        return folder / path if not path.exists() and (folder / path).exists() else path

    def resolve_entry(entry: DataFile) -> DataFile:
        if isinstance(entry, Path):
            return resolve(entry)
        if isinstance(entry, PairsFile):
            return entry.model_copy(update={"file": resolve(entry.file)})
        return entry.model_copy(update={"source": resolve(entry.source), "target": resolve(entry.target)})

    def resolve_all(entries: list[DataFile] | None) -> list[DataFile] | None:
        return entries and [resolve_entry(entry) for entry in entries]

    data = recipe.data
    resolved = {"train": resolve_all(data.train), "dev": resolve_all(data.dev), "test": resolve_all(data.test)}
    training = recipe.training.model_copy(update={"teachers": [resolve(run) for run in recipe.training.teachers]})
    return recipe.model_copy(update={"data": data.model_copy(update=resolved), "training": training})


def _describe(error: ValidationError, model: type[BaseModel]) -> str:
    """Describes the first mistake: the dotted key, what was expected, and the actual value."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if not str(part).startswith("(")]  # without the tags of unions
    key = ".".join(path)
    kind = first["type"]
    if kind == "extra_forbidden":
        known = list(dict.fromkeys(key for one in _sections(model, path[:-1]) for key in one.model_fields))
        close = difflib.get_close_matches(path[-1], known, 1)
        hint = f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"
        return f"unknown key {key} ({hint})"
    if kind == "missing":
        return f"the key {key} is missing"
    if kind == "value_error":
        return f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    expected = _EXPECTED.get(kind, first["msg"].removeprefix("Input should be "))
    return f"{key}: expected {expected.format(**first.get('ctx', {}))}, but got {first['input']!r}"


def _sections(model: type[BaseModel], path: list[str]) -> list[type[BaseModel]]:
    """Returns the section at a dotted path, or those that may stand there."""
    models = [model]
    for key in path:
        if key.isdigit():
            continue
        fields = [one.model_fields[key] for one in models if key in one.model_fields]
        models = [found for field in fields for found in _models(field.annotation)] or models
    return models


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Returns the models inside a type: list[Path | Model] -> [Model]."""
    arguments = typing.get_args(annotation)
    if not arguments and isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in arguments for model in _models(argument)]
