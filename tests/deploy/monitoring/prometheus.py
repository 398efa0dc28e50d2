"""A real Prometheus to try things on."""

import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from dragoman.local import LOOPBACK, free_port


class Prometheus:
    """A real one on a free port of the loopback interface, that keeps its data in a folder.

    Args:
        config: of its own file format, but for rule files.
        rules: rule files.
    """

    def __init__(self, folder: Path, config: dict[str, Any], rules: list[Path]) -> None:
        self._folder, self._port = folder, free_port()
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config | {"rule_files": [str(path) for path in rules]}))
        address = f"{LOOPBACK}:{self._port}"
        self._log = (folder / "prometheus.log").open("w")
        command = ["prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}"]
        self._process = subprocess.Popen(
            [*command, f"--web.listen-address={address}", "--log.level=warn"], stdout=self._log, stderr=self._log
        )
        self._url = f"http://{address}"

    def ask(self, path: str, **parameters: str | list[str]) -> Any:
        """The data of an answer of its HTTP API."""
        query = urllib.parse.urlencode(parameters, doseq=True)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=10) as page:
            answer = json.load(page)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now."""
        result: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return result

    def value(self, expression: str) -> float:
        """Of an expression with one result; 0 where it has none."""
        result = self.query(expression)
        assert len(result) <= 1, result
        return float(result[0]["value"][1]) if result else 0.0

    def course(self, expression: str, start: float, end: float) -> list[tuple[dict[str, str], list[float]]]:
        """Labels and finite values of each series, second by second."""
        data = self.ask("query_range", query=expression, start=str(start), end=str(end), step="1s")
        assert data["resultType"] == "matrix"
        series = ((each["metric"], [float(value) for _, value in each["values"]]) for each in data["result"])
        return [(labels, [value for value in values if math.isfinite(value)]) for labels, values in series]

    def until(self, expression: str, seconds: float = 60) -> None:
        """Waits until an expression has a result."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self.query(expression):
                    return
            except OSError:
                pass  # not listening yet
            assert self._process.poll() is None, Path(self._log.name).read_text()
            assert time.monotonic() < deadline, f"{expression} never came about"
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._log.close()
