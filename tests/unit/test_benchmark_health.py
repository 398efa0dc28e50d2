"""The benchmark of health checks."""

from tests.benchmark.health import ECHO, HEALTH_PORT, LIVEZ, PORT, READYZ, Asked, markdown
from tests.described_machine import MACHINE

KINDS = [ECHO, HEALTH_PORT, LIVEZ, READYZ, PORT]


def asked(workers: int, in_flight: int, **slow: float) -> Asked:
    seconds = {kind: [0.002] * 99 + [0.004] for kind in KINDS}
    return Asked(workers, in_flight, 700.0, seconds | {kind: [value] for kind, value in slow.items()})


def test_those_that_have_threads_of_their_own_are_held_against_what_was_wanted() -> None:
    found = [asked(0, 0), asked(0, 1000, **{PORT: 0.75}), asked(2, 0), asked(2, 1000, **{READYZ: 0.06})]
    text = markdown(found, MACHINE)
    assert "computes by itself. Reached: the highest p99 of those" in text, "the clients' port is no reproach"
    assert "answer is 4.0 ms (at most 50 ms wanted)" in text
    assert "2 worker processes compute. **Missed:** the highest p99" in text
    assert "| 1000      | 700     | 2.0 / 4.0 / 4.0 | 2.0 / 4.0 / 4.0 |" in text
    assert "| 750.0 / 750.0 / 750.0 |" in text
