"""The scorer's thread, over a graph that is made up; and the graph of the model that ships."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from dragoman_server.bundle.manifest import Shape
from dragoman_server.core.errors import DeadlineExpiredError, EngineUnavailableError, OutOfMemoryError, QueueFullError
from dragoman_server.engine.scorer import MAX_RUN_ELEMENTS, Scorer, Target
from dragoman_server.metrics import ModelMetrics
from dragoman_server.runtime.device import CPU, WorkerLostError
from dragoman_server.runtime.scorer_session import ScorerSession
from tests.support.bundles import SHIPPED_G2P
from tests.support.fake_engines import FakeScorerSession, letters_bundle
from tests.support.waiting import until_async

SHAPE = letters_bundle().manifest.shape


class Bench:
    """A scorer, and what it runs on."""

    def __init__(self, shape: Shape = SHAPE, queue_size: int = 100) -> None:
        self.scoring, self.metrics = FakeScorerSession(), ModelMetrics()
        self.scorer = Scorer(self.scoring.load, shape, queue_size, self.metrics)

    async def busy(self) -> "asyncio.Task[object]":
        """Keeps the thread busy until the gate is opened."""
        self.scoring.gate.clear()
        task: asyncio.Task[object] = asyncio.create_task(self.scorer.score([Target([4, 3], [])], None))
        await until_async(self.scoring.started.is_set)
        return task

    def lengths(self) -> list[list[tuple[int, int]]]:
        return [lengths for lengths, _ in self.scoring.runs]


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    bench.scoring.gate.set()
    await bench.scorer.close()


def targets(*lengths: int) -> list[Target]:
    return [Target([4, 4, 3], [5] * length) for length in lengths]


async def test_what_waits_is_scored_together(bench: Bench) -> None:
    task = await bench.busy()
    assert bench.metrics.waits() == (0, 0)
    calls = [asyncio.create_task(bench.scorer.score(targets(*lengths), None)) for lengths in ((1, 2), (3,), (4, 5))]
    await until_async(lambda: bench.scorer.backlog()[0] == 5)
    assert bench.metrics.waits() == (5, 15), "targets, and their source tokens"
    bench.scoring.gate.set()
    await task
    scored = await asyncio.gather(*calls)
    assert bench.lengths() == [[(2, 0)], [(3, 1), (3, 2), (3, 3), (3, 4), (3, 5)]]
    assert [[len(each.log_probabilities) for each in answers] for answers in scored] == [[2, 3], [4], [5, 6]]
    assert scored[0][1].log_probabilities == [-0.25, -0.5, -0.75]
    assert bench.metrics.scored_tokens == 1 + 2 + 3 + 4 + 5 + 6
    assert bench.metrics.score_rows.sum == 6


async def test_attention_is_asked_for_where_one_wants_it(bench: Bench) -> None:
    task = await bench.busy()
    call = asyncio.create_task(
        bench.scorer.score(
            [Target([4, 4, 3], [5]), Target([4, 3], [5, 5], True), Target([4, 3], [], False, True)], None
        )
    )
    await until_async(lambda: bench.scorer.backlog()[0] == 3)
    bench.scoring.gate.set()
    await task
    plain, aligned, looked = await call
    assert [attention for _, attention in bench.scoring.runs] == [False, True]
    assert (plain.alignment, plain.attention) == (None, None)
    assert (aligned.alignment, aligned.attention) == ([0, 0, 0], None)
    assert looked.alignment is None
    assert looked.attention is not None
    assert looked.attention.shape == (2, 2, 1, 2)
    assert looked.attention.base is None  # it does not keep the whole run's


async def test_a_run_is_no_larger_than_its_bound_but_takes_one_in_any_case() -> None:
    # A target of n tokens, end token included, takes about n quarters of what a run may hold.
    shape = SHAPE.model_copy(update={"target_vocabulary": MAX_RUN_ELEMENTS // 4 - 100})
    bench = Bench(shape)
    task = await bench.busy()
    call = asyncio.create_task(bench.scorer.score(targets(0, 0, 0, 0, 1, 0, 9), None))
    await until_async(lambda: bench.scorer.backlog()[0] == 7)
    bench.scoring.gate.set()
    await task
    await call
    # Padding counts: the target of one token and that of none take four quarters together.
    assert bench.lengths() == [[(2, 0)], [(3, 0)] * 4, [(3, 1), (3, 0)], [(3, 9)]]
    await bench.scorer.close()


async def test_targets_that_may_wait_are_never_refused_and_take_turns_with_others() -> None:
    bench = Bench(queue_size=2)
    task = await bench.busy()
    waiting = [asyncio.create_task(bench.scorer.score(targets(1), None, may_wait=True)) for _ in range(4)]
    single = asyncio.create_task(bench.scorer.score(targets(2, 2), None))
    await until_async(lambda: bench.scorer.backlog()[0] == 6)
    with pytest.raises(QueueFullError):
        await bench.scorer.score(targets(3), None)
    bench.scoring.gate.set()
    await asyncio.gather(task, single, *waiting)
    assert bench.lengths() == [[(2, 0)], [(3, 1), (3, 2), (3, 1), (3, 2), (3, 1), (3, 1)]]
    await bench.scorer.close()


async def test_those_who_leave_or_come_too_late_are_not_scored(bench: Bench) -> None:
    task = await bench.busy()
    left = asyncio.create_task(bench.scorer.score(targets(1, 1), None))
    kept = asyncio.create_task(bench.scorer.score(targets(3), time.monotonic() + 600))
    await until_async(lambda: bench.scorer.backlog()[0] == 3)
    left.cancel()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert bench.scorer.backlog()[0] == 1
    with pytest.raises(DeadlineExpiredError):
        await bench.scorer.score(targets(2), time.monotonic() + 0.02)
    bench.scoring.gate.set()
    await asyncio.gather(task, kept)
    assert bench.lengths() == [[(2, 0)], [(3, 3)]]


async def test_a_deadline_passes_on_time_while_a_run_takes_long(bench: Bench) -> None:
    task = await bench.busy()
    with pytest.raises(DeadlineExpiredError):
        await asyncio.wait_for(bench.scorer.score(targets(2), time.monotonic() + 0.05), 10)
    assert not bench.scorer.backlog()[0]
    bench.scoring.gate.set()
    await task
    assert bench.lengths() == [[(2, 0)]]


async def test_a_full_queue_refuses_at_once_but_takes_a_large_call_where_nothing_waits() -> None:
    bench = Bench(queue_size=2)
    task = await bench.busy()
    large = asyncio.create_task(bench.scorer.score(targets(1, 1, 1), None))
    await until_async(lambda: bench.scorer.backlog()[0] == 3)
    with pytest.raises(QueueFullError) as refused:
        await bench.scorer.score(targets(1), None)
    assert 0.05 <= refused.value.retry_after <= 5
    bench.scoring.gate.set()
    await asyncio.gather(task, large)
    assert len(await bench.scorer.score(targets(1), None)) == 1
    await bench.scorer.close()


async def test_an_error_ends_all_that_wait_and_what_comes_next_starts_anew(bench: Bench) -> None:
    task = await bench.busy()
    waiting = asyncio.create_task(bench.scorer.score(targets(1), None))
    await until_async(lambda: bench.scorer.backlog()[0] == 1)
    bench.scoring.error = RuntimeError("CUDA has lost the device\nand more")
    with capture_logs() as entries:
        bench.scoring.gate.set()
        for call in (task, waiting):
            with pytest.raises(EngineUnavailableError, match=r"^the scorer failed: RuntimeError$"):
                await call
    assert entries == [
        {
            "event": "scorer failed",
            "log_level": "error",
            "error": "RuntimeError",
            "detail": "CUDA has lost the device",
        }
    ]
    assert len(await bench.scorer.score(targets(1), None)) == 1
    assert bench.scoring.loads == 2


async def test_without_memory_for_all_at_once_they_are_scored_in_parts(bench: Bench) -> None:
    task = await bench.busy()
    bench.scoring.most_rows = 2
    calls = [asyncio.create_task(bench.scorer.score(targets(length), None)) for length in range(1, 6)]
    await until_async(lambda: bench.scorer.backlog()[0] == 5)
    bench.scoring.gate.set()
    await task
    lengths = [len(scored.log_probabilities) for call in calls for scored in await call]
    assert lengths == [2, 3, 4, 5, 6]
    assert max(len(rows) for rows in bench.lengths()) == 2
    bench.scoring.most_rows = 0
    with pytest.raises(OutOfMemoryError):
        await bench.scorer.score(targets(1), None)
    bench.scoring.most_rows = None
    assert len(await bench.scorer.score(targets(1), None)) == 1
    assert bench.scoring.loads == 1, "the thread goes on"
    assert bench.metrics.device_errors["out_of_memory"] > 1


async def test_another_worker_scores_where_one_is_lost(bench: Bench) -> None:
    assert len(await bench.scorer.score(targets(1), None)) == 1
    bench.scoring.error = WorkerLostError("the worker process has ended")
    assert len(await bench.scorer.score(targets(1, 2), None)) == 2
    assert bench.scoring.loads == 2


async def test_a_graph_that_can_not_be_loaded_is_told_each_time() -> None:
    def load() -> FakeScorerSession:
        raise BundleError("no such input")

    scorer = Scorer(load, SHAPE, 10, ModelMetrics())
    for _ in range(2):
        with pytest.raises(EngineUnavailableError, match=r"^the scorer failed: BundleError$"):
            await scorer.score(targets(1, 2), None)
    await scorer.close()


async def test_closing_ends_what_waits_and_refuses_what_comes() -> None:
    bench = Bench()
    task = await bench.busy()
    waiting = asyncio.create_task(bench.scorer.score(targets(1), None))
    await until_async(lambda: bench.scorer.backlog()[0] == 1)
    closing = asyncio.create_task(bench.scorer.close())
    await asyncio.sleep(0)
    bench.scoring.gate.set()
    await closing
    assert await task
    with pytest.raises(EngineUnavailableError, match="the server is stopping"):
        await waiting
    with pytest.raises(EngineUnavailableError, match="the model is stopping"):
        await bench.scorer.score(targets(1), None)
    assert "scorer" not in [thread.name for thread in threading.enumerate()]


async def test_closing_what_never_scored_is_nothing() -> None:
    bench = Bench()
    await bench.scorer.close()
    assert bench.scoring.loads == 0


@pytest.fixture(scope="module")
def shipped() -> Bundle:
    return load_bundle(SHIPPED_G2P)


@pytest.fixture(scope="module")
def runtime(shipped: Bundle) -> ScorerSession:
    return ScorerSession(shipped, CPU, 1)


def test_padding_changes_nothing(shipped: Bundle, runtime: ScorerSession) -> None:
    sources = [shipped.source_tokenizer.encode(text).ids for text in ("hello", "a", "transformer")]
    spoken = ("HH EH L OW", "", "T R AE N S F AO R M ER")
    answers = [shipped.target_tokenizer.encode(text, add_special_tokens=False).ids for text in spoken]
    together, looks = runtime.run(sources, answers, True)
    assert together.shape == (3, 11)
    assert looks is not None
    for row, (source, answer) in enumerate(zip(sources, answers, strict=True)):
        alone, look = runtime.run([source], [answer], True)
        size = len(answer) + 1
        np.testing.assert_allclose(together[row, :size], alone[0], atol=1e-4)
        assert look is not None
        np.testing.assert_allclose(looks[row, :, :, :size, : len(source)], look[0], atol=1e-4)
        np.testing.assert_allclose(look.sum(-1), 1, atol=1e-5)
        without, none = runtime.run([source], [answer], False)
        np.testing.assert_array_equal(without, alone)
        assert none is None


def test_all_that_may_come_next_has_probability_1_together(shipped: Bundle, runtime: ScorerSession) -> None:
    """So the log-probabilities are of the tokens they are said to be of, the end token's among them."""
    source, end = shipped.source_tokenizer.encode("hello").ids, shipped.manifest.tokens.end
    start = shipped.target_tokenizer.encode("HH EH", add_special_tokens=False).ids
    others = [token for token in range(shipped.manifest.shape.target_vocabulary) if token != end]
    rows = [start, *([*start, token] for token in others)]
    scores, _ = runtime.run([source] * len(rows), rows, False)
    assert np.exp(scores[:, 2]).sum() == pytest.approx(1, abs=1e-4)
    right = start + shipped.target_tokenizer.encode("L OW", add_special_tokens=False).ids
    [best], _ = runtime.run([source], [right], False)
    assert best.sum() > -2
    assert scores[0, 2] < -5  # it would be no end
