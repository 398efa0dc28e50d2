"""Reads recipe files, applies --set overrides and reports mistakes in one sentence."""

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
from dragoman_training.recipe.schema import DataFile, ParallelFiles, Recipe

SHIPPED_RECIPES = Path(__file__).parents[1] / "recipes"

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


class _Loader(yaml.SafeLoader):
    """YAML as a reader expects it: 1e-3 is a number (YAML 1.1 says a string), and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping; a key that stands twice is an error."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                line = node.value[i][0].start_mark.line + 1
                raise yaml.YAMLError(f"line {line}: the key {key} stands twice")
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Writes in quotes what `_Loader` would take for a number: a file may be called 1e3."""


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise RecipeError(f"{where} is not valid YAML: {place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from None


def _override(document: dict[str, Any], assignment: str) -> None:
    """Puts one `key.with.dots=value` into the document; the value is read as YAML."""
    key, equals, value = assignment.partition("=")
    if not equals or not key:
        raise RecipeError(f"--set {assignment}: expected key=value, for example training.steps=1000")
    *parents, last = key.split(".")
    place = document
    for parent in parents:
        if place.get(parent) is None:
            place[parent] = {}
        place = place[parent]
        if not isinstance(place, dict):
            raise RecipeError(f"--set {assignment}: {parent} holds a value, not keys")
    place[last] = _parse(value, f"--set {assignment}")


def find_recipe(name: Path) -> Path:
    """A recipe's file: the path as given, or else the recipe of that name that ships in the package.

    Raises:
        RecipeError: there is neither.
    """
    for path in (name, SHIPPED_RECIPES / name.name, SHIPPED_RECIPES / f"{name.name}.yaml"):
        if path.is_file():
            return path
    shipped = ", ".join(sorted(path.stem for path in SHIPPED_RECIPES.glob("*.yaml")))
    raise RecipeError(f"{name}: no such recipe; give a YAML file or one of the shipped ones ({shipped})")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Reads and validates a recipe.

    Relative data paths are looked for from the current directory and then from the recipe's own; a path found in
    neither stays as it is (a run can be loaded and exported without its data).

    Args:
        path: the YAML file.
        overrides: `key.with.dots=value`, in order.

    Raises:
        RecipeError: one sentence naming the key.
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
        # By way of JSON because there strict means what a reader of YAML expects: "3" is no number and true is no 1,
        # while a list may become a tuple and a text a path.
        recipe = Recipe.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        raise RecipeError(f"{path}: {sentence(error, Recipe)}") from None
    return _located(recipe, path.parent)


def save_recipe(recipe: Recipe, path: Path) -> None:
    """Writes the recipe, defaults and overrides included, as YAML that `load_recipe` reads back."""
    write_text(path, yaml.dump(recipe.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def _located(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with each data path that exists only beside the recipe file made to point there."""

    def locate(path: Path) -> Path:
        return folder / path if not path.exists() and (folder / path).exists() else path

    def locate_all(entries: list[DataFile] | None) -> list[DataFile] | None:
        return entries and [
            locate(entry)
            if isinstance(entry, Path)
            else ParallelFiles(source=locate(entry.source), target=locate(entry.target))
            for entry in entries
        ]

    data = recipe.data
    found = {"train": locate_all(data.train), "dev": locate_all(data.dev), "test": locate_all(data.test)}
    return recipe.model_copy(update={"data": data.model_copy(update=found)})


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
