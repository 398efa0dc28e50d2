"""KServe's objects, by the models in its Python package.

The package can't be installed beside ours, and its models are classes that check nothing but what is missing. So they
are read, not imported: each class tells its fields, their types and their names in JSON.
"""

import ast
import functools
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deploy.tools import KSERVE, wheel

SCALARS: dict[str, type | tuple[type, ...]] = {"str": str, "int": int, "bool": bool, "float": (int, float)}
KINDS = {"ClusterServingRuntime": "V1alpha1ClusterServingRuntime", "InferenceService": "V1beta1InferenceService"}
KubernetesFaults = Callable[[Any, str], list[str]]


@dataclass(frozen=True)
class Model:
    """A class of the package.

    Attributes:
        types: name of a field in JSON -> its type, such as "list[V1Container]".
        required: names in JSON.
    """

    types: Mapping[str, str]
    required: frozenset[str]


def kserve_faults(document: Mapping[str, Any], of_kubernetes: KubernetesFaults) -> list[str]:
    """What is wrong with a ClusterServingRuntime or an InferenceService.

    Args:
        of_kubernetes: what is wrong with a value of a type that Kubernetes itself has.
    """
    return list(_faults(document, KINDS[document["kind"]], "", of_kubernetes))


def _faults(value: Any, kind: str, place: str, of_kubernetes: KubernetesFaults) -> Iterator[str]:
    if kind.startswith("list["):
        if not isinstance(value, list):
            yield f"{place}: is no list"
            return
        for number, each in enumerate(value):
            yield from _faults(each, kind[5:-1], f"{place}.{number}", of_kubernetes)
    elif kind.startswith("dict("):
        if not isinstance(value, Mapping):
            yield f"{place}: is no mapping"
            return
        for key, each in value.items():
            yield from _faults(each, kind[5:-1].partition(", ")[2], f"{place}.{key}", of_kubernetes)
    elif kind in SCALARS:
        if not isinstance(value, SCALARS[kind]) or (isinstance(value, bool) and kind != "bool"):
            yield f"{place}: {value!r} is no {kind}"
    elif (model := _model(kind)) is not None:
        if not isinstance(value, Mapping):
            yield f"{place}: is no mapping"
            return
        yield from (f"{place}: {name} is missing" for name in sorted(model.required - value.keys()))
        for name, each in value.items():
            if name in model.types:
                yield from _faults(each, model.types[name], f"{place}.{name}", of_kubernetes)
            else:
                yield f"{place}: there is no field {name}"
    elif kind not in ("object", "ResourceQuantity", "V1beta1MetricQuantity"):
        yield from (f"{place}.{fault}" for fault in of_kubernetes(value, _definition(kind)))


def _definition(kind: str) -> str:
    """What Kubernetes calls one of its own types: "V1Container" -> "io.k8s.api.core.v1.Container"."""
    if named := re.fullmatch(r"K8sIoApi([A-Z][a-z]+)(V\d)(\w+)", kind):
        return f"io.k8s.api.{named[1].lower()}.{named[2].lower()}.{named[3]}"
    group = "apimachinery.pkg.apis.meta" if kind == "V1ObjectMeta" else "api.core"
    return f"io.k8s.{group}.v1.{kind.removeprefix('V1')}"


@functools.cache
def _sources() -> Mapping[str, str]:
    """Name of a class -> the text of its module."""
    with zipfile.ZipFile(wheel(KSERVE)) as package:
        names = [name for name in package.namelist() if re.fullmatch(r"kserve/models/\w+\.py", name)]
        texts = [package.read(name).decode() for name in names]
    return {found[1]: text for text in texts if (found := re.search(r"^class (\w+)\(", text, re.MULTILINE))}


@functools.cache
def _model(kind: str) -> Model | None:
    text = _sources().get(kind)
    if text is None:
        return None
    definition = next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    tables = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in definition.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    names = tables["attribute_map"]
    make = next(node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    # Fields that may be missing are set only if they are not.
    always = {
        node.targets[0].attr
        for node in make.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
    }
    required = frozenset(names[name] for name in always & names.keys())
    return Model({names[name]: kind for name, kind in tables["openapi_types"].items()}, required)
