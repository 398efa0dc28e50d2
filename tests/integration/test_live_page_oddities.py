"""The live page of a server in trouble: loading, without its GPU, too slow, or restarted."""

from collections.abc import Iterator

import pytest

from dragoman_server.live import history
from dragoman_server.live.history import History
from dragoman_server.metrics import ModelLoad, ModelMetrics, ServerMetrics
from dragoman_server.process.readiness import Probes
from dragoman_server.process.web import serve_http
from tests.support.browser import Page, open_browser, require_chromium
from tests.support.clock import Clock

NAME = "<img src=x onerror=alert(1)>"  # no repository would give a model such a name


EVERY_SECONDS = 0.4  # that the page asks, and a point is taken: sooner than that of a real server


class Server:
    """The HTTP port of a fake server."""

    def __init__(self, port: int = 0) -> None:
        self.metrics, self.probes, self.clock = ServerMetrics(), Probes(), Clock()
        self.history = History(self.metrics, self.clock, self.clock.moment)
        self.http = serve_http("127.0.0.1", port, self.metrics.registry, self.probes, self.history)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/"

    def model(self, name: str = NAME, fallback: bool = False) -> ModelMetrics:
        self.metrics.loaded(name, "1", ModelLoad(1.0, "cpu", "fp32", fallback))
        model = self.metrics.model(name)
        model.state(0, 0, 8)
        return model

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.now += EVERY_SECONDS
            self.history.sample()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()


@pytest.fixture(scope="module", autouse=True)
def hurried() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "EVERY_SECONDS", EVERY_SECONDS)
        yield


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    require_chromium()
    with open_browser(tmp_path_factory.mktemp("browser")) as page:
        yield page
        assert page.console_errors == []


def text(page: Page, selector: str) -> str:
    return str(page.evaluate(f"document.querySelector({selector!r}).textContent"))


def until_text(page: Page, selector: str, wanted: str) -> None:
    page.until(f"document.querySelector({selector!r})?.textContent === {wanted!r}")


def test_a_loading_server_has_no_models_and_no_numbers(page: Page, server: Server) -> None:
    page.open(server.url)
    until_text(page, "#state", "the model is loading")
    assert text(page, "[data-tile=calls] .text") == "nothing measured yet"
    assert text(page, "[data-card=load] .empty") == "Nothing measured yet"
    server.step()
    until_text(page, "[data-card=load] .empty", "No model is loaded")
    assert text(page, "#facts").startswith("no model is loaded")
    assert text(page, "[data-tile=waiting] .value") == text(page, "[data-tile=cache] .value") == "–"
    server.model()
    server.probes.serving()
    server.step()
    until_text(page, "#state", "serving")
    until_text(page, "[data-tile=waiting] .value", "0")


def test_a_lost_gpu_is_shown_and_names_are_escaped(page: Page, server: Server) -> None:
    server.model(fallback=True)
    server.step()
    page.open(server.url)
    until_text(page, "#notice", f"A GPU was found but does not work: {NAME}@1 runs on the CPU.")
    assert page.evaluate("document.querySelectorAll('img[src=x]').length") == 0


def test_old_values_disappear_when_nothing_is_measured(page: Page, server: Server) -> None:
    server.model()
    server.step()
    page.open(server.url)
    until_text(page, "[data-tile=calls] .value", "0")
    assert page.evaluate("document.getElementById('notice').hidden")
    server.clock.now += 45
    until_text(page, "#notice", "The server has measured nothing for 45 s: it is too busy.")
    server.step()
    page.until("document.getElementById('notice').hidden")


def test_times_beyond_the_last_bucket_are_shown_as_more(page: Page, server: Server) -> None:
    model = server.model()
    for _ in range(100):
        model.first_token(75.0)
        model.stepped(0.1, 1, 0.1)
    server.step()
    page.open(server.url)
    until_text(page, "[data-tile=first_token] .value", "> 60.0 s")
    legend = page.evaluate("[...document.querySelectorAll('[data-card=first_token] b')].map((b) => b.textContent)")
    assert legend == ["> 60.0 s"] * 3


def test_unmeasured_moments_are_gaps_in_the_line(page: Page, server: Server) -> None:
    model = server.model()
    for _ in range(2):
        model.stepped(0.001, 4, None)
        server.step(8)  # in five of which the step is seen
    page.open(server.url)
    page.until("document.querySelectorAll('[data-card=step_rows] .line').length === 2")
    lines = page.evaluate("[...document.querySelectorAll('[data-card=step_rows] .line')].map((l) => l.getBBox().width)")
    assert lines[0] == pytest.approx(lines[1], abs=1)
    assert page.evaluate("document.querySelectorAll('[data-card=load] .line[data-series=running]').length") == 1
    server.clock.now += 20  # the machine stood still
    server.step(2)
    page.until("document.querySelectorAll('[data-card=load] .line[data-series=running]').length === 2")


def test_many_waiting_requests(page: Page, server: Server) -> None:
    model = server.model()
    model.queue(lambda: (12_345, 99_999))
    model.state(0, 8, 8)
    model.cache(0, 1 << 30)
    server.step()
    page.open(server.url)
    until_text(page, "[data-tile=waiting] .value", "12,345")
    assert page.evaluate("document.querySelector('[data-tile=waiting]').classList.contains('alarm')")
    assert text(page, "[data-tile=cache] .value") == "100 %"
    assert text(page, "[data-card=cache] .note") == "1.00 GiB of 1.00 GiB"


def test_a_restarted_server_starts_a_new_history(page: Page) -> None:
    """It restarts on the same port while the page is open; in between nobody answers."""
    first = Server()
    first.model()
    first.step(20)
    page.open(first.url)
    page.until("document.querySelectorAll('[data-card=load] .line').length === 2")
    first.close()
    page.until("document.body.classList.contains('stale')")
    del page.console_errors[:]  # of the calls that nobody answered
    second = Server(first.http.server_port)
    try:
        second.clock.now = 1000.0
        second.history.started = second.clock.moment()
        second.model("second")
        second.step()
        page.until("document.getElementById('facts').textContent.startsWith('second@1')")
        assert page.evaluate("document.querySelectorAll('[data-card=load] .line').length") == 0, "there is one point"
        assert page.evaluate("document.querySelectorAll('[data-card=load] .dot').length") == 2
        assert not page.evaluate("document.body.classList.contains('stale')")
    finally:
        second.close()
    del page.console_errors[:]
