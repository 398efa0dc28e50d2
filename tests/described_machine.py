"""A machine that is described as the benchmarks describe theirs."""

from typing import Any

MACHINE: dict[str, Any] = {
    "busy_cores_before": 0.03,
    "date": "2026-01-02 03:04 UTC",
    "cpu": "a processor",
    "cores": 2,
    "memory_gib": 1.0,
    "system": "Linux 6",
    "python": "3.11",
    "packages": {"numpy": "2"},
    "commit": "abc",
    "command": "python -m tests.benchmark",
}
