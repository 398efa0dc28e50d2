"""The benchmark of health checks, over a real server."""

from pathlib import Path

from tests.benchmark.health import ECHO, HEALTH_PORT, LIVEZ, PORT, READYZ, measure

KINDS = [ECHO, HEALTH_PORT, LIVEZ, READYZ, PORT]


def test_an_idle_and_a_busy_server_are_asked(tmp_path: Path) -> None:
    idle, busy = measure(0, [0, 4], 0.2, tmp_path / "server.log")
    assert list(idle.seconds) == KINDS
    assert idle.calls == 0 < busy.calls
    assert all(each.seconds[kind] and min(each.seconds[kind]) > 0 for each in (idle, busy) for kind in KINDS)
