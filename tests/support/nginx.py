"""nginx as a proxy that balances calls among servers, on a port of the loopback interface."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dragoman.local import LOOPBACK, free_port
from tests.support.waiting import until

# fail_timeout: nginx tries a failed server again after a second; by default after ten.
CONFIGURATION = """\
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log stderr error;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/client;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream servers {{
        {servers}
    }}
    server {{
        listen {address} http2;
        location / {{
            grpc_pass grpc://servers;
        }}
    }}
}}
"""


@contextmanager
def nginx(servers: Sequence[str], folder: Path) -> Iterator[int]:
    """Runs nginx in front of the servers and yields its port; `folder` must be empty."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        reason = "needs nginx: on Debian, apt-get install nginx"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    port = free_port()
    lines = "\n        ".join(f"server {each} fail_timeout=1s;" for each in servers)
    configuration = folder / "nginx.conf"
    configuration.write_text(CONFIGURATION.format(folder=folder, servers=lines, address=f"{LOOPBACK}:{port}"))
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([program, "-c", str(configuration), "-e", "stderr"], stdout=output, stderr=output)
    try:
        until(lambda: process.poll() is not None or _listens(port), otherwise=log.read_text)
        assert process.poll() is None, log.read_text()
        yield port
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((LOOPBACK, port)):
        return True
    return False
