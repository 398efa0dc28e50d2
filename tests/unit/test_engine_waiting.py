"""Those who wait: for an engine that is in a long step, for a reader who is slow, or for nobody any more."""

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest

from dragoman_server.core.errors import DeadlineExpiredError, QueueFullError
from dragoman_server.core.requests import (
    BeamProgress,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    HypothesisResult,
    Priority,
    Progress,
    TokenChoice,
)
from dragoman_server.core.search import StepRequest
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.runtime.step_results import TopKResult
from tests.support.counting_engines import END, CountingRuntime, Metrics, at_rest, pool_of, request
from tests.support.waiting import until_async

MANY = tuple(range(10, 60))


async def test_limits_pass_on_time_while_the_only_engine_is_in_one_endless_step() -> None:
    runtime, metrics = CountingRuntime(1), Metrics()
    runtime.gate.clear()
    async with pool_of(runtime, metrics=metrics) as pool:
        busy = pool.submit(request(*MANY))
        await until_async(lambda: runtime.encoded)
        now = time.monotonic()
        patient = pool.submit(request(5, deadline=now + 600))
        limited = pool.submit(request(6, time_limit=now + 0.2))
        late = pool.submit(request(7, deadline=now + 0.1, streaming=True))
        with pytest.raises(DeadlineExpiredError):
            await asyncio.wait_for(late.result(), 30)
        (answer,) = (await asyncio.wait_for(limited.result(), 30)).hypotheses
        assert (answer.reason, answer.ids) == (FinishReason.TIME_LIMIT, [])
        assert not runtime.gate.is_set(), "the engine has not come back from its step"
        assert (metrics.drops, metrics.reasons) == ([("expired", "waiting")], [FinishReason.TIME_LIMIT])
        assert metrics.waits() == (1, 2)
        runtime.gate.set()
        assert (await busy.result()).hypotheses[0].ids == [*reversed(MANY)]
        assert (await patient.result()).hypotheses[0].ids == [5]
        await until_async(lambda: at_rest(pool))
    assert runtime.encoded == [[*MANY, END], [5, END]], "overdue requests are never encoded"


async def test_a_limit_that_is_earlier_than_the_one_before_is_not_missed() -> None:
    runtime = CountingRuntime(1)
    runtime.gate.clear()
    async with pool_of(runtime) as pool:
        pool.submit(request(*MANY))
        await until_async(lambda: runtime.encoded)
        now = time.monotonic()
        generations = [pool.submit(request(5, deadline=now + seconds)) for seconds in (0.3, 0.2, 0.1, 600)]
        ends = []
        for generation in reversed(generations[:3]):
            with pytest.raises(DeadlineExpiredError):
                await asyncio.wait_for(generation.result(), 30)
            ends.append(time.monotonic() - now)
        assert [end >= least for end, least in zip(ends, (0.1, 0.2, 0.3), strict=True)] == [True] * 3
        generations[3].cancel()


class EndingRuntime(CountingRuntime):
    """The end token is the most probable first one, and the answer's own the second."""

    def step(self, step_requests: Sequence[StepRequest]) -> TopKResult:
        own = super().step(step_requests).ids[:, :1]
        first = self.positions[: len(own), None] == 0
        ids = np.hstack([np.where(first, END, own), np.where(first, own, END)])
        return TopKResult(ids, np.tile(np.array([-0.5, -1.5], np.float32), (len(own), 1)))


async def test_rows_that_a_search_no_longer_needs_are_free_at_once() -> None:
    """Of two alternatives the first ends with the first step, and the other goes on alone in its row."""
    runtime = EndingRuntime(2)
    runtime.gate.clear()
    async with pool_of(runtime) as pool:
        both = pool.submit(GenerationRequest([*MANY, END], SearchOptions(50, num_hypotheses=2, alternatives=True)))
        await until_async(lambda: runtime.encoded)
        waiting = pool.submit(request(7))
        runtime.hold_at = 3
        runtime.gate.set()
        await until_async(lambda: runtime.steps == 3)
        assert len(runtime.encoded) == 2, "it need not wait for the end of the first"
        runtime.gate.set()
        answer = await both.result()
        assert [hypothesis.ids for hypothesis in answer.hypotheses] == [[], list(reversed(MANY))]
        await waiting.result()
        await until_async(lambda: at_rest(pool))


async def test_requests_cancelled_during_encoding_are_evicted_before_the_next_step() -> None:
    runtime, metrics = CountingRuntime(4), Metrics()
    runtime.hold_encoding()
    async with pool_of(runtime, metrics=metrics) as pool:
        leaves, stays = pool.submit(request(*MANY)), pool.submit(request(7, 8))
        await until_async(lambda: runtime.encoding)
        leaves.cancel()
        runtime.gate.set()
        assert (await stays.result()).hypotheses[0].ids == [8, 7]
        await until_async(lambda: at_rest(pool))
    assert metrics.drops == [("cancelled", "running")]
    assert runtime.steps <= 4


async def test_a_slow_reader_delays_nobody_and_gets_everything_in_few_events() -> None:
    runtime = CountingRuntime(2)
    async with pool_of(runtime) as pool:
        generation = pool.submit(request(*MANY, streaming=True))
        events = generation.events()
        first = await anext(events)
        others = [pool.submit(request(5, 6)) for _ in range(50)]
        for other in others:
            await other.result()
        await until_async(lambda: at_rest(pool))  # the stream's request is answered, and gave its row back
        rest = [event async for event in events]
    told = [event for event in (first, *rest) if isinstance(event, Progress)]
    assert [token for event in told for token in event.ids] == [*reversed(MANY)]
    assert len(told) <= 3, "what he had taken, what was under way then, and the rest"
    assert isinstance(rest[-1], GenerationResult)


async def test_unread_progress_is_merged_by_hypothesis() -> None:
    runtime = CountingRuntime(1)
    runtime.gate.clear()
    choice = TokenChoice(1, -0.5)
    async with pool_of(runtime) as pool:
        generation = pool.submit(request(5, streaming=True))
        for event in (
            Progress([4], [], []),  # a forced prefix
            BeamProgress(1, 2, 3),
            Progress([5], [-0.5], [[choice]]),
            Progress([6], [-1.5], [[choice]], hypothesis=1),
            Progress([7], [-2.5], [[]]),
            BeamProgress(2, 2, 4),
        ):
            generation.deliver(event)
        events = generation.events()
        taken = [await anext(events) for _ in range(4)]
        assert taken == [
            Progress([4], [], []),
            BeamProgress(2, 2, 4),
            Progress([5, 7], [-0.5, -2.5], [[choice], []]),
            Progress([6], [-1.5], [[choice]], hypothesis=1),
        ]
        generation.deliver(Progress([8], [-0.5], [[]]))
        generation.deliver(GenerationResult([HypothesisResult([8], [], FinishReason.EOS)]))
        assert [type(event) async for event in events] == [Progress, GenerationResult]


async def test_a_stream_that_is_cancelled_ends_for_its_reader() -> None:
    runtime = CountingRuntime(1)
    runtime.gate.clear()
    async with pool_of(runtime) as pool:
        generation = pool.submit(request(5, streaming=True))
        reading = asyncio.ensure_future(anext(generation.events()))
        await until_async(lambda: runtime.encoded)
        generation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(reading, 30)


async def test_a_queue_full_of_tokens_refuses_and_each_priority_has_its_own() -> None:
    runtime = CountingRuntime(1)
    runtime.gate.clear()
    async with pool_of(runtime, scheduling={"queue_tokens": 10}) as pool:
        pool.submit(request(5))
        await until_async(lambda: runtime.encoded)
        pool.submit(request(5, 6, 7, 8, 9))
        with pytest.raises(QueueFullError, match="too many source tokens are waiting") as refused:
            pool.submit(request(5, 6, 7, 8))
        assert refused.value.bound == "tokens"
        pool.submit(request(5, 6, 7, 8, priority=Priority.BATCH))
        runtime.gate.set()
        await until_async(lambda: at_rest(pool))


async def test_an_overdue_request_ends_as_overdue_even_if_the_queue_is_full() -> None:
    runtime = CountingRuntime(1)
    runtime.gate.clear()
    async with pool_of(runtime, queue_size=1) as pool:
        pool.submit(request(5))
        await until_async(lambda: runtime.encoded)
        pool.submit(request(6))
        past = time.monotonic() - 1
        (answer,) = (await asyncio.wait_for(pool.submit(request(7, time_limit=past)).result(), 10)).hypotheses
        assert (answer.reason, answer.ids) == (FinishReason.TIME_LIMIT, [])
        with pytest.raises(DeadlineExpiredError):
            await asyncio.wait_for(pool.submit(request(7, deadline=past)).result(), 10)
        with pytest.raises(QueueFullError):
            pool.submit(request(7, deadline=time.monotonic() + 600))
        runtime.gate.set()
        await until_async(lambda: at_rest(pool))


async def test_new_jobs_of_very_different_lengths_are_encoded_in_several_runs() -> None:
    runtime = CountingRuntime(12)
    runtime.gate.clear()
    async with pool_of(runtime) as pool:
        first = pool.submit(request(5))
        await until_async(lambda: runtime.encoded)
        sources = [(10 + index, *([9] * (40 if index % 4 == 0 else 1))) for index in range(9)]
        generations = [pool.submit(request(*source)) for source in sources]
        runtime.gate.set()
        answers = [(await generation.result()).hypotheses[0].ids for generation in generations]
        await first.result()
    assert answers == [[*reversed(source)] for source in sources]
    assert max(runtime.padding_shares) <= 0.5
    assert len(runtime.padding_shares) < 6
