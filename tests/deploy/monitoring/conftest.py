"""Prometheus and promtool, for the tests of deploy/monitoring."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAMS = ("prometheus", "promtool")


@pytest.fixture(scope="session")
def prometheus_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Puts the programs of Debian's package prometheus on the PATH.

    If they are missing, the package is unpacked, but not installed: that would start a service on a port that our
    servers use.
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
    """Returns a directory for $PATH; on Debian with package lists, it has the programs."""
    if shutil.which("apt-get") and shutil.which("dpkg-deb"):
        subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=folder, capture_output=True, check=False)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
    return folder / "usr" / "bin"
