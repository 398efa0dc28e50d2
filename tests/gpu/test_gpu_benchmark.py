"""The GPU benchmark, run on the CPU."""

from pathlib import Path

import pytest

from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.runtime.device import CPU
from tests.benchmark.gpu.memory import memory_over_requests
from tests.benchmark.gpu.steps import Load, StepTime, cache_bytes, step_times, weight_bytes
from tests.benchmark.page import gpu_section

MACHINE = {"busy_cores_before": 0.03, "date": "2026-01-02 03:04 UTC", "cpu": "a processor", "cores": 2}
MACHINE |= {"memory_gib": 1.0, "python": "3.11", "packages": {"numpy": "2"}, "commit": "abc", "command": "python"}


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return load_bundle(tiny_bundle)


def test_the_floor_is_what_a_step_has_to_read(bundle: Bundle) -> None:
    shape = bundle.manifest.shape
    layer = 8 * shape.d_model**2 + 2 * shape.d_model * shape.d_ff  # matrices alone
    unread = 2 * shape.d_model**2  # the source's keys and values are there already
    matrices = shape.decoder_layers * (layer - unread) + shape.d_model * shape.target_vocabulary
    assert matrices * 4 <= weight_bytes(bundle) < matrices * 4 * 1.2
    load = Load(source=3, steps=5, rounds=1)
    positions = 3 + (1 + 2 + 3 + 4 + 5) / 5
    assert cache_bytes(bundle.manifest, load, 4) == 2 * shape.decoder_layers * shape.d_model * positions * 4
    [found] = step_times(bundle, CPU, [2], load, bandwidth=1e9)
    assert found.floor == pytest.approx((weight_bytes(bundle) + 2 * cache_bytes(bundle.manifest, load, 4)) / 1e9)
    assert found.seconds > 0


def test_requests_of_all_kinds_are_answered(bundle: Bundle) -> None:
    found = memory_over_requests(bundle, CPU, 30)
    assert [answered for answered, _ in found] == list(range(3, 31, 3))
    assert all(used > 0 for _, used in found)


def test_the_page_has_what_was_measured() -> None:
    document = {
        "machine": MACHINE,
        "device": "cuda:0",
        "precision": "fp16",
        "bandwidth": 2.5e12,
        "steps": [vars(StepTime(64, 2e-3, 3e-3, 1.5e-3, 1e-3))],
        "memory": [(100, 2 << 20), (1000, 3 << 20)],
        "others": [{"name": "CTranslate2", "seconds": {"64": 4e-3}, "problem": "it ended"}],
    }
    text = "\n".join(gpu_section(document))
    assert "| 64   | 2    | 2.0×           | 3            | 25%         | 4           |" in text
    assert "3 MiB after 1,000" in text
    assert "CTranslate2 did not run to the end: it ended" in text
    assert "2,500 GB/s" in text
