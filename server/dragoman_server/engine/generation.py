"""A submitted request, as the event loop sees it."""

import asyncio
from collections.abc import AsyncIterator, Callable

from dragoman_server.core.errors import EngineError
from dragoman_server.core.requests import BeamProgress, GenerationResult, Progress
from dragoman_server.engine.job import Event, Job


class Generation:
    """A request that was accepted. Its methods belong to the event loop.

    Progress that a stream's reader has not read yet is merged: tokens of one hypothesis into one event, and beam
    progress into the latest. So a slow reader delays nobody, and never has more waiting than the result itself.

    Args:
        job: The request as a job.
        cancel: Removes the job from the queue or from its engine.
    """

    def __init__(self, job: Job, cancel: Callable[[Job], None], loop: asyncio.AbstractEventLoop) -> None:
        self._job = job
        self._cancel = cancel
        self._loop = loop
        self._answer: asyncio.Future[GenerationResult] = loop.create_future()
        self._ended = False  # answered or cancelled; not the same as the future, which a cancelled waiter cancels too
        # Unread progress by hypothesis; a forced prefix apart, since it has no log-probabilities.
        self._unread: dict[tuple[int, bool], Progress | BeamProgress] = {}
        self._wake_up: asyncio.Future[None] | None = None  # awaited by a stream's reader
        self._listener: Callable[[GenerationResult | EngineError], None] | None = None

    async def result(self) -> GenerationResult:
        """Waits for the result.

        Raises:
            DeadlineExpiredError: The deadline passed first.
            EngineUnavailableError: The engine stopped or failed.
        """
        return await self._answer

    def notify(self, listener: Callable[[GenerationResult | EngineError], None]) -> None:
        """Has a function called with the result or the error, instead of waiting for `result`.

        It is called for one result of a step after the other, before any task runs, unless the request is cancelled. It
        must not raise.
        """
        self._listener = listener

    async def events(self) -> AsyncIterator[Progress | BeamProgress | GenerationResult]:
        """Yields progress, then the result, of a streaming request. Raises the same errors as `result`."""
        assert self._job.request.streaming, "the request was not made for streaming"
        while self._unread or not self._ended:
            if not self._unread:
                self._wake_up = self._loop.create_future()
                await self._wake_up
            unread, self._unread = self._unread, {}
            for progress in unread.values():
                yield progress
        yield await self._answer

    def cancel(self) -> None:
        """Cancels the request: it leaves the queue at once, or its rows at the next step."""
        if self._ended:
            return
        self._end()
        self._unread.clear()
        self._answer.cancel()
        self._cancel(self._job)
        self._notify()

    def deliver(self, event: Event) -> None:
        """Takes an event from the engine."""
        if isinstance(event, Progress | BeamProgress):
            self._merge(event)
        else:
            listener = self._listener
            self._end()
            if listener is not None:
                listener(event)
            elif not self._answer.done():  # done: its waiter was cancelled, but `cancel` has not been called yet
                if isinstance(event, GenerationResult):
                    self._answer.set_result(event)
                else:
                    self._answer.set_exception(event)
                    # Marks the exception as retrieved: a stream's reader may have left.
                    self._answer.exception()
        if self._wake_up is not None:
            self._notify()

    def _end(self) -> None:
        """Parts with the job and the listener, whose references back only the garbage collector would find."""
        self._ended = True
        self._job.handle = self._listener = None

    def _merge(self, event: Progress | BeamProgress) -> None:
        if isinstance(event, BeamProgress):
            self._unread[-1, False] = event
            return
        key = event.hypothesis, bool(event.log_probabilities)
        unread = self._unread.setdefault(key, event)
        if unread is not event:
            assert isinstance(unread, Progress)
            unread.ids.extend(event.ids)
            unread.log_probabilities.extend(event.log_probabilities)
            unread.alternatives.extend(event.alternatives)

    def _notify(self) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)
