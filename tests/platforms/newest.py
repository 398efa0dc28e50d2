"""Tests of the client and the server, run on the newest gRPC that the bounds in pyproject.toml allow.

`pip install .` may bring newer ones than constraints.txt holds this environment to. They are installed into a folder
that goes before it for these tests: those that call, stream, cancel and watch.

    python -m tests.platforms.newest [ARGUMENT OF PYTEST ...]     half a minute, beside the download
"""

import os
import subprocess
import sys
import tempfile

from tests.platforms.bounds import ROOT, requirements, run

OF_GRPC = ("googleapis", "grpcio", "protobuf")
TESTS = (
    "tests/unit/test_client_channel.py",
    "tests/unit/test_client_requests.py",
    "tests/unit/test_api_calls.py",
    "tests/unit/test_api_health.py",
    "tests/unit/test_api_responses.py",
    "tests/unit/test_server_leaving_clients.py",
    "tests/unit/test_api_tls.py",
    "tests/integration/test_client_calls.py",
    "tests/integration/test_client_command.py",
    "tests/integration/test_proxies.py",
    "tests/integration/test_server_connections.py",
    "tests/integration/test_server_drain.py",
)


def main() -> int:
    """Installs, says what, and runs the tests; pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = [str(each) for each in requirements("server") if each.name.startswith(OF_GRPC)]
        pip = (sys.executable, "-m", "pip")
        run(*pip, "install", "--quiet", "--only-binary=:all:", "--target", folder, *wanted, "grpcio-status")
        print(run(*pip, "list", "--path", folder, "--format", "freeze"), flush=True)
        pytest = (sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile")
        environment = os.environ | {"PYTHONPATH": folder}
        return subprocess.run([*pytest, *(sys.argv[1:] or TESTS)], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
