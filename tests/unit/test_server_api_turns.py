"""Requests that wait for room in the queue, and those that come meanwhile, go by turns."""

import asyncio
import time
from dataclasses import replace

import pytest

from dragoman.v1 import generation_pb2 as pb
from dragoman_server.core.errors import EngineUnavailableError, QueueFullError
from dragoman_server.core.requests import GenerationRequest, Priority
from dragoman_server.core.search_options import SearchOptions
from dragoman_server.messages.turns import Turns
from tests.support.fake_engines import FakeEngines, serve_fake

HURRIED = replace(GenerationRequest([5], SearchOptions(1)), priority=Priority.INTERACTIVE)
PATIENT = replace(HURRIED, priority=Priority.BATCH)


class Queued:
    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Queue:
    """With so much room."""

    def __init__(self) -> None:
        self.room = 0
        self.error: Exception | None = None
        self.queued: list[Queued] = []

    def submit(self, request: GenerationRequest) -> Queued:
        if self.error:
            raise self.error
        if request.time_limit is None:
            if not self.room:
                raise QueueFullError(1.0)
            self.room -= 1
        self.queued.append(Queued(request))
        return self.queued[-1]


async def started(turns: Turns[Queued], request: GenerationRequest) -> "asyncio.Task[Queued]":
    task = asyncio.create_task(turns.wait(request))
    await asyncio.sleep(0)
    return task


async def test_places_go_by_turns() -> None:
    queue = Queue()
    turns = Turns(queue.submit)
    queue.room = 1
    turns.submit(PATIENT)
    waits = [await started(turns, replace(PATIENT, source_ids=[number])) for number in range(2)]
    queue.room = 1
    with pytest.raises(QueueFullError):  # the last place went to one that came new
        turns.submit(PATIENT)
    assert (await waits[0]).request.source_ids == [0]
    queue.room = 1
    assert turns.submit(PATIENT).request == PATIENT
    queue.room = 2
    assert turns.submit(PATIENT).request == PATIENT
    assert (await waits[1]).request.source_ids == [1]
    assert queue.room == 0


async def test_those_that_wait_get_their_place_though_nobody_comes() -> None:
    queue = Queue()
    waits = [await started(Turns(queue.submit), PATIENT) for _ in range(2)]
    queue.room = 2
    assert {(await each).request.priority for each in waits} == {Priority.BATCH}


async def test_one_whose_time_is_over_waits_for_nobody() -> None:
    queue = Queue()
    turns = Turns(queue.submit)
    first = await started(turns, PATIENT)
    limited = await started(turns, replace(PATIENT, time_limit=time.monotonic() + 0.05))
    assert (await limited).request.time_limit is not None
    assert not first.done()
    queue.room = 1
    await first


async def test_each_priority_has_its_turns() -> None:
    queue = Queue()
    turns = Turns(queue.submit)
    queue.room = 1
    turns.submit(PATIENT)
    waiting = await started(turns, PATIENT)
    queue.room = 1
    assert turns.submit(HURRIED).request.priority is Priority.INTERACTIVE
    queue.room = 1
    await waiting


async def test_one_that_leaves_takes_no_place() -> None:
    queue = Queue()
    turns = Turns(queue.submit)
    leaving, staying = await started(turns, PATIENT), await started(turns, PATIENT)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    queue.room = 1
    assert await staying is queue.queued[0]
    queue.room = 1
    turns.submit(PATIENT)
    late = await started(turns, PATIENT)
    queue.room = 1
    with pytest.raises(QueueFullError):
        turns.submit(PATIENT)
    late.cancel()  # it has its place, and does not know yet
    await asyncio.gather(late, return_exceptions=True)
    assert queue.queued[-1].cancelled


async def test_an_engine_that_stops_is_told_to_those_that_wait() -> None:
    queue = Queue()
    waiting = await started(Turns(queue.submit), PATIENT)
    queue.error = EngineUnavailableError("the model is stopping")
    with pytest.raises(EngineUnavailableError):
        await waiting


async def test_a_batch_is_not_kept_out_by_those_that_come_again_and_again() -> None:
    """They try far more often than the batch looks for room."""
    engines = FakeEngines(automatic=False, room=4)
    async with serve_fake(engines, window=4) as server:
        word = pb.Input(text="drawer")
        batch = server.stub.GenerateBatch(pb.GenerateBatchRequest(inputs=[word] * 12), timeout=60)
        await engines.until(4)
        model = server.registry.find("").model
        request = replace(engines.accepted[0].request, source_ids=[])
        taken = 0

        def taken_of_the_batch() -> int:
            return sum(bool(each.request.source_ids) for each in engines.accepted)

        while taken_of_the_batch() < 12:
            await asyncio.sleep(0.001)
            if engines.running:
                engines.running[0].finish()
            try:
                model.submit(request)
                taken += 1
            except QueueFullError:
                pass
        assert taken >= 4, "others got in between"
        assert taken <= 40
        while engines.running:
            engines.running[0].finish()
        assert len((await batch).items) == 12
