"""A headless Chromium, controlled over its DevTools protocol: https://chromedevtools.github.io/devtools-protocol/."""

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
# NOTE: containers may have no sandbox for root and little shared memory.
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
    """Returns the path of the program, or None."""
    paths = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in paths if path), None)


def require_chromium() -> None:
    """Installs Chromium if it is missing; if that is impossible, skips the test, or fails it in CI."""
    if chromium() is None and shutil.which("apt-get") and os.geteuid() == 0:
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    if chromium() is None:
        skip_or_fail = pytest.fail if os.environ.get("CI") else pytest.skip
        skip_or_fail("needs a browser: on Debian, apt-get install chromium")


class Page:
    """One tab.

    Attributes:
        console_errors: Errors and warnings of the console, exceptions and failed loads.
        requests: URLs of all requests.
    """

    def __init__(self, socket: ClientConnection) -> None:
        self.console_errors: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._calls = 0
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1400, height: int = 1000, dark: bool = False, phone: bool = False) -> None:
        """Opens a page on a screen of `width` x `height` points."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.resize(width, height, phone=phone)
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression, as JSON allows it; awaits promises."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"]["exception"].get("description", answer))
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = ANSWER_SECONDS) -> Any:
        """Waits until an expression is true, and returns its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"never came true: {expression}"
            time.sleep(0.05)
        return value

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=ANSWER_SECONDS))
            if message.get("id") == self._calls:
                assert "error" not in message, (method, message["error"])
                result: dict[str, Any] = message["result"]
                return result
            self._record(message.get("method"), message.get("params", {}))

    def _record(self, event: str, details: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.console_errors.append(str(details["exceptionDetails"].get("exception", details)))
        elif event == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.console_errors.append(str(details["args"]))
        elif event == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.console_errors.append(f"{details['entry']['text']} {details['entry'].get('url', '')}")


@contextmanager
def open_browser(folder: Path) -> Iterator[Page]:
    """Runs a browser with one empty tab.

    Args:
        folder: Empty directory for the browser's files.
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
    """Waits for the browser to start; returns the URL of the tab's WebSocket."""
    port_file, deadline = folder / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, (folder / "chromium.log").read_text(errors="replace")
        lines = port_file.read_text().splitlines() if port_file.exists() else []
        if len(lines) == 2:
            with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as answer:
                tabs = [tab["webSocketDebuggerUrl"] for tab in json.load(answer) if tab["type"] == "page"]
            if tabs:
                return str(tabs[0])
        time.sleep(0.05)
    raise AssertionError("the browser did not start: " + (folder / "chromium.log").read_text(errors="replace"))
