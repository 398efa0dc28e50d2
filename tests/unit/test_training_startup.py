"""What the trainer sets up before PyTorch is loaded: it starts again once, with the same arguments."""

import os
import subprocess
import sys

import pytest

from dragoman_training.optimization.allocator import _glibc
from dragoman_training.startup import HUGE_PAGES, MERGE_FREED_BLOCKS, allocator_settings, configure_process

SHOW = """
import os, sys
from dragoman_training.startup import configure_process

configure_process()
print(os.environ.get("GLIBC_TUNABLES"), os.environ["OMP_WAIT_POLICY"], sys.argv[1:])
"""
ALLOCATE = """
from dragoman_training.startup import configure_process

configure_process()
import torch
from dragoman_training.optimization.allocator import keep_freed_memory

keep_freed_memory()
places = set()
for _ in range(20):
    places.add(torch.zeros(2**22).data_ptr())  # and freed
print(len(places))
"""
needs_glibc = pytest.mark.skipif(_glibc() is None, reason="needs glibc")


def run(code: str, *arguments: str, **variables: str) -> str:
    given = {name: value for name, value in os.environ.items() if name not in ("GLIBC_TUNABLES", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env={**given, **variables}, capture_output=True, text=True, check=True).stdout


@needs_glibc
def test_the_process_starts_again_with_the_same_arguments() -> None:
    assert run(SHOW, "--set", "a b") == f"{allocator_settings()} PASSIVE ['--set', 'a b']\n"


@needs_glibc
def test_settings_of_the_user_stay() -> None:
    policy = {"OMP_WAIT_POLICY": "ACTIVE"}
    assert run(SHOW, **policy, GLIBC_TUNABLES="glibc.malloc.perturb=1") == "glibc.malloc.perturb=1 ACTIVE []\n"
    other = "glibc.rtld.nns=4"
    assert run(SHOW, **policy, GLIBC_TUNABLES=other) == f"{other}:{allocator_settings()} ACTIVE []\n"


@needs_glibc
def test_a_freed_tensor_makes_room_for_the_next() -> None:
    assert run(ALLOCATE) == "1\n"


@pytest.mark.parametrize(
    ("version", "settings"),
    [
        ("glibc 2.36", f"{HUGE_PAGES}:{MERGE_FREED_BLOCKS}"),
        ("glibc 2.38", HUGE_PAGES),
        ("glibc 2.41.9000", HUGE_PAGES),
        ("glibc 3.0", HUGE_PAGES),
    ],
)
def test_settings_depend_on_the_version(version: str, settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: version)
    assert allocator_settings() == settings


@pytest.mark.parametrize("version", ["", None, "musl", "musl 1.2", ValueError])
def test_other_c_libraries_need_no_settings(
    version: str | type[Exception] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confstr(name: str) -> str | None:
        if isinstance(version, type):
            raise version(name)
        return version

    monkeypatch.setattr(os, "confstr", confstr)
    monkeypatch.setattr(os, "execv", lambda *arguments: pytest.fail("it started again"))
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    configure_process()
    assert "GLIBC_TUNABLES" not in os.environ
