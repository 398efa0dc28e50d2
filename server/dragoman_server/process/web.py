"""The plain HTTP port: /metrics for Prometheus; /livez, /readyz, /startupz for the kubelet; a page for people at /.

It answers from threads of its own, so that it can tell of an event loop that hangs.
"""

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Lock, Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from dragoman_server.live.files import HEADERS, page_files
from dragoman_server.live.history import History, UnknownModelError
from dragoman_server.process.probes import Probes

CLIENT_SECONDS = 10.0  # that a client may take to say what it wants, or to take what it gets
MOST_CONNECTIONS = 32
PLAIN = "text/plain; charset=utf-8"


def serve_http(
    host: str, port: int, registry: CollectorRegistry, probes: Probes, history: History | None = None
) -> ThreadingHTTPServer:
    """Starts to serve metrics and probes.

    Args:
        history: what the page draws; None for no page.

    Raises:
        OSError: the port can't be had.
    """
    answers = {"/livez": probes.livez, "/readyz": probes.readyz, "/startupz": probes.startupz}
    files = {} if history is None else page_files()

    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_SECONDS
        server_version, sys_version = "dragoman", ""

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            if url.path == "/metrics":
                encode, kind = choose_encoder(self.headers.get("Accept") or "")
                self._answer(HTTPStatus.OK, kind, encode(registry))
            elif answer := answers.get(url.path):
                refusal = answer()
                status = HTTPStatus.OK if refusal is None else HTTPStatus.SERVICE_UNAVAILABLE
                self._answer(status, PLAIN, f"{refusal or 'ok'}\n".encode())
            elif history is not None and url.path == "/live.json":
                self._live(history, url.query)
            elif file := files.get(url.path):
                self._answer(HTTPStatus.OK, file.kind, file.content, HEADERS)
            else:
                there = " ".join([*(["/"] if files else []), "/metrics", *answers])
                self._answer(HTTPStatus.NOT_FOUND, PLAIN, f"there is {there}\n".encode())

        do_HEAD = do_GET

        def _live(self, history: History, query: str) -> None:
            asked = parse_qs(query)
            try:
                told = history.told(asked.get("model", [""])[-1], float(asked.get("after", ["0"])[-1]))
            except ValueError:
                self._answer(HTTPStatus.BAD_REQUEST, PLAIN, b"after is a number: seconds since 1970\n")
            except UnknownModelError:
                self._answer(HTTPStatus.NOT_FOUND, PLAIN, b"no such model is served\n")
            else:
                told["state"] = probes.readyz() or "serving"
                self._answer(HTTPStatus.OK, "application/json", json.dumps(told).encode(), HEADERS)

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
            """Says nothing: a probe comes every few seconds, and what strangers ask for is not ours to repeat."""

    server = _Server((host, port), Handler)
    Thread(target=server.serve_forever, name="http", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    """A thread for each connection, and so many at most: where all are taken, the one that has had its longest goes.

    So clients that are slow, or say nothing at all, keep nobody out: not the kubelet, which would end the process.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        self._free = BoundedSemaphore(MOST_CONNECTIONS)
        self._lock = Lock()
        self._open: dict[Any, None] = {}  # sockets, the oldest first
        super().__init__(address, handler)

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:  # "::" is IPv4 too, whatever the system's own default, as for gRPC
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self._end_oldest()
            if not self._free.acquire(timeout=1):  # it is not the clients that are slow
                self.shutdown_request(request)
                return
        with self._lock:
            self._open[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system has no more threads
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

    def _end_oldest(self) -> None:
        with self._lock:
            oldest = next(iter(self._open), None)
            self._open.pop(oldest, None)
            if oldest is not None:
                with suppress(OSError):  # it may just have gone by itself
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread sees the end and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing of clients that leave before they have their answer."""
