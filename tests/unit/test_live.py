"""The data of the live page: quantiles, rates, gaps, models that come and go."""

import random
from typing import Any

import pytest

from dragoman_server.core.requests import FinishReason
from dragoman_server.live.history import EVERY_SECONDS, KEPT, WINDOW, History, NotServedError
from dragoman_server.live.points import quantile
from dragoman_server.metrics import REQUEST_SECONDS, Histogram, ModelMetrics, ServerMetrics
from tests.support.clock import Clock

GENERATE = "dragoman.v1.GenerationService/Generate"


class Watched:
    """Metrics and their history, sampled at each step of the clock."""

    def __init__(self) -> None:
        self.metrics, self.clock = ServerMetrics(), Clock()
        self.history = History(self.metrics, self.clock, self.clock.moment)

    def step(self, times: int = 1) -> dict[str, Any]:
        for _ in range(times):
            self.clock.now += EVERY_SECONDS
            self.history.sample()
        point: dict[str, Any] = self.history.document()["points"][-1]
        return point


@pytest.fixture
def watched() -> Watched:
    return Watched()


def call(metrics: ServerMetrics, code: str = "OK", method: str = GENERATE, times: int = 1) -> None:
    for _ in range(times):
        metrics.calls.begin(method)
        metrics.calls.end(method, code, 0.01)


def test_a_quantile_is_in_the_bucket_of_the_true_value() -> None:
    values = sorted(random.Random(1).lognormvariate(-4, 1.5) for _ in range(2000))
    histogram = Histogram(REQUEST_SECONDS)
    for value in values:
        histogram.observe(value)
    for share in (0.01, 0.5, 0.95, 0.99):
        found, true = quantile(REQUEST_SECONDS, histogram.counts, share), values[round(share * 2000) - 1]
        bucket = sum(bound < true for bound in REQUEST_SECONDS)
        lower = REQUEST_SECONDS[bucket - 1] if bucket else 0.0
        assert found is not None
        assert lower <= found <= REQUEST_SECONDS[bucket]


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0], 0.5, None),  # nothing was observed
        ([4, 0, 0], 0.5, 0.5),  # halfway to the first bound
        ([0, 10, 0], 0.25, 1.25),
        ([1, 1, 0], 1.0, 2.0),
        ([1, 0, 99], 0.5, 2.0),  # beyond the last bound
    ],
)
def test_quantiles_match_prometheus(counts: list[float], share: float, value: float | None) -> None:
    assert quantile([1.0, 2.0], counts, share) == value


def test_rates_cover_the_window(watched: Watched) -> None:
    model = watched.metrics.model("m")
    call(watched.metrics, times=20)
    call(watched.metrics, "INTERNAL", times=5)
    model.finished(FinishReason.EOS, 3, 8, 0.02)
    first = watched.step()
    assert first["codes"] == {"OK": 20 / EVERY_SECONDS, "INTERNAL": 5 / EVERY_SECONDS}
    assert (first["answers"], first["tokens"]["target"]) == (1 / EVERY_SECONDS, 8 / EVERY_SECONDS)
    full = watched.step(WINDOW - 1)
    assert full["codes"]["OK"] == 20 / (WINDOW * EVERY_SECONDS)
    later = watched.step()
    assert (later["codes"], later["answers"], later["generation"]) == ({}, 0, None)


def test_unmeasured_values_are_null(watched: Watched) -> None:
    watched.metrics.model("m")
    point = watched.step()
    assert [point[name] for name in ("first_token", "inter_token", "generation", "step_rows")] == [None] * 4
    watched.metrics.model("m").stepped(0.001, 6, None)
    watched.metrics.model("m").stepped(0.001, 2, 0.0015)
    point = watched.step()
    assert (point["step_rows"], point["steps"], point["first_token"]) == (4, 2 / (2 * EVERY_SECONDS), None)
    assert all(0.0013 <= value <= 0.0023 for value in point["inter_token"])


def test_health_checks_do_not_count_as_calls(watched: Watched) -> None:
    for method in ("grpc.health.v1.Health/Check", "inference.GRPCInferenceService/ServerReady"):
        call(watched.metrics, method=method)
    call(watched.metrics, "UNIMPLEMENTED", "unknown")
    assert watched.step()["codes"] == {"UNIMPLEMENTED": 1 / EVERY_SECONDS}


def test_gauges_are_current_values(watched: Watched) -> None:
    for name, running in (("one", 3), ("two", 4)):
        model = watched.metrics.model(name)
        model.queue(lambda: (5, 50))
        model.cache(0, 3200)
        model.state(0, running, 32)
    point = watched.step()
    assert (point["waiting"], point["running"], point["rows"]) == (10, 7, 64)
    assert point["cache"] == {"used": 700, "bytes": 6400}
    [single] = watched.history.document("one@1")["points"]
    assert (single["waiting"], single["running"], single["cache"]) == (
        5,
        3,
        {"used": 300, "bytes": 3200},
    )


def test_a_reloaded_model_counts_from_zero(watched: Watched) -> None:
    old, new = ModelMetrics(), ModelMetrics()
    watched.metrics.show("m", "1", old)
    for _ in range(10):
        old.finished(FinishReason.EOS, 1, 1, 0.01)
    watched.step()
    watched.metrics.show("m", "1", new)
    new.finished(FinishReason.EOS, 1, 1, 0.01)
    assert watched.step()["answers"] == 1 / (2 * EVERY_SECONDS)
    watched.metrics.unloaded("m", "1", new)
    assert watched.step()["answers"] == 0
    with pytest.raises(NotServedError):
        watched.history.document("m@1")


def test_points_of_a_late_model_have_the_calls_of_their_time(watched: Watched) -> None:
    watched.step(3)
    watched.metrics.model("late")
    call(watched.metrics)
    watched.step()
    points = watched.history.document("late@1")["points"]
    assert [point["codes"] for point in points] == [{"OK": 1 / (4 * EVERY_SECONDS)}]
    assert len(watched.history.document()["points"]) == 4


def test_only_new_points_are_returned_and_only_minutes_are_kept(watched: Watched) -> None:
    last = watched.step(KEPT + 5)
    assert len(watched.history.document()["points"]) == KEPT
    assert watched.history.document(after=last["time"])["points"] == []
    assert len(watched.history.document(after=last["time"] - 2.5 * EVERY_SECONDS)["points"]) == 3


def test_old_points_are_left_out_even_if_there_are_few(watched: Watched) -> None:
    watched.step(3)
    watched.clock.now += KEPT * EVERY_SECONDS  # the machine was suspended
    call(watched.metrics, times=12)
    point = watched.step()
    assert [later["time"] for later in watched.history.document()["points"]] == [point["time"]]
    assert point["codes"] == {"OK": pytest.approx(12 / ((KEPT + 4) * EVERY_SECONDS))}, "over all of the time"


def test_totals_count_from_the_start(watched: Watched) -> None:
    model = watched.metrics.model("m")
    call(watched.metrics, times=3)
    model.dropped("expired", "waiting")
    model.dropped("expired", "running")
    model.device_error("other")
    watched.step(KEPT)
    totals = watched.history.document()["totals"]
    assert (totals["codes"], totals["drops"], totals["device_errors"]) == ({"OK": 3}, {"expired": 2}, {"other": 1})
    assert (totals["finishes"], totals["rejections"]) == ({}, {})
