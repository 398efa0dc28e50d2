"""The engine thread and its pool, over a fake runtime that computes with plain numbers."""

import asyncio
import gc
import time
import weakref
from functools import partial

import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.core.errors import DeadlineExpiredError, EngineUnavailableError, OutOfMemoryError, QueueFullError
from dragoman_server.core.requests import FinishReason, GenerationResult, Progress
from dragoman_server.decoding.factory import make_search
from dragoman_server.decoding.text_stream import TargetDecoder
from dragoman_server.engine.engine import Engine
from dragoman_server.engine.engine_options import EngineOptions, choose_engines, scheduling_for, weight_bytes
from dragoman_server.engine.generation import Generation
from dragoman_server.engine.job import Event, Job
from dragoman_server.engine.scheduler import Scheduler, SchedulerOptions
from dragoman_server.engine.shared_queue import SharedQueue
from dragoman_server.runtime.device import Device, is_out_of_memory
from tests.support.bundles import SHIPPED_G2P
from tests.support.counting_engines import END, CountingRuntime, Metrics, at_rest, eager, pool_of, request
from tests.support.fake_engines import letters, letters_bundle
from tests.support.waiting import PATIENCE, until_async


async def test_answers_do_not_depend_on_batch_mates() -> None:
    runtimes = CountingRuntime(8), CountingRuntime(8)
    sources = [tuple(range(10, 10 + 1 + i % 13)) for i in range(300)]
    async with pool_of(*runtimes) as pool:
        for runtime in runtimes:
            runtime.gate.clear()
        pending = [pool.submit(request(*source)) for source in sources]
        await until_async(lambda: all(runtime.encoded for runtime in runtimes))
        for runtime in runtimes:
            runtime.gate.set()
        answers = await asyncio.gather(*(generation.result() for generation in pending))
        await until_async(lambda: at_rest(pool))
    for source, answer in zip(sources, answers, strict=True):
        (hypothesis,) = answer.hypotheses
        assert hypothesis.ids == list(reversed(source))
        assert hypothesis.reason is FinishReason.EOS
        assert len(hypothesis.log_probabilities) == len(source) + 1, "the end token has one too"
    assert all(runtime.steps for runtime in runtimes), "both engines worked"
    assert max(runtime.most_rows for runtime in runtimes) == 8, "requests shared steps"


async def test_length_limit_is_exact_and_the_last_token_is_kept() -> None:
    async with pool_of(CountingRuntime(2)) as pool:
        answer = await pool.submit(request(5, 6, 7, 8, limit=3)).result()
        exact = await pool.submit(request(5, 6, 7, limit=3)).result()
    assert answer.hypotheses[0].ids == [8, 7, 6]
    assert answer.hypotheses[0].reason is FinishReason.LENGTH
    assert exact.hypotheses[0].reason is FinishReason.LENGTH, "nobody looked whether the end token comes next"


async def test_stream_gives_every_token_once_and_then_the_answer() -> None:
    async with pool_of(CountingRuntime(2)) as pool:
        events = [event async for event in pool.submit(request(5, 6, 7, streaming=True)).events()]
    *progress, last = events
    assert [token for event in progress if isinstance(event, Progress) for token in event.ids] == [7, 6, 5]
    assert isinstance(last, GenerationResult)
    assert last.hypotheses[0].ids == [7, 6, 5]


async def test_cancelled_running_request_frees_its_row_at_the_next_step() -> None:
    runtime, metrics = CountingRuntime(1), Metrics()
    runtime.gate.clear()
    async with pool_of(runtime, metrics=metrics) as pool:
        endless = pool.submit(request(*range(10, 60)))
        await until_async(lambda: runtime.encoded)
        waiting = pool.submit(request(7))
        endless.cancel()
        steps = runtime.steps
        runtime.gate.set()
        assert (await waiting.result()).hypotheses[0].ids == [7]
        assert runtime.steps - steps <= 4, "one step for the cancelled one, two for the other"
        assert metrics.drops == [("cancelled", "running")]
        await until_async(lambda: at_rest(pool))


async def test_cancel_works_after_the_waiting_task_was_cancelled() -> None:
    runtime = CountingRuntime(1)
    runtime.gate.clear()
    async with pool_of(runtime) as pool:
        generation = pool.submit(request(5, 6))
        waiter = asyncio.ensure_future(generation.result())
        await asyncio.sleep(0.01)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        generation.cancel()
        generation.cancel()
        runtime.gate.set()
        await until_async(lambda: at_rest(pool))


async def test_cancelled_waiting_request_is_never_encoded() -> None:
    runtime, metrics = CountingRuntime(1), Metrics()
    runtime.gate.clear()
    async with pool_of(runtime, metrics=metrics) as pool:
        first = pool.submit(request(5))
        await until_async(lambda: runtime.encoded)
        second = pool.submit(request(6))
        second.cancel()
        runtime.gate.set()
        await first.result()
        await until_async(lambda: at_rest(pool))
    assert runtime.encoded == [[5, END]]
    assert metrics.drops == [("cancelled", "waiting")]


async def test_expired_running_request_fails_and_its_batch_mate_goes_on() -> None:
    runtime = CountingRuntime(2)
    runtime.gate.clear()
    async with pool_of(runtime) as pool:
        late = pool.submit(request(*range(10, 40), deadline=time.monotonic() + 0.03))
        mate = pool.submit(request(*range(10, 40)))
        await until_async(lambda: len(runtime.encoded) >= 1)
        await asyncio.sleep(0.05)
        runtime.gate.set()
        with pytest.raises(DeadlineExpiredError):
            await late.result()
        assert (await mate.result()).hypotheses[0].ids == list(reversed(range(10, 40)))


@pytest.mark.parametrize("end", ["answer", "listener", "cancel"])
async def test_an_ended_request_leaves_nothing_to_the_garbage_collector(end: str) -> None:
    runtime, heard = CountingRuntime(2), list[object]()
    gc.collect()
    gc.disable()  # it stops every thread for its time
    try:
        async with pool_of(runtime) as pool:
            generation = pool.submit(request(5, 6))
            if end == "answer":
                await generation.result()
            elif end == "listener":
                generation.notify(partial(_keep, heard, generation))
                await until_async(lambda: bool(heard))
            else:
                generation.cancel()
            gone = weakref.ref(generation)
            del generation
            await until_async(lambda: gone() is None)
    finally:
        gc.enable()


def _keep(heard: list[object], generation: Generation, event: object) -> None:
    assert generation
    heard.append(event)


async def test_time_limit_returns_what_there_is() -> None:
    runtime = CountingRuntime(1)
    runtime.hold_at = 4
    async with pool_of(runtime) as pool:
        generation = pool.submit(request(*range(10, 40), time_limit=(limit := time.monotonic() + 1.5)))
        await until_async(lambda: not runtime.gate.is_set())
        await until_async(lambda: time.monotonic() > limit)
        runtime.hold_at = None
        runtime.gate.set()
        (answer,) = (await generation.result()).hypotheses
    assert answer.reason is FinishReason.TIME_LIMIT
    assert answer.ids == [39, 38, 37, 36, 35], "four steps before the limit passed, and the one that was under way"


async def test_full_queue_refuses_and_serves_those_it_took() -> None:
    runtime = CountingRuntime(1)
    runtime.gate.clear()
    async with pool_of(runtime, queue_size=2) as pool:
        taken = [pool.submit(request(5))]
        await until_async(lambda: runtime.encoded)
        taken += [pool.submit(request(6)), pool.submit(request(7))]
        with pytest.raises(QueueFullError):
            pool.submit(request(8))
        runtime.gate.set()
        answers = [await generation.result() for generation in taken]
    assert [answer.hypotheses[0].ids for answer in answers] == [[5], [6], [7]]


async def test_an_error_ends_what_runs_and_the_engine_goes_on() -> None:
    runtime, metrics = CountingRuntime(2), Metrics()
    runtime.gate.clear()
    async with pool_of(runtime, metrics=metrics) as pool:
        running = pool.submit(request(5))
        await until_async(lambda: runtime.encoded)
        runtime.errors = [RuntimeError("device lost")]
        waiting = pool.submit(request(6))
        runtime.gate.set()
        with pytest.raises(EngineUnavailableError, match="RuntimeError"):
            await running.result()
        assert (await waiting.result()).hypotheses[0].ids == [6]
        assert not pool.failed.is_set()
        await until_async(lambda: at_rest(pool))
    assert metrics.drops == [("failed", "running")]
    assert metrics.errors == ["other"]


async def test_too_many_errors_in_a_row_end_the_engine() -> None:
    runtime = CountingRuntime(1)
    async with pool_of(runtime, max_errors=3) as pool:
        runtime.errors = [RuntimeError("device lost")] * 2
        for _ in range(2):
            with pytest.raises(EngineUnavailableError):
                await pool.submit(request(5)).result()
        assert (await pool.submit(request(6)).result()).hypotheses[0].ids == [6], "a step that was made ends the row"
        runtime.errors = [RuntimeError("device lost")] * 3
        runtime.gate.clear()
        asked = [pool.submit(request(5)) for _ in range(5)]
        runtime.gate.set()
        for generation in asked:
            with pytest.raises(EngineUnavailableError):
                await generation.result()
        await asyncio.wait_for(pool.failed.wait(), 5)
        assert not pool.available
        with pytest.raises(EngineUnavailableError):
            pool.submit(request(7))


@pytest.mark.parametrize("message", ["Failed to allocate memory for requested buffer of size 4096", "std::bad_alloc"])
def test_out_of_memory_errors_of_onnx_runtime_are_recognized(message: str) -> None:
    assert is_out_of_memory(Fail(message))
    assert is_out_of_memory(RuntimeError(f"Error in execution: Non-zero status code returned: {message}"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(Fail("Non-zero status code"))
    assert not is_out_of_memory(ValueError(message)), "a mistake of ours that happens to say so"


async def test_without_memory_for_a_step_the_younger_half_gives_way() -> None:
    runtime, metrics = CountingRuntime(8), Metrics()
    runtime.gate.clear()
    async with pool_of(runtime, metrics=metrics) as pool:
        first = pool.submit(request(10, 11))
        await until_async(lambda: runtime.encoded)
        others = [pool.submit(request(20 + i, 30 + i)) for i in range(7)]
        runtime.most_memory = 3
        runtime.gate.set()
        answers = await asyncio.gather(*(each.result() for each in [first, *others]), return_exceptions=True)
        after = await pool.submit(request(5)).result()
        await until_async(lambda: at_rest(pool))
    kept = [answer for answer in answers if not isinstance(answer, BaseException)]
    assert all(isinstance(answer, GenerationResult | OutOfMemoryError) for answer in answers)
    assert isinstance(answers[0], GenerationResult), "the oldest stays"
    assert len(kept) >= 2, "no more than half of those that run, and half of the rest, give way"
    for answer, ids in zip(answers[1:], ([30 + i, 20 + i] for i in range(7)), strict=True):
        assert not isinstance(answer, GenerationResult) or answer.hypotheses[0].ids == ids
    assert after.hypotheses[0].ids == [5]
    assert set(metrics.errors) == {"out_of_memory"}
    assert metrics.drops.count(("failed", "running")) == 8 - len(kept)


async def test_a_request_that_alone_is_too_large_fails_and_the_engine_goes_on() -> None:
    runtime = CountingRuntime(4)
    async with pool_of(runtime, max_errors=1) as pool:
        runtime.most_memory = 0
        for _ in range(5):
            with pytest.raises(OutOfMemoryError):
                await pool.submit(request(5)).result()
        runtime.most_memory = None
        assert (await pool.submit(request(6)).result()).hypotheses[0].ids == [6]
        assert not pool.failed.is_set()


async def test_without_memory_to_encode_all_at_once_they_are_encoded_in_parts() -> None:
    runtime = CountingRuntime(8)
    runtime.gate.clear()
    async with pool_of(runtime) as pool:
        first = pool.submit(request(10))
        await until_async(lambda: runtime.encoded)
        others = [pool.submit(request(*range(10, 12 + i))) for i in range(6)]
        runtime.most_encoded = 2
        runtime.gate.set()
        await first.result()
        answers = await asyncio.gather(*(each.result() for each in others))
        huge = pool.submit(request(5))
        assert (await huge.result()).hypotheses[0].ids == [5]
        runtime.most_encoded = 0
        with pytest.raises(OutOfMemoryError):
            await pool.submit(request(5)).result()
        await until_async(lambda: at_rest(pool))
    assert [answer.hypotheses[0].ids for answer in answers] == [[*range(11 + i, 9, -1)] for i in range(6)]


async def test_close_ends_what_is_unanswered() -> None:
    runtime = CountingRuntime(1)
    runtime.gate.clear()
    async with pool_of(runtime) as pool:
        generation = pool.submit(request(*range(10, 60)))
        await until_async(lambda: runtime.encoded)
        closing = asyncio.ensure_future(pool.close())
        await asyncio.sleep(0.01)
        runtime.gate.set()
        await closing
        with pytest.raises(EngineUnavailableError):
            await generation.result()


def test_a_finished_request_gets_its_result_though_the_runtime_fails_the_others() -> None:
    """Both are taken from the queue in the same turn, in which the runtime fails."""
    queue, metrics, runtime = SharedQueue(Scheduler(1, eager())), Metrics(), CountingRuntime(2)
    tokens = letters_bundle().manifest.tokens
    runtime.errors = [RuntimeError("device lost")]
    late, healthy = (
        Job(each, make_search(each.search, tokens, 50, TargetDecoder(letters())), time.monotonic())
        for each in (request(5, time_limit=0.0), request(6))
    )
    delivered: list[tuple[Job, Event]] = []
    failures: list[BaseException] = []
    for job in (late, healthy):
        queue.scheduler.submit(job)
    engine = Engine(0, runtime, queue, metrics, delivered.extend, failures.append, max_errors=1)
    engine.start()
    engine.join(PATIENCE)
    assert [(job, type(event)) for job, event in delivered] == [
        (late, GenerationResult),
        (healthy, EngineUnavailableError),
    ]
    assert metrics.drops == [("failed", "running")]
    assert len(failures) == 1


def test_an_idle_engine_ends_when_the_queue_stops() -> None:
    queue = SharedQueue(Scheduler(1, eager()))
    engine = Engine(0, CountingRuntime(1), queue, Metrics(), lambda events: None, lambda error: None)
    engine.start()
    with queue.lock:
        queue.stopping = True
        queue.wake_all()
    engine.join(PATIENCE)
    assert not engine._thread.is_alive()


@pytest.mark.parametrize(
    ("cores", "weights", "chosen", "expected"),
    [
        (2, 6_000_000, {}, (2, 1)),
        (2, 127_000_000, {}, (2, 1)),
        (1, 6_000_000, {}, (1, 1)),
        (2, 308_000_000, {}, (1, 2)),
        (1, 308_000_000, {}, (1, 1)),
        (16, 308_000_000, {}, (2, 8)),
        (12, 308_000_000, {}, (2, 6)),
        (9, 308_000_000, {}, (2, 4)),
        (64, 308_000_000, {}, (8, 8)),
        (4, 6_000_000, {}, (4, 1)),
        (8, 6_000_000, {}, (8, 1)),
        (4, 308_000_000, {}, (1, 4)),
        (8, 308_000_000, {}, (1, 8)),
        (8, 6_000_000, {"engines": 2}, (2, 4)),
        (8, 308_000_000, {"threads_per_engine": 2}, (4, 2)),
        (2, 6_000_000, {"engines": 4}, (4, 1)),
        (2, 6_000_000, {"threads_per_engine": 4}, (1, 4)),
        (2, 6_000_000, {"engines": 1, "threads_per_engine": 3}, (1, 3)),
    ],
)
def test_cores_are_shared_out_by_the_size_of_the_model(
    cores: int, weights: int, chosen: dict[str, int], expected: tuple[int, int]
) -> None:
    options = EngineOptions(cores=cores, **chosen)  # type: ignore[arg-type]
    assert choose_engines(options, Device("cpu"), weights) == expected


def test_the_last_engine_waits_for_a_group_only_where_the_model_is_small() -> None:
    manifest = letters_bundle().manifest
    large = manifest.model_copy(update={"shape": manifest.shape.model_copy(update={"parameters": 77_000_000})})
    options = EngineOptions(scheduling=SchedulerOptions(min_rows_per_engine=4, min_single_rows_per_engine=20))

    def rows(manifest: Manifest, max_rows: int, shared: bool = True) -> tuple[int, int]:
        scheduling = scheduling_for(options, manifest, max_rows, Device("cpu"), shared)
        return scheduling.min_rows_per_engine, scheduling.min_single_rows_per_engine

    assert [rows(manifest, 32), rows(large, 32), rows(manifest, 32, shared=False)] == [(4, 20), (1, 1), (1, 1)]
    assert rows(manifest, 8) == (2, 6), "some rows stay free"
    assert rows(manifest, 1) == (1, 1)


def test_a_model_has_about_as_many_bytes_of_weights_as_its_bundle_has_in_files() -> None:
    assert weight_bytes(load_bundle(SHIPPED_G2P).manifest) == pytest.approx(5_300_000, rel=0.1)


def test_one_engine_feeds_a_gpu() -> None:
    assert choose_engines(EngineOptions(cores=16), Device("cuda"), 308_000_000) == (1, 1)
