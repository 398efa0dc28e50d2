"""The benchmark of health checks, over a real server."""

from tests.benchmark.health import ECHO, HEALTH_PORT, LIVEZ, PORT, READYZ, measure


def test_an_idle_and_a_busy_server_are_asked() -> None:
    idle, busy = measure(0, 0.2, in_flight=(0, 4))
    assert idle["calls"] == 0 < busy["calls"]
    for each in (idle, busy):
        assert list(each["seconds"]) == [ECHO, HEALTH_PORT, LIVEZ, READYZ, PORT]
        assert all(0 < p50 <= p99 <= longest for p50, p99, longest in each["seconds"].values())
