"""The server as the first process of a container, to which the kernel delivers no signal that has no handler."""

import os
import subprocess
import sys

import pytest

# What takes its place imports nothing, and tells itself to stop.
CODE = """
import os, signal, sys, types
cli = types.ModuleType("dragoman_server.process.cli")
def app():
    assert os.getpid() == 1
    os.kill(1, signal.SIGTERM)
    for _ in range(1000):
        pass
    os._exit(9)
cli.app = app
sys.modules["dragoman_server.process.cli"] = cli
from dragoman_server.__main__ import main
main()
"""
NAMESPACE = ["unshare", "--pid", "--fork", *(["--user", "--map-root-user"] if os.geteuid() else [])]


def test_it_can_be_stopped_before_it_serves() -> None:
    allowed = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"needs a namespace for processes, which this machine does not allow: {allowed.stderr}")
    done = subprocess.run([*NAMESPACE, sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
