"""The commands and statements of deploy/README.md and the chart's README.md are correct."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import CHART, DEPLOY
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import INTEGERS, Manifest, Shape
from dragoman_server.config import ServerConfig
from dragoman_server.runtime.device import unfit_for_gpus
from tests.conftest import ROOT
from tests.deploy.conftest import Render, only
from tests.deploy.kube_schemas import MINORS, faults
from tests.support.bundles import SHIPPED_G2P
from tests.support.certificates import Authority

SCRIPTS = Path(sys.executable).parent
PAGES = [DEPLOY / "README.md", CHART / "README.md"]


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [block for of, block in found if of == language]


def named_block(page: Path, name: str) -> str:
    """Returns the YAML block whose first line is "# NAME"."""
    (found,) = [block for block in blocks(page, "yaml") if block.startswith(f"# {name}\n")]
    return found


def helm_commands() -> list[tuple[Path, list[str]]]:
    return [
        (page, shlex.split(line))
        for page in PAGES
        for block in blocks(page, "sh")
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith(("helm install", "helm upgrade"))
    ]


@pytest.mark.parametrize(("page", "command"), helm_commands(), ids=lambda value: "")
def test_helm_commands_work(tools: tuple[Path, Path], tmp_path: Path, page: Path, command: list[str]) -> None:
    """Runs them as a dry run without a cluster."""
    (tmp_path / "deploy").symlink_to(DEPLOY)
    for name in {"g2p.yaml", "import.yaml"}.intersection(command):
        (tmp_path / name).write_text(named_block(page, name), encoding="utf-8")
    arguments = [each for each in command[2:] if each != "--install"]
    done = subprocess.run(
        [tools[0], "install", *arguments, "--dry-run=client"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # The names that the page mentions.
    assert 'name: "g2p-dragoman"\n' in done.stdout
    assert 'namespace: "speech"\n' in done.stdout


def test_helm_commands_are_found() -> None:
    assert {page.parent.name for page, _ in helm_commands()} == {"deploy", "dragoman"}


def test_the_kustomize_overlay_works(tools: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(DEPLOY / "kustomize", tmp_path / "dragoman" / "deploy" / "kustomize")
    overlay = tmp_path / "speech"
    overlay.mkdir()
    (overlay / "kustomization.yaml").write_text(named_block(PAGES[0], "kustomization.yaml"), encoding="utf-8")
    (overlay / "server.yaml").write_text("max_rows: 7\n", encoding="utf-8")
    done = subprocess.run([tools[1], "kustomize", overlay], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    assert [faults(document, MINORS[-1]) for document in documents] == [[] for _ in documents]
    assert {document["metadata"]["namespace"] for document in documents} == {"speech"}
    container = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"].startswith("registry.example/dragoman:")
    assert only(documents, "ConfigMap")["data"]["server.yaml"] == "max_rows: 7\n"


def test_every_example_is_listed() -> None:
    text = (CHART / "README.md").read_text(encoding="utf-8")
    examples = {path.name for path in (DEPLOY / "helm" / "examples").glob("*.yaml")}
    assert set(re.findall(r"\(\.\./examples/([^)]+)\)", text)) == examples


def test_the_documented_error_is_real(tools: tuple[Path, Path]) -> None:
    (shown,) = [block for block in blocks(CHART / "README.md", "") if block.startswith("Error: ")]
    command = [str(tools[0]), "template", "g2p", str(CHART), "--set", "config.port=1"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    # The template in which helm finds the error varies.
    places = re.compile(r"templates/\w+\.yaml")
    assert places.sub("", shown.strip()) in places.sub("", said)


def test_documented_secrets_match_the_chart(tools: tuple[Path, Path], tmp_path: Path, render: Render) -> None:
    """Runs the documented commands without a cluster."""
    pair = Authority(tmp_path, "anyone").sign("server")
    pair.cert.rename(tmp_path / "tls.crt")
    pair.key.rename(tmp_path / "tls.key")
    (tmp_path / "ca.crt").write_bytes((tmp_path / "tls.crt").read_bytes())
    (tmp_path / "token").write_text("hf_token", encoding="utf-8")
    page = "".join(block for block in blocks(PAGES[0], "sh") if "create secret" in block)
    made = {}
    for line in page.replace("\\\n", " ").splitlines():
        command = shlex.split(line, comments=True)
        if command[:2] == ["python", "-m"]:
            subprocess.run([sys.executable, *command[1:]], cwd=tmp_path, capture_output=True, check=True)
        elif command[0] == "kubectl":
            command = [str(tools[1]), *command[1:], "--dry-run=client", "--output=json"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            secret = json.loads(done.stdout)
            made[secret["metadata"]["name"]] = set(secret["data"])
    default = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["models"]["import"]["token"]["key"]
    assert made.pop("hugging-face") == {default}
    values = dict(re.findall(r"--set (\w+)\.secretName=([\w-]+)", page))
    documents = render({section: {"secretName": name} for section, name in values.items()})
    options = yaml.safe_load(only(documents, "ConfigMap")["data"]["server.yaml"])
    example = yaml.safe_load((DEPLOY / "helm" / "examples" / "tls-and-keys.yaml").read_text(encoding="utf-8"))
    authority = example["tls"]["clientAuthoritySecretName"]
    assert {example["tls"]["secretName"], authority, example["apiKeys"]["secretName"]} == set(made)
    assert made.pop(authority) == {example["tls"]["clientAuthorityKey"]}
    wanted = [{Path(options[option]).name for option in of} for of in (("tls_cert", "tls_key"), ("api_keys",))]
    assert made == dict(zip(values.values(), wanted, strict=True))


def notes_of(helm: Path, values: dict[str, Any]) -> str:
    command = [str(helm), "install", "g2p", str(CHART), "--namespace", "speech", "--dry-run=client", "--values", "-"]
    done = subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, check=True)
    return done.stdout.partition("NOTES:")[2]


EVERYONE, NARROWED = "everyone, without a key, from anywhere in the cluster", "that networkPolicy.clients names"
PLAIN, PLAIN_KEYS = "anyone on the network can read it:", "anyone on the network can read it, including keys:"
ALL_ADMINISTRATE, NOBODY, SOME = (
    "All of them may load and unload",
    "Nobody may load and unload",
    "Only clients with an admin key",
)
CLIENTS: list[dict[str, Any]] = [{"podSelector": {}}]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, {EVERYONE, PLAIN, NOBODY}),
        ({"config": {"admin": True}}, {EVERYONE, PLAIN, ALL_ADMINISTRATE}),
        ({"networkPolicy": {"clients": CLIENTS}}, {NARROWED, PLAIN, NOBODY}),
        ({"networkPolicy": {"enabled": False, "clients": CLIENTS}}, {EVERYONE, PLAIN, NOBODY}),
        ({"apiKeys": {"secretName": "keys"}, "networkPolicy": {"clients": CLIENTS}}, {NARROWED, PLAIN_KEYS, SOME}),
        ({"apiKeys": {"secretName": "k"}, "tls": {"secretName": "t"}, "config": {"admin": False}}, {NOBODY}),
    ],
    ids=lambda value: "",
)
def test_notes_state_who_may_call(tools: tuple[Path, Path], values: dict[str, Any], told: set[str]) -> None:
    notes = notes_of(tools[0], values)
    sentences = {EVERYONE, NARROWED, PLAIN, PLAIN_KEYS, ALL_ADMINISTRATE, NOBODY, SOME}
    assert {sentence for sentence in sentences if sentence in notes} == told


TLS, MUTUAL = {"secretName": "t"}, {"secretName": "t", "clientAuthoritySecretName": "a"}
OF_TLS, OF_MUTUAL = {"--ca", "--server-name"}, {"--ca", "--server-name", "--cert", "--key"}


@pytest.mark.parametrize(
    ("values", "options", "key"),
    [
        ({}, set(), False),
        ({"tls": TLS}, OF_TLS, False),
        ({"tls": MUTUAL}, OF_MUTUAL, False),
        ({"tls": MUTUAL, "apiKeys": {"secretName": "k"}}, OF_MUTUAL, True),
        ({"apiKeys": {"secretName": "k"}}, set(), True),
    ],
    ids=lambda value: "",
)
def test_notes_have_the_client_options(
    tools: tuple[Path, Path], values: dict[str, Any], options: set[str], key: bool
) -> None:
    notes = notes_of(tools[0], values)
    (line,) = [line.strip() for line in notes.splitlines() if line.startswith("  dragoman ")]
    program, name, *arguments = shlex.split(line)
    assert {each for each in arguments if each.startswith("--")} == {"--address", *options}
    assert ("export DRAGOMAN_API_KEY=" in notes) == key
    if options == OF_MUTUAL:
        shown = subprocess.run([SCRIPTS / program, name, "--help"], capture_output=True, text=True, check=True).stdout
        assert {*options, "--address"} <= set(re.findall(r"--[\w-]+", shown))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "To avoid this, set replicas: 2."),
        ({"replicas": 2}, None),
        ({"autoscaling": {"by": "hpa"}}, "To avoid this, set autoscaling.minReplicas: 2."),
        ({"replicas": 1, "autoscaling": {"by": "hpa", "minReplicas": 2}}, None),
    ],
    ids=lambda value: "",
)
def test_notes_warn_of_a_single_pod(tools: tuple[Path, Path], values: dict[str, Any], told: str | None) -> None:
    notes = notes_of(tools[0], values)
    assert ("Draining its node stops it" in notes) == (told is not None)
    assert told is None or told in notes


ON_A_GPU: dict[str, Any] = {"gpus": 1, "models": {"source": "claim", "claim": {"name": "models"}}}


@pytest.mark.parametrize("values", [{}, ON_A_GPU, {"image": {"tag": "mine"}}], ids=["cpu", "gpu", "tag"])
def test_notes_explain_how_to_build_the_image(tools: tuple[Path, Path], render: Render, values: dict[str, Any]) -> None:
    """The commands are those of deploy/docker/README.md, and push the image that pods use."""
    notes = notes_of(tools[0], values)
    lines = [shlex.split(line) for line in notes.splitlines() if line.startswith(("  docker ", "  helm "))]
    build, push, upgrade = lines
    told = [shlex.split(block.replace("\\\n", " ")) for block in blocks(DEPLOY / "docker" / "README.md", "sh")]
    revision = ["--build-arg", "REVISION=$(git rev-parse HEAD)"]
    build_as_told = [*build[:4], *revision, *build[4:-2], build[-2].removeprefix("registry.example/"), build[-1]]
    if "image" not in values:
        assert build_as_told in told
    *command, name, value = upgrade[4:]
    assert command == ["--namespace", "speech", "--reuse-values"]
    assert (upgrade[:4], name) == (["helm", "upgrade", "g2p", "deploy/helm/dragoman"], "--set")
    pushed = {**values, "image": {**values.get("image", {}), "repository": value.removeprefix("image.repository=")}}
    asked = only(render(pushed), "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert build[-2] == push[-1] == asked
    assert "is in no registry" not in notes_of(tools[0], pushed)


def test_notes_name_precisions_that_are_not_for_gpus(tools: tuple[Path, Path]) -> None:
    *some, last = INTEGERS
    assert f"one in {', '.join(some)} or {last} is for CPUs" in notes_of(tools[0], ON_A_GPU)
    assert "GPUs need" not in notes_of(tools[0], {})


def test_the_chart_rejects_the_shipped_model_on_gpus(refusal: Callable[..., str]) -> None:
    precision = load_bundle(SHIPPED_G2P).manifest.precision
    assert unfit_for_gpus(precision) is not None
    assert f"(models.source: shipped) is in {precision}, which is for CPUs" in refusal({"gpus": 1})


def test_documented_seconds_match_the_chart(render: Render) -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `?([\w.]+)`? \| (\d+) \|$", text, re.MULTILINE))
    pod = only(render(), "Deployment")["spec"]["template"]["spec"]
    assert int(table["terminationGracePeriodSeconds"]) == pod["terminationGracePeriodSeconds"]
    (option, value, grace) = re.search(r"--set config\.(\w+)=(\d+)` makes it (\d+)", text).groups()  # type: ignore[union-attr]
    pod = only(render({"config": {option: int(value)}}), "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == int(grace)


def test_clients_find_a_new_pod_before_an_old_one_stops(render: Render) -> None:
    """All connections reach their age, plus or minus a tenth, and the DNS cache expires."""
    documents, cached = render(), 30
    options = yaml.safe_load(only(documents, "ConfigMap")["data"]["server.yaml"])
    least = 1.1 * options["max_connection_age_seconds"] + cached
    spec = only(documents, "Deployment")["spec"]
    assert spec["minReadySeconds"] + options["drain_delay_seconds"] >= least
    assert f"{cached} seconds (`ttl` and `cache` in CoreDNS)" in " ".join(PAGES[0].read_text("utf-8").split())


def test_options_and_values_in_the_page_exist() -> None:
    """Names with dots are values of the chart; names with underscores are options, metrics or manifest fields."""
    page = re.sub(r"^```.*?^```$", "", PAGES[0].read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`([a-zA-Z]+(?:[._][a-zA-Z]+)+)`", page))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    options, manifest = set(ServerConfig.model_fields), set(Manifest.model_fields) | set(Shape.model_fields)
    metrics = set(re.findall(r"^\| `(\w+)`", (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8"), re.MULTILINE))

    def is_value(name: str) -> bool:
        found: Any = values
        for part in name.split("."):
            if not isinstance(found, dict) or part not in found:
                return name.removeprefix("config.") in options
            found = found[part]
        return True

    dotted = {name for name in named if name.split(".")[0] in values}
    plain = {name for name in named if "." not in name and name.islower() and name != "round_robin"}
    assert len(dotted) > 10
    assert {name for name in dotted if not is_value(name)} == set()
    assert plain - options - manifest - metrics == set()


def test_applied_files_exist() -> None:
    named = re.findall(r"(?:--filename|--kustomize) (deploy/\S+?)[\s`,]", PAGES[0].read_text(encoding="utf-8"))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []
