"""Many inputs in one call: each with its own answer or error, and only so many at the engines at once."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dragoman.v1 import generation_pb2 as pb
from server.api.errors import ApiError, Rejection, from_engine, invalid
from server.api.model import PendingAnswer, ServedModel
from server.engine.requests import DeadlineExpiredError, EngineUnavailableError, GenerationRequest, QueueFullError

MAX_ITEMS = 10_000
ROOM_SECONDS = 0.02  # how often an item that found the queue full looks again


class Batch:
    """One GenerateBatch call.

    At most `model.batch_window` items wait or run at the same time, so that a batch never fills the queue by itself and
    others get in between. An item that finds the queue full waits for room, as long as the call's deadline allows; only
    a batch whose very first item finds it full is refused as a whole, at once, as a single request would be.

    Args:
        model: the model.
        request: what all items share; its `source_ids` are replaced by each item's.
        details: what to return beside the text.
        reject: counts an item that is refused.
    """

    def __init__(
        self, model: ServedModel, request: GenerationRequest, details: pb.Details, reject: Callable[[Rejection], None]
    ) -> None:
        self._model = model
        self._request = request
        self._details = details
        self._reject = reject
        self._admitted = False

    async def run(self, inputs: Sequence[pb.Input]) -> list[pb.BatchItem]:
        """Answers every input, in order.

        Raises:
            ApiError: there are no inputs, or too many.
            QueueFullError: there was no room for even the first.
            DeadlineExpiredError: the call's deadline passed.
        """
        if not inputs:
            raise invalid("inputs", "is empty")
        if len(inputs) > MAX_ITEMS:
            raise invalid("inputs", f"has {len(inputs)} items, but a batch may have at most {MAX_ITEMS}")
        sources = await self._encode(inputs)
        items: list[pb.BatchItem | None] = [None] * len(inputs)
        work = iter(enumerate(sources))
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(self._model.batch_window, len(inputs))):
                    workers.create_task(self._work(work, items))
        except* (QueueFullError, DeadlineExpiredError) as errors:
            raise errors.exceptions[0] from None
        return [item for item in items if item is not None]

    async def _encode(self, inputs: Sequence[pb.Input]) -> list[list[int] | ApiError]:
        """The source ids of each input, or what is wrong with it."""
        sources: list[list[int] | ApiError] = []
        texts: list[int] = []  # indices of inputs that come as text
        for index, source in enumerate(inputs):
            try:
                ids = self._model.given_ids(source, f"inputs[{index}]")
            except ApiError as error:
                sources.append(error)
                continue
            if ids is None:
                texts.append(index)
            sources.append(ids or [])
        fields = [f"inputs[{index}].text" for index in texts]
        encoded = await self._model.encoder.encode_batch([inputs[index].text for index in texts], fields)
        for index, answer in zip(texts, encoded, strict=True):
            sources[index] = answer
        return sources

    async def _work(self, work: Iterator[tuple[int, list[int] | ApiError]], items: list[pb.BatchItem | None]) -> None:
        """Takes one source after the other until there are none."""
        for index, source in work:
            answer = source if isinstance(source, ApiError) else await self._answer(source)
            if isinstance(answer, ApiError):
                if answer.rejection:
                    self._reject(answer.rejection)
                items[index] = pb.BatchItem(error=answer.status())
            else:
                items[index] = pb.BatchItem(response=answer)

    async def _answer(self, source: list[int]) -> pb.GenerateResponse | ApiError:
        generation: PendingAnswer | None = None
        try:
            generation = await self._submit(replace(self._request, source_ids=source))
            finished = await generation.result()
        except EngineUnavailableError as error:
            return from_engine(error)
        finally:
            if generation is not None:
                generation.cancel()
        return self._model.response(finished, len(source), self._details)

    async def _submit(self, request: GenerationRequest) -> PendingAnswer:
        while True:
            try:
                generation = self._model.submit(request)
            except QueueFullError:
                if not self._admitted:
                    raise
                await asyncio.sleep(ROOM_SECONDS)
            else:
                self._admitted = True
                return generation
