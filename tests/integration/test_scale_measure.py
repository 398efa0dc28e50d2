"""What `python -m tests.scale.measure` finds about a real server can be simulated."""

from dataclasses import replace

import pytest

from tests.scale import measure
from tests.scale.fleet import closed
from tests.scale.service import Measured


def test_a_server_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "CALLERS", (1, 4, 16))
    monkeypatch.setattr(measure, "FULL", 16)
    monkeypatch.setattr(measure, "ROUNDS", 1)
    said: list[str] = []
    asked = measure.words()
    few = replace(asked, texts=asked.texts[:32], limits=asked.limits[:32])
    found = measure.measure(few, {"date": "today"}, 0.2, said.append)
    assert said
    assert Measured.model_validate(found.model_dump()) == found
    assert len(found.pairs) == 32
    assert [one.callers for one in found.closed] == [1, 4, 16]
    assert [one.rate is not None for one in found.opened] == [True, True]
    service = found.service
    assert service.rows >= 16
    assert min(service.step_seconds + service.row_seconds, service.call_seconds, found.client_seconds) > 0
    assert found.bundle_bytes > 5_000_000
    assert found.series > 200
    rate, tails = closed(service, found.pairs, callers=4, calls=100, seed=0)
    assert rate > 0
    assert 0 < tails.p50 <= tails.p99
