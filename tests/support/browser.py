"""A headless Chromium, driven by its DevTools protocol: https://chromedevtools.github.io/devtools-protocol/."""

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

START_SECONDS, ANSWER_SECONDS = 60, 60
# NOTE: in a container there may be neither a sandbox for root nor much shared memory.
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def chromium() -> str | None:
    """Path of the program, if there is one."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


def need_chromium() -> None:
    """Installs it where it is missing and that can be done; else skips the test, or in CI fails it."""
    if chromium() is None and shutil.which("apt-get") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    if chromium() is None:
        lacking = pytest.fail if os.environ.get("CI") else pytest.skip
        lacking("needs a browser: on Debian, apt-get install chromium")


class Page:
    """One tab.

    Attributes:
        complaints: what the console has heard of errors and warnings, exceptions and refused loads.
        requests: addresses of everything that was asked for.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._calls = 0
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1400, height: int = 1000, dark: bool = False, phone: bool = False) -> None:
        """Goes to a page, on a screen of so many points."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width, height, phone=phone)
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, fit for JSON; that of a promise when it has one."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description", answer))
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = ANSWER_SECONDS) -> Any:
        """Waits for an expression to be true, and gives its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.05)
        return value

    def screenshot(self, path: Path) -> None:
        """The whole page, however long it is."""
        answer = self.call("Page.captureScreenshot", format=path.suffix[1:], captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=ANSWER_SECONDS))
            if message.get("id") == self._calls:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self._hear(message.get("method"), message.get("params", {}))

    def _hear(self, event: str, told: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"].get("exception", told)))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")


@contextmanager
def browsing(folder: Path) -> Iterator[Page]:
    """A browser with one empty tab.

    Args:
        folder: empty, for what it writes.
    """
    program = chromium()
    assert program is not None
    command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    environment = {**os.environ, "HOME": str(folder)}
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    try:
        with connect(
            _tab(folder, process), max_size=None, max_queue=None, compression=None, ping_interval=None
        ) as socket:
            yield Page(socket)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _tab(folder: Path, process: "subprocess.Popen[bytes]") -> str:
    """Address of the tab's socket, once the browser is up."""
    told, deadline = folder / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "chromium.log").read_text(errors="replace")
        lines = told.read_text().splitlines() if told.exists() else []
        if len(lines) == 2:
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as answer:
                tabs = [tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                return str(tabs[0])
        time.sleep(0.05)
    raise AssertionError("the browser did not start: " + (folder / "chromium.log").read_text(errors="replace"))
