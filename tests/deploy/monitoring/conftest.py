"""Prometheus and its tool, for the tests of what is in deploy/monitoring."""

import os
import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def prometheus_installed() -> None:
    """Debian's package prometheus, with promtool in it."""
    if shutil.which("prometheus") and shutil.which("promtool"):
        return
    if shutil.which("apt-get") and os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "prometheus"]
        subprocess.run(install, check=True, env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"})
    elif os.environ.get("CI"):
        pytest.fail("needs the programs prometheus and promtool")
    else:
        pytest.skip("needs the programs prometheus and promtool: on Debian and Ubuntu, apt-get install prometheus")
