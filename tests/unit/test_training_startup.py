"""What the trainer sets up before PyTorch is loaded: it starts again once, with the same arguments."""

import gc
import os
import subprocess
import sys
from contextlib import suppress

import pytest

from dragoman_training import startup
from dragoman_training.optimization.allocator import _glibc
from dragoman_training.startup import (
    HUGE_PAGES,
    JEMALLOC_CONF,
    MERGE_FREED_BLOCKS,
    allocates_with_glibc,
    allocator_settings,
    configure_process,
    importing,
)

SHOW = """
import os, sys
from dragoman_training.startup import configure_process

configure_process()
chosen = {name: os.environ[name] for name in ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF") if name in os.environ}
print(chosen, os.environ["OMP_WAIT_POLICY"], sys.argv[1:])
"""
ALLOCATE = """
from dragoman_training import startup

startup.find_library = lambda name: None
startup.configure_process()
import torch
from dragoman_training.optimization.allocator import keep_freed_memory

keep_freed_memory()
places = set()
for _ in range(20):
    places.add(torch.zeros(2**22).data_ptr())  # and freed
print(len(places))
"""
needs_glibc = pytest.mark.skipif(_glibc() is None, reason="needs glibc")


SET = ("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF", "OMP_WAIT_POLICY")


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes what the environment of the tests has of these settings."""
    for name in SET:
        monkeypatch.delenv(name, raising=False)


def run(code: str, *arguments: str, **variables: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True).stdout


@needs_glibc
def test_the_process_starts_again_with_the_same_arguments() -> None:
    assert run(SHOW, "--set", "a b") == f"{allocator_settings()} PASSIVE ['--set', 'a b']\n"
    assert allocator_settings()


@needs_glibc
def test_settings_of_the_user_stay() -> None:
    policy = {"OMP_WAIT_POLICY": "ACTIVE"}
    for mine in ({"GLIBC_TUNABLES": "glibc.malloc.perturb=1"}, {"LD_PRELOAD": "libmymalloc.so"}):
        assert run(SHOW, **policy, **mine) == f"{mine} ACTIVE []\n"


@needs_glibc
def test_with_glibc_a_freed_tensor_makes_room_for_the_next() -> None:
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
def test_settings_of_glibc_depend_on_its_version(version: str, settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "confstr", lambda name: version)
    monkeypatch.setattr(startup, "find_library", lambda name: None)
    assert allocator_settings() == {"GLIBC_TUNABLES": settings}
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.rtld.nns=4")
    assert allocator_settings() == {"GLIBC_TUNABLES": f"glibc.rtld.nns=4:{settings}"}
    assert allocates_with_glibc()


@needs_glibc
def test_a_better_allocator_is_used_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"jemalloc": "libjemalloc.so.2", "tcmalloc_minimal": "libtcmalloc_minimal.so.4"}
    monkeypatch.setattr(startup, "find_library", installed.get)
    assert allocator_settings()["LD_PRELOAD"] == "libtcmalloc_minimal.so.4"
    del installed["tcmalloc_minimal"]
    assert allocator_settings() == {"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": JEMALLOC_CONF}
    monkeypatch.setenv("MALLOC_CONF", "narenas:1")
    monkeypatch.setenv("LD_PRELOAD", "libmine.so")
    assert allocator_settings() == {"LD_PRELOAD": "libmine.so:libjemalloc.so.2", "MALLOC_CONF": "narenas:1"}
    monkeypatch.setenv("LD_PRELOAD", allocator_settings()["LD_PRELOAD"])
    assert allocator_settings() == {}, "once is enough"
    assert not allocates_with_glibc()


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
    configure_process()
    assert "GLIBC_TUNABLES" not in os.environ
    assert not allocates_with_glibc()


def test_imports_collect_no_garbage() -> None:
    before = gc.get_freeze_count()
    kept: list[list[int]] = [[] for _ in range(1000)]
    try:
        with suppress(ModuleNotFoundError), importing():
            assert not gc.isenabled()
            raise ModuleNotFoundError
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(kept)
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as pytest_collection_finish does
