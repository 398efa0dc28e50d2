"""`dragoman top`: what it fetches from a server, the dashboard, and its errors."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dragoman.cli import dashboard
from dragoman.cli.app import app
from dragoman.cli.live_feed import LiveError, LiveFeed
from dragoman.local import free_port


def point(moment: float, **more: Any) -> dict[str, Any]:
    """Returns a point of an idle server."""
    return {
        "time": moment,
        "first_token": None,
        "inter_token": None,
        "generation": None,
        "answers": 0.0,
        "step_rows": None,
        "steps": 0.0,
        "tokens": {"source": 0.0, "target": 0.0},
        "drops": {},
        "device_errors": {},
        "waiting": 0,
        "running": 0,
        "rows": 128,
        "cache": {"used": 0, "bytes": 1 << 26},
        "codes": {},
        "rejections": {},
        **more,
    }


def snapshot(*points: dict[str, Any], started: float = 0.0, **more: Any) -> dict[str, Any]:
    totals: dict[str, Any] = {"tokens": {"source": 0, "target": 0}, "answers": 0}
    for name in ("codes", "rejections", "finishes", "drops", "device_errors"):
        totals[name] = {}
    return {
        "started": started,
        "now": 600.0,
        "every_seconds": 2.0,
        "window_seconds": 10.0,
        "kept_seconds": 300.0,
        "quantiles": [0.5, 0.95, 0.99],
        "measured_up_to": {"first_token": 60.0, "inter_token": 2.0, "generation": 60.0},
        "models": [{"name": "m@1", "device": "cpu", "precision": "fp32", "fallback": False}],
        "model": "",
        "state": "serving",
        "totals": totals,
        "points": list(points),
        **more,
    }


class Server(ThreadingHTTPServer):
    """A metrics port that answers with `answer` and records its queries."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = snapshot()
        self.queries: list[dict[str, str]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        query = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.queries.append(query)
        after = float(query.get("after", 0))
        points = [point for point in self.server.answer["points"] if point["time"] > after]
        body = json.dumps({**self.server.answer, "points": points, "model": query.get("model", "")}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def lines_of(answer: dict[str, Any], width: int = 100, problem: str = "") -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(dashboard.dashboard(answer, "host:9090", width, problem))
    return [line.rstrip() for line in console.export_text().splitlines()]


def row(lines: list[str], title: str) -> str:
    return next(line for line in lines if line.startswith(title))


@pytest.mark.parametrize(
    ("formatted", "text"),
    [
        (dashboard.rate(0), "0"),
        (dashboard.rate(0.001), "< 0.01"),
        (dashboard.rate(9.996), "10.0"),
        (dashboard.rate(1234.5), "1,234"),
        (dashboard.rate(None), "–"),
        (dashboard.seconds(0.000234), "0.23 ms"),
        (dashboard.seconds(0.9996), "1.00 s"),
        (dashboard.seconds(60, 60), "> 60.0 s"),
        (dashboard.percentage(0.0004), "< 0.1 %"),
        (dashboard.percentage(1), "100 %"),
        (dashboard.size(0), "0 B"),
        (dashboard.size(1023.9), "1.00 KiB"),
        (dashboard.duration(59.9), "60 s"),
        (dashboard.duration(7300), "2 h"),
    ],
)
def test_numbers_are_readable(formatted: str, text: str) -> None:
    assert formatted == text


def test_a_sparkline_has_gaps_and_the_newest_value_at_its_end() -> None:
    assert dashboard.sparkline([0, None, 4, 8], 6) == "  ▁ ▅█"
    assert dashboard.sparkline([0.0, 0.0], 2) == "▁▁"
    assert dashboard.sparkline([1, 9, 2, 3, None, None], 3, 9) == "█▃ "
    assert dashboard.sparkline([1, 9, 2, 3, 4], 3, 9) == "▁█▄"
    assert dashboard.sparkline([None], 3) == "   "


def test_unknown_values_are_no_numbers() -> None:
    lines = lines_of(snapshot())
    assert [row(lines, name).split()[-1] for name in ("First token", "Between tokens", "End to end")] == ["–"] * 3
    lines = lines_of(snapshot(point(599)))
    assert row(lines, "Calls").split() == ["Calls", "0", "▁"]
    assert row(lines, "Errors").endswith("no calls")
    assert row(lines, "Rows per step").split()[3] == "–"
    assert row(lines, "Answers").split() == ["Answers", "none"]


def test_the_dashboard_shows_the_latest_point_and_its_history() -> None:
    busy = point(
        598,
        codes={"OK": 30.0, "NOT_FOUND": 10.0},
        first_token=[0.01, 0.25, 61.0],
        step_rows=4.5,
        steps=100.0,
        waiting=3,
        running=64,
        cache={"used": 1 << 25, "bytes": 1 << 26},
        tokens={"source": 10.0, "target": 70.0},
        answers=12.0,
        rejections={"unknown_model": 10.0},
    )
    lines = lines_of(snapshot(point(596), busy))
    assert lines[0] == "Dragoman host:9090  ● serving  m@1 · cpu · fp32  up 10 min"
    assert row(lines, "Calls").split() == ["Calls", "40.0", "▁█", "OK", "30.0", "·", "NOT_FOUND", "10.0"]
    assert row(lines, "Errors").endswith("25.0 % of the calls")
    assert row(lines, "First token").split()[2:] == "10.0 ms 250 ms > 60.0 s █ 250 ms".split()
    assert row(lines, "Running").split() == ["Running", "64", "▁█", "of", "128", "rows"]
    assert row(lines, "Cache").split() == "Cache in use 50.0 % ▁▅ of 64.0 MiB".split()
    assert row(lines, "Refused, dropped").split()[2:] == ["10.0", "▁█", "unknown_model", "10.0"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_dashboard_fits_the_terminal(width: int) -> None:
    many = {f"REASON_NUMBER_{number}": 1.0 for number in range(20)}
    answer = snapshot(*(point(300 + 2 * number, codes=many, rejections=many) for number in range(150)))
    answer["models"].append({"name": "n@1", "device": "cpu", "precision": "fp32", "fallback": True})
    lines = lines_of(answer, width)
    assert max(map(len, lines)) <= width
    assert "A GPU was found but does not work: n@1 runs on the CPU." in lines
    assert "  2 models  " in lines[0]
    assert len([line for line in lines if line.startswith(("Calls", "Errors", "Waiting"))]) == 4


def test_a_server_that_stopped_measuring_is_reported() -> None:
    warning = "The server has measured nothing for 20 s: it is overloaded."
    assert warning in lines_of(snapshot(point(580)))
    assert warning not in lines_of(snapshot(point(598)))


def test_a_problem_is_shown_with_the_last_snapshot() -> None:
    assert "● no answer since 12:00" in lines_of(snapshot(point(599)), problem="no answer since 12:00")[0]


def test_only_new_points_are_fetched_and_a_restarted_server_starts_over(server: Server) -> None:
    feed = LiveFeed(server.address)
    server.answer = snapshot(point(100), point(598))
    assert [each["time"] for each in feed.fetch()["points"]] == [100, 598]
    server.answer = snapshot(point(598), point(600))
    assert [each["time"] for each in feed.fetch()["points"]] == [598, 600], "the first is expired"
    server.answer = snapshot(point(100), point(601), started=99.0)
    assert [each["time"] for each in feed.fetch()["points"]] == [100, 601]
    assert [query.get("after") for query in server.queries] == [None, "598", "600", None]


def test_a_model_without_a_version_is_resolved(server: Server) -> None:
    server.answer = snapshot(point(598))
    feed = LiveFeed(f"http://{server.address}/", "m")
    assert (feed.fetch()["model"], feed.fetch()["model"]) == ("m@1", "m@1")
    assert [query.get("model") for query in server.queries] == [None, "m@1", "m@1"]
    server.answer["models"].append({"name": "m@2", "device": "cpu", "precision": "fp32", "fallback": False})
    for name, reason in (("m", "serves m@1 and m@2: choose one"), ("n", "serves no model n; it serves m@1, m@2")):
        with pytest.raises(LiveError, match=reason):
            LiveFeed(server.address, name).fetch()


def test_without_a_server_the_error_is_one_sentence() -> None:
    address = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(app, ["top", address])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        f"dragoman: no server listens at {address}; the metrics port is set by --metrics-port, by default 9090\n"
    )


@pytest.mark.parametrize("body", [b"HTTP/1.0 404 Not Found\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n[]", b"\x00\x00\x12\x04"])
def test_a_server_of_another_kind_is_recognized(body: bytes) -> None:
    class Stranger(Handler):
        def handle(self) -> None:
            self.request.recv(1000)
            self.request.sendall(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.handle_request, daemon=True).start()
        done = CliRunner().invoke(app, ["top", f"127.0.0.1:{stranger.server_port}"])
    assert done.exit_code == 1
    sentence = f"127.0.0.1:{stranger.server_port} answers, but is not the metrics port of a Dragoman server"
    assert done.stderr == f"dragoman: {sentence}\n"


def test_once_prints_the_dashboard_once(server: Server) -> None:
    server.answer = snapshot(point(598, codes={"OK": 5.0}))
    done = CliRunner().invoke(app, ["top", "--once", server.address])
    assert (done.exit_code, done.stderr, len(server.queries)) == (0, "", 1)
    assert row(done.stdout.splitlines(), "Calls").split()[:2] == ["Calls", "5.00"]
    assert "\x1b" not in done.stdout
