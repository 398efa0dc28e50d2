"""Prometheus and its tool, for the tests of what is in deploy/monitoring."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = ("prometheus", "promtool")


@pytest.fixture(scope="session")
def prometheus_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The programs of Debian's package prometheus. Where they are not installed they are unpacked, and nothing more:
    the package would start a service, which takes a port that our servers like to have.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not _found():
            patch.setenv("PATH", str(_unpacked(tmp_path_factory.mktemp("prometheus"))), prepend=os.pathsep)
        if not _found():
            reason = "needs the programs prometheus and promtool: on Debian and Ubuntu, apt-get install prometheus"
            pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
        yield


def _found() -> bool:
    return all(map(shutil.which, PROGRAMS))


def _unpacked(folder: Path) -> Path:
    """A folder for $PATH with the programs in it, as long as there is a Debian that knows where to get them."""
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=folder, capture_output=True, check=False)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return folder / "usr" / "bin"
