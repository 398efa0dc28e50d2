"""The wheel: its contents, and its use without a clone."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (path,) = folder.glob("dragoman-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which pip installed the wheel."""
    folder = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(wheel)], check=True)
    return folder


def run_installed(installed: Path, code: str) -> str:
    """Runs code outside the checkout, with the installed packages first; returns its standard output."""
    program = f"import sys; sys.path.insert(0, {str(installed)!r})\n{code}"
    command = [sys.executable, "-c", program]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=installed).stdout.strip()


def test_wheel_contains_packages_data_and_licenses(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = ("dragoman_training", "dragoman_export", "dragoman_server", "dragoman")
    expected = {f"{package}/{name}" for package in packages for name in ("__init__.py", "py.typed")}
    expected |= {
        str(path.relative_to(ROOT / room))
        for room, folder in (
            ("server", "dragoman_server/bundles"),
            ("server", "dragoman_server/live/page"),
            ("training", "dragoman_training/recipes"),
        )
        for path in (ROOT / room / folder).rglob("*")
        if path.is_file()
    }
    expected |= {"dragoman/v1/generation.proto", "dragoman/v1/generation_pb2_grpc.py", "dragoman_server/server.yaml"}
    assert {f"dragoman_server/bundles/{name}/1/manifest.json" for name in ("de-en", "g2p-en")} <= expected
    assert expected <= names
    assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in names if ".dist-info/" in name}
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == set(packages)


def test_client_imports_nothing_of_the_server(installed: Path) -> None:
    libraries = {"torch", "onnx", "onnxruntime", "tokenizers", "numpy", "pydantic"}
    heavy = libraries | {"dragoman_server", "dragoman_training", "dragoman_export"}
    code = f"import dragoman, dragoman.cli; print(dragoman.__file__, {heavy} & set(sys.modules))"
    assert run_installed(installed, code) == f"{installed / 'dragoman' / '__init__.py'} set()"


def test_installed_server_finds_its_bundle(installed: Path) -> None:
    code = (
        "from dragoman_server.bundle.load import load_bundle; from dragoman_server.models.repository import "
        "SHIPPED_MODELS; print(load_bundle(SHIPPED_MODELS / 'g2p-en' / '1').path)"
    )
    assert Path(run_installed(installed, code)) == installed / "dragoman_server" / "bundles" / "g2p-en" / "1"
