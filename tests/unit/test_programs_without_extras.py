"""The programs where only the client is installed, and how the threads of training wait."""

import os
import subprocess
import sys
from types import ModuleType

import pytest

import dragoman_export.cli
import dragoman_training.cli
from dragoman_training.errors import missing_extra


@pytest.mark.parametrize(
    ("package", "program", "arguments", "extra"),
    [
        ("yaml", "dragoman_training.cli", ["tiny"], "training"),
        ("torch", "dragoman_training.cli", ["tiny"], "training"),
        ("onnx", "dragoman_export.cli", ["--check", "bundle"], "export"),
        ("torch", "dragoman_export.cli", ["run", "bundle"], "export"),
    ],
)
def test_what_is_not_installed_is_named_with_its_extra(
    package: str, program: str, arguments: list[str], extra: str
) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from {program} import app; app({arguments!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr
        == f"error: {package} is not installed; `pip install '.[{extra}]'` in a clone of Dragoman installs it\n"
    )


@pytest.mark.parametrize(
    ("package", "function", "name", "arguments"),
    [
        ("tokenizers", "main", "dragoman-serve", []),
        ("onnxruntime", "main", "dragoman-serve", []),
        ("pydantic", "main", "dragoman-serve", []),
        ("yaml", "main", "dragoman-serve", []),
        ("onnxruntime", "distill", "dragoman-distill", ["teacher", "sources", "out"]),
        ("yaml", "distill", "dragoman-distill", []),
    ],
)
def test_the_server_names_what_it_lacks(package: str, function: str, name: str, arguments: list[str]) -> None:
    lacking = f"sys.modules[{package!r}] = None; sys.argv[1:] = {arguments}"
    code = f"import sys; {lacking}; from dragoman_server.__main__ import {function}; {function}()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    sentence = f"{package} is not installed; `pip install '.[server]'` in a clone of Dragoman installs it"
    assert done.stderr == f"{name}: {sentence}\n"


def test_a_missing_module_of_ours_is_a_defect() -> None:
    with pytest.raises(ModuleNotFoundError):
        missing_extra(ModuleNotFoundError("it is missing", name="dragoman_training.gone"), "training")


@pytest.mark.parametrize("program", [dragoman_training.cli, dragoman_export.cli], ids=["train", "export"])
@pytest.mark.parametrize(("wish", "policy"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_without_spinning_unless_told_to(
    program: ModuleType, wish: str | None, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", wish or "")
    if wish is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    found: list[str | None] = []
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.perturb=0")  # so that no process starts anew
    monkeypatch.setattr(program, "app", lambda: found.append(os.environ.get("OMP_WAIT_POLICY")))
    program.main()
    assert found == [policy]


def test_the_server_says_how_grpc_behaves_before_it_is_loaded() -> None:
    """What gRPC reads of the environment it reads when it is imported."""
    code = "import sys, dragoman_server.process.cli; assert 'grpc' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_distillation_handles_signals_before_it_loads_what_takes_long() -> None:
    code = "import sys, dragoman_server.distill.cli; assert not {'numpy', 'onnxruntime', 'pydantic'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
