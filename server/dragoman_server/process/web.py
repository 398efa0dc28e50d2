"""The HTTP port: /metrics for Prometheus; /livez, /readyz and /startupz for the kubelet; a page for people at /.

It answers from threads of its own, so that it can report a hanging event loop.
"""

import json
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from dragoman_server.live.history import History, NotServedError
from dragoman_server.process.readiness import Probes

log = structlog.get_logger()

CLIENT_SECONDS = 10.0  # for a client to send its request, or to read the response
MAX_CONNECTIONS = 32
PLAIN = "text/plain; charset=utf-8"
PAGE = Path(__file__).parents[1] / "live" / "page"
PAGE_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# The page contacts only this server, runs only its own scripts, and can't be framed.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def serve_http(
    host: str, port: int, registry: CollectorRegistry, probes: Probes, history: History | None = None
) -> ThreadingHTTPServer:
    """Starts to serve metrics and probes.

    Args:
        history: The data of the page; None for no page.

    Raises:
        OSError: The port can't be opened.
    """
    answers = {"/livez": probes.livez, "/readyz": probes.readyz, "/startupz": probes.startupz}
    files = {} if history is None else _page_files()

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS
        server_version, sys_version = "dragoman", ""

        def do_GET(self) -> None:
            try:
                url = urlsplit(self.path)
            except ValueError:  # "http://[/metrics"
                self._answer(HTTPStatus.BAD_REQUEST, PLAIN, b"the URL is invalid\n")
                return
            if url.path == "/metrics":
                encode, kind = self._encoder()
                self._answer(HTTPStatus.OK, kind, encode(registry))
            elif answer := answers.get(url.path):
                refusal = answer()
                status = HTTPStatus.OK if refusal is None else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, PLAIN, f"{refusal or 'ok'}\n".encode())
            elif history is not None and url.path == "/live.json":
                self._live(history, url.query)
            elif file := files.get(url.path):
                self._answer(HTTPStatus.OK, *file, PAGE_HEADERS)
            else:
                there = " ".join([*(["/"] if files else []), "/metrics", *answers])
                self._answer(HTTPStatus.NOT_FOUND, PLAIN, f"there is {there}\n".encode())

        do_HEAD = do_GET

        def _encoder(self) -> tuple[Callable[[CollectorRegistry], bytes], str]:
            """Returns the writer of metrics and its content type: those that the client asks for, if it is clear."""
            try:
                return choose_encoder(self.headers.get("Accept") or "")
            except (TypeError, ValueError):  # "version=one"
                return choose_encoder("")

        def _live(self, history: History, query: str) -> None:
            parameters = parse_qs(query)
            try:
                after = float(parameters.get("after", ["0"])[-1])
                document = history.document(parameters.get("model", [""])[-1], after)
            except ValueError:
                self._answer(HTTPStatus.BAD_REQUEST, PLAIN, b"after is a number: seconds since 1970\n")
            except NotServedError:
                self._answer(HTTPStatus.NOT_FOUND, PLAIN, b"no such model is served\n")
            else:
                document["state"] = probes.readyz() or "serving"
                self._answer(HTTPStatus.OK, "application/json", json.dumps(document).encode(), PAGE_HEADERS)

        def _answer(self, status: HTTPStatus, kind: str, body: bytes, headers: Mapping[str, str] = {}) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Logs nothing: probes come every few seconds, and URLs of strangers don't belong in the log."""

    server = _Server((host, port), Handler)
    Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


def _page_files() -> dict[str, tuple[str, bytes]]:
    """Returns content type and content of the page's files, by URL path; "/" is the page itself."""
    files = {file.name: (PAGE_TYPES[file.suffix], file.read_bytes()) for file in sorted(PAGE.iterdir())}
    return {"/": files.pop("index.html"), **{f"/{name}": file for name, file in files.items()}}


class _Server(ThreadingHTTPServer):
    """Serves each of up to MAX_CONNECTIONS connections in a thread; one more closes the oldest.

    So slow or silent clients can't lock out the kubelet, which would then kill the process.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self._free = BoundedSemaphore(MAX_CONNECTIONS)
        self._lock = Lock()
        self._open: dict[Any, None] = {}  # sockets, oldest first
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:  # as for gRPC, "::" includes IPv4, whatever the system's default
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._close_oldest()
            if not self._free.acquire(timeout=1):  # not the clients are slow, but the server
                self.shutdown_request(request)
                return
        with self._lock:
            self._open[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads can be started
            self._forget(request)
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def _forget(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        self._free.release()

    def _close_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._open), None)
            self._open.pop(oldest, None)
            if oldest is not None:
                with suppress(OSError):  # it may just have closed
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs a bug, but nothing about clients that disconnect early."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            log.error("an HTTP request failed", exc_info=error)
