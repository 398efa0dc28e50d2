"""The number of cache rows that memory allows, and how it is reported."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.engine.memory_budget import DEFAULT_ROWS, Memory, plan_rows, rows_for
from dragoman_server.runtime.device import DeviceError
from dragoman_server.runtime.device_memory import DeviceMemory, row_bytes, working_bytes
from dragoman_server.runtime.runtime import ENCODED_TOKENS
from tests.support.counting_engines import CountingHost, CountingRuntime
from tests.support.fake_engines import letters_bundle

MIB = 2**20


def test_the_plan_explains_its_sum() -> None:
    plan = plan_rows(Memory(2000 * MIB, "machine", 200 * MIB, 600 * MIB), 100 * MIB, 5 * MIB, 2, None)
    assert plan.rows == 30
    assert plan.explanation == (
        "of the budget of 600 MiB 200 MiB are in use and 100 MiB are kept for computing, which leaves 300 MiB for "
        "cache rows; each of 2 engines gets 30 cache rows (what there is room for) of 5.0 MiB, together 300 MiB"
    )


def test_without_a_budget_a_tenth_of_what_is_free_stays_free() -> None:
    plan = plan_rows(Memory(1000 * MIB, "container", 200 * MIB), 100 * MIB, 1 * MIB, 1, None)
    assert plan.rows == DEFAULT_ROWS
    assert plan.explanation == (
        "of 1000 MiB that the container has free 100 MiB stay free and 100 MiB are kept for computing, which leaves "
        "800 MiB for cache rows; 1 engine gets 80 cache rows (the default) of 1.0 MiB, together 80.0 MiB"
    )
    assert plan_rows(Memory(1000 * MIB, "container", 200 * MIB), 100 * MIB, 1 * MIB, 1, 800).rows == 800
    with pytest.raises(DeviceError):
        plan_rows(Memory(1000 * MIB, "container", 200 * MIB), 100 * MIB, 1 * MIB, 1, 801)


def test_a_budget_beyond_the_free_memory_adds_nothing() -> None:
    plan = plan_rows(Memory(100 * MIB, "GPU", 50 * MIB, 10_000 * MIB), 10 * MIB, 1 * MIB, 1, 80)
    assert plan.explanation.startswith("the GPU has less than the budget of 9.8 GiB; of 100 MiB that the GPU has free ")
    with pytest.raises(DeviceError):
        plan_rows(Memory(100 * MIB, "GPU", 50 * MIB, 10_000 * MIB), 10 * MIB, 1 * MIB, 1, 81)


def test_rows_that_do_not_fit_are_refused_with_the_sum_and_a_remedy() -> None:
    memory = Memory(2000 * MIB, "machine", 200 * MIB, 600 * MIB)
    with pytest.raises(DeviceError) as refused:
        plan_rows(memory, 100 * MIB, 5 * MIB, 2, 31)
    assert str(refused.value) == (
        "not enough memory for 31 rows in each of 2 engines, 310 MiB: of the budget of 600 MiB 200 MiB are in use and "
        "100 MiB are kept for computing, which leaves 300 MiB for cache rows, so there is room for 30; lower "
        "--max-rows, or allow more with --memory-budget"
    )
    with pytest.raises(DeviceError) as refused:
        plan_rows(replace(memory, budget=250 * MIB), 100 * MIB, 5 * MIB, 1, None)
    assert str(refused.value) == (
        "not enough memory for even one cache row in 1 engine, 5.0 MiB: of the budget of 250 MiB 200 MiB are in use "
        "and 100 MiB are kept for computing, which leaves nothing for cache rows, so there is room for none; allow "
        "more with --memory-budget"
    )


@given(
    free=st.integers(0, 10**6),
    used=st.integers(0, 10**6),
    budget=st.none() | st.integers(1, 10**6),
    working=st.integers(0, 10**5),
    row=st.integers(1, 10**4),
    engines=st.integers(1, 8),
    asked=st.none() | st.integers(1, 200),
)
def test_a_plan_never_exceeds_the_memory(
    free: int, used: int, budget: int | None, working: int, row: int, engines: int, asked: int | None
) -> None:
    try:
        rows = plan_rows(Memory(free, "machine", used, budget), working, row, engines, asked).rows
    except DeviceError:
        return
    assert rows == asked if asked else 1 <= rows <= DEFAULT_ROWS
    assert working + rows * row * engines <= free
    assert budget is None or used + working + rows * row * engines <= budget


def test_caches_of_other_models_are_in_use_before_they_are_written() -> None:
    bundle, host = letters_bundle(), CountingHost(CountingRuntime(1))
    row = row_bytes(bundle.manifest, 4)
    options = EngineOptions(device="cpu", cores=1)
    working = working_bytes(bundle.manifest, ENCODED_TOKENS, DEFAULT_ROWS, 4)

    def rows(free: int, reserved: int, budget: int | None = None) -> int:
        host.memory = lambda: DeviceMemory(free, "machine", 1000, reserved)  # type: ignore[method-assign]
        return rows_for(bundle, replace(options, memory_budget=budget), [host])

    room = (working + 30 * row) * 10 // 9 + 10  # a tenth stays free
    assert rows(room, 0) == rows(room + 50 * row, 50 * row) == 30
    budget = 1000 + working + 30 * row
    assert rows(2**40, 0, budget) == rows(2**40, 50 * row, budget + 50 * row) == 30


def test_a_row_holds_keys_and_values_of_source_and_target() -> None:
    manifest = letters_bundle().manifest  # 2 decoder layers, 2 heads of 4; 16 source and 12 target positions
    assert row_bytes(manifest, 4) == 2 * 2 * 2 * 4 * (16 + 12) * 4
    ort = manifest.model_copy(update={"attention": "ort"})
    assert row_bytes(ort, 2) == 2 * 2 * (2 * 4 * (16 + 12) + 8) * 2


def test_more_tokens_or_rows_take_no_less_to_compute() -> None:
    manifest = letters_bundle().manifest
    sizes = [working_bytes(manifest, tokens, rows, 4) for tokens, rows in ((16, 1), (64, 4), (64, 64), (256, 64))]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0
