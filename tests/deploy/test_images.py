"""The images in deploy/docker: the Dockerfile is clean, and the image for CPUs serves as the page there says."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.generate import CHART, DEPLOY
from deploy.tools import NoTools, hadolint
from tests.conftest import ROOT
from tests.deploy.conftest import Render, only
from tests.deploy.images import BASE, BUILD_BASE, Docker, missing_tools
from tests.deploy.test_chart_objects import VALUES
from tests.deploy.test_deploy_docs import PAGES, blocks
from tests.platforms.bounds import requirements
from tests.support.bundles import SHIPPED_G2P

FOLDER = DEPLOY / "docker"
PAGE = FOLDER / "README.md"
DOCKERFILES = [FOLDER / "Dockerfile", FOLDER / "import.Dockerfile", FOLDER / "train.Dockerfile"]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
ASK = "dragoman generate --model g2p-en transformer"
MOST_ADDED = 350_000_000  # bytes, by the image for CPUs to its base
NEED_ROOM = 4 << 30  # bytes of memory, for images to be kept in it

# Which the first of them takes, who has the image built.
pytestmark = pytest.mark.timeout(900)

INSTALLED = """
import importlib.metadata as metadata, importlib.util, json, os, pathlib, sys
import dragoman_server.process.app, dragoman_server.process.cli, dragoman_server.workers.worker_main
code = [path for path in pathlib.Path("/opt/dragoman").rglob("*.py")]
cached = {path: pathlib.Path(importlib.util.cache_from_source(path)) for path in code}
modules = [module.__spec__ for module in sys.modules.values() if module.__spec__ and module.__spec__.cached]
print(json.dumps({
    "packages": {each.name: each.version for each in metadata.distributions()},
    "application": sorted(path.name for path in pathlib.Path("/opt/dragoman/application").iterdir()),
    "compiled now": [module.name for module in modules if not pathlib.Path(module.cached).exists()],
    "bytecode": sum(path.is_file() for path in cached.values()),
    "not compiled": [str(path) for path, compiled in cached.items() if not compiled.is_file()],
    "checked": [str(path) for path in cached.values() if path.is_file() and path.read_bytes()[4:8] != b"\\1\\0\\0\\0"],
    "notices": sorted(path.name for path in pathlib.Path("/licenses").iterdir()),
    "writable": [top for top in ("/", "/opt/dragoman", "/etc", "/tmp", "/var/tmp") if os.access(top, os.W_OK)],
    "shells": [path for path in ("/bin/sh", "/bin/bash", "/bin/dash") if os.path.exists(path)],
}))
"""


def block_with(words: str) -> str:
    """The commands on the page that have these words in them."""
    (found,) = [block for block in blocks(PAGE, "sh") if re.search(words, block)]
    return found


BUILD = block_with(r"(?s)build(?!.*(EXTRAS|secret|my\.|import|train|--platform))")
BUILD_IMPORT = block_with("import.Dockerfile")
RUN = block_with(r"(?s)docker run (?!.*(--volume|--entrypoint))")
RUN_BUNDLE = block_with(r"--bundle /models --workers")
BILL_OF_MATERIALS = block_with("sbom")
EXTRAS_FOR_GPUS = re.search(r"EXTRAS=(\S+)", block_with("EXTRAS")).group(1)  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    reason = missing_tools()
    if reason is not None:
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    memory = Path("/dev/shm")
    quick = memory.is_dir() and shutil.disk_usage(memory).free > NEED_ROOM
    with tempfile.TemporaryDirectory(dir=memory if quick else None, ignore_cleanup_errors=True) as folder:
        engine = Docker(Path(folder))
        try:
            engine.run(BUILD)
            yield engine
        finally:
            engine.run("docker rm --all --force && docker rmi --all --force")


@pytest.fixture(scope="module")
def image(docker: Docker) -> dict[str, Any]:
    inspected: dict[str, Any] = json.loads(docker.run(f"docker inspect dragoman:{VERSION}"))[0]
    return inspected


@pytest.fixture(scope="module")
def installed(docker: Docker) -> dict[str, Any]:
    """What Python finds in the image when an arbitrary user runs it."""
    run = f"docker run --rm --read-only --user 4711:4711 --entrypoint python3 dragoman:{VERSION}"
    found: dict[str, Any] = json.loads(docker.run(f"{run} -c '{INSTALLED}'"))
    return found


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: str(path.name))
def test_dockerfiles_are_clean(dockerfile: Path) -> None:
    try:
        program = hadolint()
    except NoTools as error:
        pytest.fail(str(error)) if os.environ.get("CI") else pytest.skip(str(error))
    done = subprocess.run([program, dockerfile], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_what_the_image_says_of_itself(docker: Docker, image: dict[str, Any]) -> None:
    config = image["Config"]
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("Dragoman", VERSION, "Apache-2.0")
    assert docker.run(f"git cat-file -t {labels['revision']}") == "commit\n"
    assert labels["base.name"] == BASE
    assert "Healthcheck" not in config


def test_the_chart_and_the_image_agree(image: dict[str, Any], render: Render) -> None:
    pod = only(render(), "Deployment")["spec"]["template"]["spec"]
    (server,) = pod["containers"]
    config, context = image["Config"], pod["securityContext"]
    assert config["User"] == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert set(config["ExposedPorts"]) == {f"{port['containerPort']}/tcp" for port in server["ports"]}
    assert server["image"] == f"dragoman:{VERSION}"
    assert f"--tag {server['image']} ." in BUILD
    (gpu,) = only(render({"gpus": 1, "models": {"source": "claim", "claim": {"name": "models"}}}), "Deployment")[
        "spec"
    ]["template"]["spec"]["containers"]
    assert f"--tag {gpu['image']} ." in block_with("EXTRAS")
    (importing,) = only(render(VALUES["models-from-hugging-face"]), "Job")["spec"]["template"]["spec"]["containers"]
    assert f"--tag {importing['image']} ." in BUILD_IMPORT
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == VERSION


def test_it_adds_little_to_its_base(docker: Docker, image: dict[str, Any]) -> None:
    base = json.loads(docker.run(f"docker inspect {BASE}"))[0]
    added = image["Size"] - base["Size"]
    assert added < MOST_ADDED
    # Of which the page tells.
    told = int(re.search(r"adds (\d+) MB", PAGE.read_text(encoding="utf-8")).group(1))  # type: ignore[union-attr]
    assert added / 1e6 == pytest.approx(told, rel=0.05)


def test_nothing_is_in_it_that_the_server_does_not_need(installed: dict[str, Any]) -> None:
    packages = {name.lower() for name in installed["packages"]}
    assert packages.isdisjoint({"torch", "onnx", "pip", "setuptools", "hatchling", "cyclonedx-bom", "onnxruntime-gpu"})
    assert {"dragoman", "onnxruntime", "opentelemetry-sdk"} <= packages
    assert installed["application"] == ["dragoman", f"dragoman-{VERSION}.dist-info", "dragoman_server"]
    assert installed["shells"] == []


def test_libraries_are_those_of_the_constraints(installed: dict[str, Any]) -> None:
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    present = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in installed["packages"].items()}
    shared = pinned.keys() & present.keys()
    assert {"grpcio", "numpy", "onnxruntime"} <= shared
    assert {name: present[name] for name in shared} == {name: pinned[name] for name in shared}


def test_nothing_is_left_to_compile_or_to_write(installed: dict[str, Any]) -> None:
    assert installed["compiled now"] == []
    assert installed["not compiled"] == []
    assert installed["bytecode"] > 1000
    assert installed["checked"] == [], "bytecode that Python compares with the time of its source"
    assert installed["writable"] == []


def test_the_bill_of_materials_is_complete(docker: Docker, installed: dict[str, Any], tmp_path: Path) -> None:
    docker.run(BILL_OF_MATERIALS, tmp_path)
    bill = json.loads((tmp_path / "sbom.cdx.json").read_text(encoding="utf-8"))
    assert bill["bomFormat"] == "CycloneDX"
    listed = {component["name"]: component["version"] for component in bill["components"]}
    assert listed == installed["packages"]
    assert [component["name"] for component in bill["components"] if not component.get("licenses")] == []
    assert installed["notices"] == ["LICENSE", "NOTICE"]


@contextmanager
def serving(docker: Docker, commands: str, folder: Path) -> Iterator[Callable[[str], str]]:
    """Runs the server as the page says, and stops it. Gives a function that runs commands where its ports are."""
    container = docker.start(commands, folder)
    pid = ""

    def beside(command: str) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        inside = ["nsenter", "--net", "--target", pid, "bash", "-euc", command]
        done = subprocess.run(
            inside, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                pid = docker.run("docker inspect --format '{{.State.Pid}}' dragoman").strip()
                beside("curl --silent --fail http://localhost:9090/readyz")
                break
            except AssertionError:
                if container.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        yield beside
        docker.run("docker stop --time 40 dragoman")
        output, errors = container.communicate(timeout=60)
        assert container.returncode == 0, output + errors
    finally:
        container.kill()
        container.communicate()


def test_it_serves_as_nobody_and_writes_nowhere(docker: Docker, tmp_path: Path) -> None:
    with serving(docker, RUN, tmp_path) as beside:
        assert beside(ASK) == "T R AE N S F AO R M ER\n"
        pid = docker.run("docker inspect --format '{{.State.Pid}}' dragoman").strip()
        status = dict(re.findall(r"^(\w+):\t(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
        assert status["Uid"].split() == status["Gid"].split() == ["10001"] * 4
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == "1"
        mounts = [line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines()]
        (root,) = [options for _, point, _, options, *_ in mounts if point == "/"]
        assert "ro" in root.split(",")


def test_it_serves_a_model_that_is_mounted_with_workers(docker: Docker, tmp_path: Path) -> None:
    """Worker processes are started without a shell, too."""
    shutil.copytree(SHIPPED_G2P, tmp_path / "runs" / "my-bundle")
    with serving(docker, RUN_BUNDLE, tmp_path) as beside:
        beside(ASK)
        logged = docker.run("docker logs dragoman 2>&1")
    lines = [json.loads(line) for line in logged.splitlines()]
    (options,) = [line["options"] for line in lines if line["event"] == "configured"]
    assert options["host"].startswith("0.0.0.0 (/etc/dragoman/server.yaml")
    assert [line["path"] for line in lines if line["event"] == "loading"] == ["/models"]
    assert sum(line["event"] == "worker runs" for line in lines) == 2


def test_a_model_can_be_in_an_image(docker: Docker, tmp_path: Path) -> None:
    (block,) = blocks(PAGE, "dockerfile")
    (tmp_path / "my.Dockerfile").write_text(block, encoding="utf-8")
    shutil.copytree(SHIPPED_G2P, tmp_path / "runs" / "my-bundle")
    docker.run(block_with(r"my\.Dockerfile"), tmp_path)
    look = "from dragoman_server.bundle.load import load_bundle; import pathlib; load_bundle(pathlib.Path('/models'))"
    docker.run(f'docker run --rm --entrypoint python3 my-dragoman:1 -c "{look}"')


def test_the_page_on_deploying_has_the_same_commands() -> None:
    def commands(page: Path) -> set[str]:
        lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
        return {" ".join(line.split()) for line in lines if line.startswith("docker ")}

    assert len(commands(PAGES[0])) == 4
    assert commands(PAGES[0]) <= commands(PAGE)


def test_libraries_for_gpus_fit_together(docker: Docker, tmp_path: Path) -> None:
    """They exist for the image's Python, in versions that go with the rest. The gigabytes are left where they are."""
    # Earlier pips, such as Debian's, download all that they would install.
    fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), "pip>=25.3"]
    subprocess.run(fetch, check=True)
    (pip,) = tmp_path.glob("pip-*.whl")
    wanted = shlex.join(str(each) for extra in EXTRAS_FOR_GPUS.split(",") for each in requirements(extra))
    container = docker.run(
        f"NETWORK=host docker run --rm --volume $STORE/pip.conf:/etc/pip.conf:ro --volume {tmp_path}:/pip:ro "
        f"--volume $PWD/constraints.txt:/constraints.txt:ro --env PYTHONPATH=/pip/{pip.name} {BUILD_BASE} "
        "python3 -m pip install --dry-run --quiet --use-feature=fast-deps --constraint /constraints.txt --report - "
        f"--target /nowhere {wanted}"
    )
    chosen = {each["metadata"]["name"].lower() for each in json.loads(container)["install"]}
    assert {"onnxruntime-gpu", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-ml-py"} <= chosen
    assert chosen.isdisjoint({"onnxruntime", "torch"})
