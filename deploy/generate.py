"""Writes the generated files of this folder; `--check` only reports which are out of date.

The server's options give `config` in the chart's values.schema.json, values.yaml gives the table in the chart's
README.md, and the chart gives the Kustomize base.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from deploy.tools import NoTools, kubernetes_tools
from dragoman_server.config.options import ServerConfig

DEPLOY = Path(__file__).parent
CHART = DEPLOY / "helm" / "dragoman"
BASE = DEPLOY / "kustomize" / "base"
BEGIN, END = "<!-- values -->", "<!-- /values -->"
# Labels of Helm's objects that Kustomize does not need.
HELM_LABELS = ("app.kubernetes.io/managed-by", "helm.sh/chart")
Files = dict[Path, str]


def schema_of_options() -> dict[str, Any]:
    """Returns JSON schemas of the server's options by name; null, allowed for each, means the default."""
    generated = ServerConfig.model_json_schema(mode="validation")["properties"]
    options = {}
    for name, schema in generated.items():
        schema = {key: value for key, value in schema.items() if key not in ("title", "default", "format")}
        description = schema.pop("description")
        if {"type": "null"} not in schema.get("anyOf", ()):
            schema = {"anyOf": [schema, {"type": "null"}]}
        options[name] = {"description": description, **schema}
    return options


def values_schema() -> str:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    schema["properties"]["config"]["properties"] = schema_of_options()
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def values(text: str) -> Iterator[tuple[str, str, str]]:
    """Yields the values in values.yaml: path, default as YAML in one line, and the comment above."""
    lines = text.splitlines()

    def comment(line: int) -> str:
        first = line
        while first and lines[first - 1].lstrip().startswith("#"):
            first -= 1
        return " ".join(text.strip().removeprefix("#").strip() for text in lines[first:line])

    def walk(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
        assert isinstance(node, yaml.MappingNode)
        for key, value in node.value:
            name, description = (*path, key.value), comment(key.start_mark.line)
            if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style and not description:
                yield from walk(value, name)
            elif name == ("config",):
                yield ".".join(name), "", description
                yield from walk(value, name)
            else:
                default = yaml.safe_load(yaml.serialize(value))
                shown = yaml.safe_dump(default, default_flow_style=True, width=10**6, sort_keys=False)
                yield ".".join(name), shown.removesuffix("\n").removesuffix("\n..."), description

    yield from walk(yaml.compose(text), ())


def chart_readme() -> str:
    text = (CHART / "README.md").read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    cell = "| `{}` | {} | {} |"
    rows = [
        cell.format(path, f"`{default}`" if default else "", description.replace("|", "\\|"))
        for path, default, description in values((CHART / "values.yaml").read_text(encoding="utf-8"))
    ]
    table = "\n".join(["| value | default | |", "|---|---|---|", *rows])
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def render(helm: Path, *arguments: str) -> list[dict[str, Any]]:
    """Returns the objects that `helm template` renders from the chart."""
    command = [str(helm), "template", "dragoman", str(CHART), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document is not None]


def without_helm(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object without its namespace and without traces of the chart."""
    bare: dict[str, Any] = json.loads(json.dumps(document))
    bare["metadata"].pop("namespace", None)
    for label in HELM_LABELS:
        bare["metadata"].get("labels", {}).pop(label, None)
    if bare["kind"] == "Deployment":
        pods = bare["spec"]["template"]["metadata"]
        pods.get("annotations", {}).pop("checksum/config", None)
        if not pods.get("annotations"):
            pods.pop("annotations", None)
    return bare


def kustomize_base(helm: Path) -> Files:
    """Returns the objects of the chart with its default values, one file per kind, and the server's options."""
    head = "# Generated from the Helm chart by `make chart`; change it there, or in an overlay.\n"
    kinds: dict[str, list[dict[str, Any]]] = {}
    files: Files = {}
    for document in map(without_helm, render(helm)):
        if document["kind"] == "ConfigMap":
            files[BASE / "server.yaml"] = head + document["data"]["server.yaml"]
        else:
            kinds.setdefault(document["kind"].lower(), []).append(document)
    for kind, documents in kinds.items():
        files[BASE / f"{kind}.yaml"] = head + yaml.safe_dump_all(documents, sort_keys=False, width=110)
    # Changed options rename the ConfigMap, which replaces the pods.
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(f"{kind}.yaml" for kind in kinds),
        "configMapGenerator": [{"name": "dragoman", "files": ["server.yaml"]}],
    }
    files[BASE / "kustomization.yaml"] = head + yaml.safe_dump(kustomization, sort_keys=False)
    return files


def expected_files(helm: Path) -> Files:
    files = {CHART / "values.schema.json": values_schema(), CHART / "README.md": chart_readme()}
    return {**files, **kustomize_base(helm)}


def left_over(files: Files) -> list[Path]:
    """Returns files of the Kustomize base that are no longer generated."""
    return sorted(path for path in BASE.glob("*") if path not in files)


def outdated(files: Files) -> list[Path]:
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    return sorted([*stale, *left_over(files)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    check = parser.parse_args().check
    try:
        helm, _ = kubernetes_tools()
    except NoTools as error:
        sys.exit(f"{parser.prog}: {error}")
    if not check:
        schema = CHART / "values.schema.json"
        schema.write_text(values_schema(), encoding="utf-8")  # first, since helm reads it
    files = expected_files(helm)
    if check:
        if stale := outdated(files):
            sys.exit(
                "\n".join(["out of date, run `make chart`:", *(f"  {path.relative_to(DEPLOY)}" for path in stale)])
            )
        return
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for path in left_over(files):
        path.unlink()


if __name__ == "__main__":
    main()
