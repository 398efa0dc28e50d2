"""Runs tests of client and server with the newest gRPC packages that pyproject.toml allows.

`pip install .` may install newer ones than constraints.txt pins here. They go into a folder that precedes this
environment on the path, for the tests that call, stream, cancel and watch.

    python -m tests.platforms.newest [ARGUMENT OF PYTEST ...]     a minute, plus the download
"""

import os
import subprocess
import sys
import tempfile

from tests.platforms.bounds import ROOT, requirements, run

GRPC_PACKAGES = ("googleapis", "grpcio", "protobuf")
TESTS = (
    "tests/unit/test_client_channel.py",
    "tests/unit/test_api_calls.py",
    "tests/unit/test_api_health.py",
    "tests/unit/test_server_api_disconnects.py",
    "tests/unit/test_api_tls.py",
    "tests/integration/test_client_calls.py",
    "tests/integration/test_server_drain.py",
)


def main() -> int:
    """Installs the packages, prints their releases, runs the tests, and returns pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        packages = [str(package) for package in requirements("server") if package.name.startswith(GRPC_PACKAGES)]
        pip = (sys.executable, "-m", "pip")
        run(
            *pip,
            "install",
            "--quiet",
            "--no-compile",
            "--only-binary=:all:",
            "--target",
            folder,
            *packages,
            "grpcio-status",
        )
        print(run(*pip, "list", "--path", folder, "--format", "freeze"), flush=True)
        pytest = (sys.executable, "-m", "pytest")
        environment = os.environ | {"PYTHONPATH": folder}
        return subprocess.run([*pytest, *(sys.argv[1:] or TESTS)], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
