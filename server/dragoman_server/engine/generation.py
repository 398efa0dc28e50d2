"""How the event loop hears of a request that it gave to the engines."""

import asyncio
from collections.abc import AsyncIterator, Callable

from dragoman_server.core.requests import BeamProgress, GenerationResult, Progress
from dragoman_server.engine.job import Job
from dragoman_server.engine.outcome import Event


class Generation:
    """A request that was accepted. For use on the event loop alone.

    What a stream's reader has not taken yet is merged: tokens of one hypothesis to one event, and of counts of progress
    the last stays. So a reader who lags holds nothing up, and what waits for him is never more than the answer itself.

    Args:
        job: the request.
        cancel: takes it out of the queue or of its engine.
    """

    def __init__(self, job: Job, cancel: Callable[[Job], None], loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._cancel = cancel
        self._loop = loop
        self._answer: asyncio.Future[GenerationResult] = loop.create_future()
        self._ended = False  # answered or cancelled; the future alone can't tell, a cancelled waiter cancels it too
        # Progress by hypothesis, a forced prefix apart since it has no log-probabilities.
        self._untold: dict[tuple[int, bool], Progress | BeamProgress] = {}
        self._news: asyncio.Future[None] | None = None  # what a stream's reader waits for

    async def result(self) -> GenerationResult:
        """Waits for the answer.

        Raises:
            DeadlineExpiredError: the deadline passed first.
            EngineUnavailableError: the engine stopped or failed.
        """
        return await self._answer

    async def events(self) -> AsyncIterator[Progress | BeamProgress | GenerationResult]:
        """Progress as it comes, then the answer. Only for a request with `streaming`. Raises as `result`."""
        assert self._job.request.streaming, "the request was not made for streaming"
        while self._untold or not self._ended:
            if not self._untold:
                self._news = self._loop.create_future()
                await self._news
            untold, self._untold = self._untold, {}
            for progress in untold.values():
                yield progress
        yield await self._answer

    def cancel(self) -> None:
        """Nobody waits any more: a waiting request leaves the queue now, a running one its rows at the next step."""
        if self._ended:
            return
        self._ended = True
        self._untold.clear()
        self._answer.cancel()
        self._cancel(self._job)
        self._tell()

    def deliver(self, event: Event) -> None:
        """Takes an event from the engine."""
        if isinstance(event, Progress | BeamProgress):
            self._merge(event)
        else:
            self._ended = True
            if not self._answer.done():  # else its waiter was cancelled, and nobody has said so to the pool yet
                if isinstance(event, GenerationResult):
                    self._answer.set_result(event)
                else:
                    self._answer.set_exception(event)
                    # A stream's reader may have left: then nobody will ever ask for the exception.
                    self._answer.exception()
        if self._news is not None:
            self._tell()

    def _merge(self, event: Progress | BeamProgress) -> None:
        if isinstance(event, BeamProgress):
            self._untold[-1, False] = event
            return
        key = event.hypothesis, bool(event.log_probabilities)
        untold = self._untold.setdefault(key, event)
        if untold is not event:
            assert isinstance(untold, Progress)
            untold.ids.extend(event.ids)
            untold.log_probabilities.extend(event.log_probabilities)
            untold.alternatives.extend(event.alternatives)

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
