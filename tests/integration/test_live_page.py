"""The live page in a real browser, with a real server under load: what it draws, and whether it is correct."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import Client
from dragoman.errors import DragomanError
from dragoman.local import LocalServer
from dragoman.retry import NO_RETRY
from tests.support.browser import Page, open_browser, require_chromium
from tests.support.bundles import SHIPPED_G2P
from tests.support.metrics_page import sum_of
from tests.support.servers import G2PServer
from tests.support.waiting import until

DRAGOMAN = str(Path(sys.executable).with_name("dragoman"))
WORDS = "interpreters stood between two courts and carried words from one to the other".split()
TIMES = ["first_token", "inter_token", "generation"]
CARDS = ["codes", *TIMES, "load", "step_rows", "tokens", "cache", "errors", "failures"]
TILES = ["calls", "errors", *TIMES, "tokens", "waiting", "cache"]
WINDOW_SECONDS = 10  # that a point looks back
UNITS = {"ms": 1e-3, "s": 1.0, "min": 60.0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """Returns a repository of one model under two names."""
    folder = tmp_path_factory.mktemp("live")
    for name in ("busy", "idle"):
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / "1").symlink_to(SHIPPED_G2P)
    options = ["--model-repository", str(folder / "models"), "--engines", "1"]
    with G2PServer(*options, log=folder / "server.log") as server:
        yield server


@pytest.fixture(scope="module")
def page(server: LocalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    require_chromium()
    with open_browser(tmp_path_factory.mktemp("browser")) as page:
        page.open(f"http://127.0.0.1:{server.metrics_port}/")
        page.until("document.querySelector('[data-tile=cache] .text')?.textContent.includes('MiB')")
        yield page


def burst(server: LocalServer) -> None:
    """Makes calls of every kind, some of which fail, for about a second."""
    with Client(server.address, timeout=20, retry=NO_RETRY) as client:
        for word in WORDS:
            client.generate(word, model="busy")
            client.generate(word, model="busy", beam_size=4)
            for _ in client.generate_stream(word, model="busy"):
                pass
            client.generate_batch(WORDS, model="busy")
        for request in ({"model": "none"}, {"model": "busy", "max_new_tokens": 100_000}):
            for _ in range(5):
                with pytest.raises(DragomanError):
                    client.generate("a", **request)


def total(samples: dict[str, float], name: str) -> float:
    return sum(value for key, value in samples.items() if re.match(rf"dragoman_{name}(?:{{|$)", key))


def by_label(samples: dict[str, float], name: str, label: str) -> Counter[str]:
    """Sums the samples of a metric by a label, without health checks, like the page."""
    found: Counter[str] = Counter()
    for key, value in samples.items():
        if key.startswith(f"dragoman_{name}{{") and value and "grpc.health" not in key:
            found[re.findall(rf'\b{label}="([^"]*)"', key)[0]] += int(value)
    return found


def estimated(samples: dict[str, float], name: str, share: float) -> float:
    """Estimates a quantile of a histogram of /metrics, as Prometheus' histogram_quantile does."""
    cumulative = by_label(samples, f"{name}_bucket", "le")
    bounds = sorted(cumulative, key=float)
    rank = share * cumulative[bounds[-1]]
    place = next(index for index, bound in enumerate(bounds) if cumulative[bound] >= rank)
    lower, below = (float(bounds[place - 1]), cumulative[bounds[place - 1]]) if place else (0.0, 0)
    return lower + (float(bounds[place]) - lower) * (rank - below) / (cumulative[bounds[place]] - below)


def measured(page: Page, card: str) -> dict[str, float]:
    """Returns the values in the legend of a chart: rates or seconds."""
    told: dict[str, str] = page.evaluate(
        f"Object.fromEntries([...document.querySelectorAll('[data-card={card}] .legend li')]"
        ".map((entry) => [entry.dataset.series, entry.querySelector('b').textContent]))"
    )
    return {name: number(text) for name, text in told.items()}


def number(text: str) -> float:
    value, _, unit = text.partition(" ")
    return float(value.replace(",", "")) * UNITS.get(unit, 1.0)


def test_without_data_the_page_says_so(page: Page) -> None:
    tiles = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('[data-tile]')]"
        ".map((tile) => [tile.dataset.tile, tile.querySelector('.value').textContent]))"
    )
    assert list(tiles) == TILES
    assert {name: value for name, value in tiles.items() if value == "–"}.keys() == {
        "errors",
        "first_token",
        "inter_token",
        "generation",
    }
    assert (tiles["calls"], tiles["waiting"], tiles["cache"]) == ("0", "0", "0 %")
    cards = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('[data-card]')]"
        ".map((card) => [card.dataset.card, card.querySelector('.empty').textContent]))"
    )
    assert list(cards) == CARDS
    assert cards["first_token"] == "No first tokens in these minutes"
    assert [name for name, text in cards.items() if not text] == ["load", "tokens", "cache"]


def test_the_page_draws_the_counts(page: Page, server: LocalServer) -> None:
    """Compares the page with /metrics before and after a burst that lies completely in the window of a point."""
    for _ in range(5):
        quiet(page)
        before, began = server.metrics(), time.time()
        burst(server)
        until(lambda: sum_of(server, "dragoman_requests_in_flight") == 0)  # they are counted when clients have heard
        after, ended = server.metrics(), time.time()
        moment = page.until(f"(now = Number(document.getElementById('cards').dataset.time)) > {ended} && now")
        if moment - WINDOW_SECONDS < began:
            break
    else:
        pytest.fail("this machine never did the burst within the window")
    counted = {key: value - before.get(key, 0.0) for key, value in after.items()}

    codes = by_label(counted, "requests_total", "code")
    assert set(codes) == {"OK", "NOT_FOUND", "INVALID_ARGUMENT"}
    rates = measured(page, "codes")
    assert set(rates) == set(codes)
    seconds = codes["OK"] / rates["OK"]  # of the window: shorter at the start, longer where the machine is slow
    assert ended - began < seconds < WINDOW_SECONDS * 2
    for code, count in codes.items():
        assert rates[code] == pytest.approx(count / seconds, rel=0.02)
    assert measured(page, "errors") == {code: rate for code, rate in rates.items() if code != "OK"}
    refused = by_label(counted, "rejections_total", "reason")
    assert {f"refused: {reason}" for reason in refused} == set(measured(page, "failures"))

    for card in TIMES:
        shown = measured(page, card)
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
            known = estimated(counted, f"{card}_seconds", share)
            # The page has two digits behind the point of a millisecond.
            assert shown[name] == pytest.approx(known, rel=0.01, abs=6e-6), (card, name)
    rows = total(counted, "step_rows_sum") / total(counted, "step_rows_count")
    assert measured(page, "step_rows")["rows"] == pytest.approx(rows, rel=0.01)
    for side in ("source", "target"):
        rate = total(counted, f"{side}_tokens_total") / seconds
        assert measured(page, "tokens")[side] == pytest.approx(rate, rel=0.02)
    assert measured(page, "load") == {"waiting": 0, "running": 0}
    room = page.evaluate("document.querySelector('[data-card=load] .note').textContent")
    assert room == f"room for {total(after, 'rows'):.0f} rows"
    memory = page.evaluate("document.querySelector('[data-card=cache] .note').textContent")
    assert memory.startswith("0 B of ")
    assert memory.endswith(" MiB")
    assert number(memory.split()[-2]) == pytest.approx(total(after, "cache_bytes") / 2**20, rel=0.01)

    totals = page.evaluate(
        "Object.fromEntries([...document.querySelectorAll('.totals table')].map((group) => [group.dataset.group,"
        " Object.fromEntries([...group.querySelectorAll('tr')]"
        ".map((row) => [row.dataset.total, Number(row.dataset.value)]))]))"
    )
    assert totals["Calls"] == by_label(after, "requests_total", "code")
    assert totals["Refused"] == by_label(after, "rejections_total", "reason")
    assert totals["Answers, by why they ended"] == by_label(after, "finishes_total", "reason")
    assert totals["Tokens"]["target"] == total(after, "target_tokens_total")


def quiet(page: Page) -> None:
    """Waits until the window has no call."""
    page.until("document.querySelector('[data-tile=calls] .value').textContent === '0'", seconds=40)


def test_every_chart_has_lines_and_the_pointer_shows_a_moment(page: Page) -> None:
    drawn = page.until(
        "(cards = [...document.querySelectorAll('[data-card]')].map((card) => [card.dataset.card,"
        " [...new Set([...card.querySelectorAll('.line')].map((line) => line.dataset.series))]]),"
        " cards.every(([, lines]) => lines.length) && Object.fromEntries(cards))"
    )
    assert drawn["first_token"] == ["p50", "p95", "p99"]
    assert drawn["load"] == ["waiting", "running"]
    assert set(drawn["codes"]) == {"OK", "NOT_FOUND", "INVALID_ARGUMENT"}
    told = page.evaluate("document.querySelector('[data-card=generation] svg').getAttribute('aria-label')")
    assert re.fullmatch(r"End to end, from a request's arrival to its answer; now: p50 .+, p95 .+, p99 .+", told)
    place = page.evaluate(
        "(({x, y, width}) => [x + width / 2, y + 60])("
        "document.querySelector('[data-card=codes] svg').getBoundingClientRect())"
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    assert page.evaluate("document.querySelectorAll('.cross.shown').length") == len(CARDS)
    assert re.search(r"\d:\d\d:\d\d", page.evaluate("document.querySelector('[data-card=load] .note').textContent"))
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert page.evaluate("document.querySelectorAll('.cross.shown').length") == 0


def test_a_model_can_be_selected(page: Page, server: LocalServer) -> None:
    names = page.evaluate("[...document.querySelectorAll('#model option')].map((option) => option.value)")
    assert names == ["", "busy@1", "idle@1"]
    answered = by_label(server.metrics(), "finishes_total", "model")["busy"]
    for name, finishes in (("busy@1", answered), ("idle@1", None)):
        page.evaluate(
            f"(select = document.getElementById('model'), select.value = '{name}',"
            " select.dispatchEvent(new Event('change', {bubbles: true})))"
        )
        page.until(f"document.getElementById('facts').textContent.startsWith('{name} · cpu')")
        told = page.evaluate("document.querySelector('[data-group^=Answers] [data-total=eos]')?.dataset.value ?? null")
        assert (told and int(told)) == finishes
    page.evaluate("(select.value = '', select.dispatchEvent(new Event('change', {bubbles: true})))")
    page.until("document.getElementById('facts').textContent.startsWith('2 models')")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_readable_in_light_and_dark_mode_and_on_a_phone(page: Page, server: LocalServer, dark: bool) -> None:
    page.open(f"http://127.0.0.1:{server.metrics_port}/", width=360, height=700, dark=dark, phone=True)
    page.until("document.querySelectorAll('[data-card=generation] .legend li').length === 3")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    wide = page.evaluate(
        "[...document.querySelectorAll('article, .tile')].map((each) => each.getBoundingClientRect())"
        ".filter((box) => box.left < 0 || box.right > 360).length"
    )
    assert wide == 0
    lefts = page.evaluate("new Set([...document.querySelectorAll('article')].map((each) => each.offsetLeft)).size")
    assert lefts == 1, "charts stand below each other"
    colours = page.evaluate(
        "['.tile .value', '.tile .text', '.legend span', 'footer'].map((name) =>"
        " getComputedStyle(document.querySelector(name)).color).concat("
        " ['blue', 'amber', 'pink', 'green', 'red', 'violet', 'teal', 'brown', 'grey'].map((name) => ("
        " document.body.style.outlineColor = `var(--${name})`, getComputedStyle(document.body).outlineColor)))"
    )
    ground = page.evaluate("getComputedStyle(document.querySelector('.tile')).backgroundColor")
    assert (luminance(ground) < 0.05) == dark
    text, lines = colours[:4], colours[4:]
    assert min(contrast(colour, ground) for colour in text) >= 4.5  # as the guidelines for accessible pages want it
    assert min(contrast(colour, ground) for colour in lines) >= 3


def luminance(colour: str) -> float:
    """Returns the relative luminance (WCAG 2.2) of "rgb(r, g, b)"."""
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, two: str) -> float:
    lighter, darker = sorted([luminance(one), luminance(two)], reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_a_terminal_shows_the_same(server: LocalServer) -> None:
    done = subprocess.run(
        [DRAGOMAN, "top", f"127.0.0.1:{server.metrics_port}"], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = {line[:17].strip(): line[17:].split() for line in done.stdout.splitlines()}
    samples = server.metrics()
    answers = by_label(samples, "finishes_total", "reason")
    assert lines["Answers"] == ["eos", f"{answers['eos']:,}"]
    assert lines["Running"][-3:] == ["of", f"{total(samples, 'rows'):.0f}", "rows"]
    calls = done.stdout[done.stdout.index("since the start") :]
    for code, count in by_label(samples, "requests_total", "code").items():
        assert f"{code} {count:,}" in calls


def test_a_terminal_shows_it_until_ctrl_c(server: LocalServer) -> None:
    """In a terminal it shows a picture, another two seconds later, and restores the screen at the end."""
    mine, its = pty.openpty()
    termios.tcsetwinsize(its, (40, 100))
    command = [DRAGOMAN, "top", f"127.0.0.1:{server.metrics_port}", "--model", "idle"]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(its)
        seen = b""
        while seen.count("● serving".encode()) < 2:
            seen += os.read(mine, 65536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # that is how the end looks
            while more := os.read(mine, 65536):
                seen += more
        assert process.wait(10) == 0
    os.close(mine)
    assert "idle@1 · cpu" in seen.decode()
    assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1
    assert b"Traceback" not in seen


def test_no_other_host_was_contacted_and_nothing_was_logged(page: Page, server: LocalServer) -> None:
    own = f"http://127.0.0.1:{server.metrics_port}/"
    assert {url for url in page.requests if not url.startswith(own)} == set()
    assert len(page.requests) > 10
    assert page.console_errors == []


def test_a_stopped_server_is_reported(page: Page, server: LocalServer) -> None:
    """Stops the server, and so comes last."""
    assert server.stop() == 0, server.log_tail()
    page.until("!document.getElementById('notice').hidden && document.body.classList.contains('stale')")
    notice = page.evaluate("document.getElementById('notice').textContent")
    assert re.fullmatch(r"The server does not answer since .+\. What is below is from then\.", notice)
    assert page.evaluate("document.getElementById('state').textContent") == "no answer"
