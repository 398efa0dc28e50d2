"""`dragoman top`: what it asks a server, what it makes of the answer, and what it says where there is none."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dragoman.cli import dashboard as figures
from dragoman.cli.app import app
from dragoman.cli.dashboard import dashboard as frame
from dragoman.cli.live_feed import LiveError
from dragoman.cli.live_feed import LiveFeed as Live
from dragoman.local import free_port


def point(moment: float, **more: Any) -> dict[str, Any]:
    """A point of a server that does nothing."""
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


def told(*points: dict[str, Any], started: float = 0.0, **more: Any) -> dict[str, Any]:
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
    """Says what it was given to say, as the metrics port does; notes what it was asked."""

    def __init__(self) -> None:
        self.answer: dict[str, Any] = told()
        self.asked: list[dict[str, str]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = {key: values[-1] for key, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.asked.append(asked)
        after = float(asked.get("after", 0))
        points = [point for point in self.server.answer["points"] if point["time"] > after]
        body = json.dumps({**self.server.answer, "points": points, "model": asked.get("model", "")}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def picture(answer: dict[str, Any], width: int = 100, problem: str = "") -> list[str]:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(frame(answer, "host:9090", width, problem))
    return [line.rstrip() for line in console.export_text().splitlines()]


def row(lines: list[str], title: str) -> str:
    return next(line for line in lines if line.startswith(title))


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (figures.rate(0), "0"),
        (figures.rate(0.001), "< 0.01"),
        (figures.rate(9.996), "10.0"),
        (figures.rate(1234.5), "1,234"),
        (figures.rate(None), "–"),
        (figures.seconds(0.000234), "0.23 ms"),
        (figures.seconds(0.9996), "1.00 s"),
        (figures.seconds(60, 60), "> 60.0 s"),
        (figures.percentage(0.0004), "< 0.1 %"),
        (figures.percentage(1), "100 %"),
        (figures.size(0), "0 B"),
        (figures.size(1023.9), "1.00 KiB"),
        (figures.duration(59.9), "60 s"),
        (figures.duration(7300), "2 h"),
    ],
)
def test_numbers_are_written_for_people(written: str, text: str) -> None:
    assert written == text


def test_a_line_of_blocks_has_gaps_and_the_newest_at_its_end() -> None:
    assert figures.sparkline([0, None, 4, 8], 6) == "  ▁ ▅█"
    assert figures.sparkline([0.0, 0.0], 2) == "▁▁"
    assert figures.sparkline([1, 9, 2, 3, None, None], 3, 9) == "█▃ "
    assert figures.sparkline([None], 3) == "   "


def test_what_is_not_known_is_no_number() -> None:
    lines = picture(told())
    assert [row(lines, name).split()[-1] for name in ("First token", "Between tokens", "End to end")] == ["–"] * 3
    lines = picture(told(point(599)))
    assert row(lines, "Calls").split() == ["Calls", "0", "▁"]
    assert row(lines, "Errors").endswith("no calls")
    assert row(lines, "Rows per step").split()[3] == "–"
    assert row(lines, "Answers").split() == ["Answers", "none"]


def test_the_picture_shows_the_latest_point_and_how_it_was() -> None:
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
    lines = picture(told(point(596), busy))
    assert lines[0] == "Dragoman host:9090  ● serving  m@1 · cpu · fp32  up 10 min"
    assert row(lines, "Calls").split() == ["Calls", "40.0", "▁█", "OK", "30.0", "·", "NOT_FOUND", "10.0"]
    assert row(lines, "Errors").endswith("25.0 % of the calls")
    assert row(lines, "First token").split()[2:] == "10.0 ms 250 ms > 60.0 s █ 250 ms".split()
    assert row(lines, "Running").split() == ["Running", "64", "▁█", "of", "128", "rows"]
    assert row(lines, "Cache").split() == "Cache in use 50.0 % ▁▅ of 64.0 MiB".split()
    assert row(lines, "Refused, dropped").split()[2:] == ["10.0", "▁█", "unknown_model", "10.0"]


@pytest.mark.parametrize("width", [80, 100, 200])
def test_it_fits_the_terminal(width: int) -> None:
    many = {f"REASON_NUMBER_{number}": 1.0 for number in range(20)}
    answer = told(*(point(300 + 2 * number, codes=many, rejections=many) for number in range(150)))
    answer["models"].append({"name": "n@1", "device": "cpu", "precision": "fp32", "fallback": True})
    lines = picture(answer, width)
    assert max(map(len, lines)) <= width
    assert "A GPU was found but does not work: n@1 runs on the CPU." in lines
    assert "  2 models  " in lines[0]
    assert len([line for line in lines if line.startswith(("Calls", "Errors", "Waiting"))]) == 4


def test_a_server_that_measures_nothing_any_more_does_not_look_as_if_it_did() -> None:
    sentence = "The server has measured nothing for 20 s: it is overloaded."
    assert sentence in picture(told(point(580)))
    assert sentence not in picture(told(point(598)))


def test_a_problem_is_told_beside_what_was_known() -> None:
    assert "● no answer since 12:00" in picture(told(point(599)), problem="no answer since 12:00")[0]


def test_only_what_is_new_is_asked_for_and_a_new_server_begins_anew(server: Server) -> None:
    live = Live(server.address)
    server.answer = told(point(100), point(598))
    assert [each["time"] for each in live.fetch()["points"]] == [100, 598]
    server.answer = told(point(598), point(600))
    assert [each["time"] for each in live.fetch()["points"]] == [598, 600], "the first is too old"
    server.answer = told(point(100), point(601), started=99.0)
    assert [each["time"] for each in live.fetch()["points"]] == [100, 601]
    assert [asked.get("after") for asked in server.asked] == [None, "598", "600", None]


def test_a_model_is_found_by_its_name(server: Server) -> None:
    server.answer = told(point(598))
    live = Live(f"http://{server.address}/", "m")
    assert (live.fetch()["model"], live.fetch()["model"]) == ("m@1", "m@1")
    assert [asked.get("model") for asked in server.asked] == [None, "m@1", "m@1"]
    server.answer["models"].append({"name": "m@2", "device": "cpu", "precision": "fp32", "fallback": False})
    for name, reason in (("m", "serves m@1 and m@2: choose one"), ("n", "serves no model n; it serves m@1, m@2")):
        with pytest.raises(LiveError, match=reason):
            Live(server.address, name).fetch()


def test_without_a_server_there_is_one_sentence() -> None:
    address = f"127.0.0.1:{free_port()}"
    done = CliRunner().invoke(app, ["top", address])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == (
        f"dragoman: no server listens at {address}; the metrics port is set by --metrics-port, by default 9090\n"
    )


@pytest.mark.parametrize("body", [b"HTTP/1.0 404 Not Found\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\n[]", b"\x00\x00\x12\x04"])
def test_another_server_is_told_from_ours(body: bytes) -> None:
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


def test_once_prints_one_picture(server: Server) -> None:
    server.answer = told(point(598, codes={"OK": 5.0}))
    done = CliRunner().invoke(app, ["top", "--once", server.address])
    assert (done.exit_code, done.stderr, len(server.asked)) == (0, "", 1)
    assert row(done.stdout.splitlines(), "Calls").split()[:2] == ["Calls", "5.00"]
    assert "\x1b" not in done.stdout
