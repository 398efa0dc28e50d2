"""The plain HTTP port: /metrics for Prometheus; /livez, /readyz, /startupz for the kubelet, which has no certificate.

It answers from threads of its own, so that it can tell of an event loop that hangs.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

# Far more than the longest step of the event loop; a loop that hangs so long has clients waiting.
HANG_SECONDS = 10.0
BEAT_SECONDS = 0.5
CLIENT_SECONDS = 10.0  # that a client may take to say what it wants


class Probes:
    """What the three probes answer.

    They differ in what Kubernetes does about a "no": before `startupz` says yes it waits and asks no other; where
    `readyz` says no it sends no requests; where `livez` says no it kills the process.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beat = clock()
        self._started = False
        self._unready: str | None = "the model is loading"
        self._failure: str | None = None

    def serving(self) -> None:
        """Requests are answered from now on."""
        self._started, self._unready = True, None

    def not_serving(self, reason: str) -> None:
        self._unready = reason

    def failed(self, reason: str) -> None:
        """The process is beyond hope, whatever it still does."""
        self._failure = self._unready = reason

    def beat(self) -> None:
        """To be called by the event loop, more often than HANG_SECONDS."""
        self._beat = self._clock()

    async def beat_forever(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def startupz(self) -> str | None:
        """None for yes, else why not; also of the others."""
        return None if self._started else self._unready

    def readyz(self) -> str | None:
        return self._unready or self.livez()

    def livez(self) -> str | None:
        if self._failure is not None:
            return self._failure
        hanging = self._clock() - self._beat
        return f"the event loop has been hanging for {hanging:.0f} s" if hanging > HANG_SECONDS else None


def serve_http(host: str, port: int, registry: CollectorRegistry, probes: Probes) -> ThreadingHTTPServer:
    """Starts to serve metrics and probes.

    Raises:
        OSError: the port can't be had.
    """
    answers = {"/livez": probes.livez, "/readyz": probes.readyz, "/startupz": probes.startupz}

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS
        server_version, sys_version = "dragoman", ""

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept") or "")
                self._answer(HTTPStatus.OK, kind, encode(registry))
            elif answer := answers.get(path):
                refusal = answer()
                status = HTTPStatus.OK if refusal is None else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, "text/plain; charset=utf-8", f"{refusal or 'ok'}\n".encode())
            else:
                there = " ".join(["/metrics", *answers])
                self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", f"there is {there}\n".encode())

        do_HEAD = do_GET

        def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing: a probe comes every few seconds, and what strangers ask for is not ours to repeat."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64
        address_family = _family(host, port)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Says nothing of clients that leave before they have their answer."""

    server = Server((host, port), Handler)
    Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _family(host: str, port: int) -> socket.AddressFamily:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
