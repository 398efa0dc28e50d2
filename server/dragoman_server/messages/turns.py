"""Who goes next where the engines' queue is full: those that wait for room, or those who have just come."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dragoman_server.core.errors import QueueFullError
from dragoman_server.core.requests import GenerationRequest, Priority

LOOK_SECONDS = 0.02  # how often those that wait look for room, if nobody comes meanwhile


class Cancellable(Protocol):
    """What is known here of a request in the queue."""

    def cancel(self) -> None: ...


Generation = TypeVar("Generation", bound=Cancellable)


@dataclass(eq=False)
class _Waiting(Generic[Generation]):
    request: GenerationRequest
    place: "asyncio.Future[Generation]"


class Turns(Generic[Generation]):
    """Places in the queue of one model, by turns, for each priority by itself.

    Whoever comes new and finds no room is refused, and comes again; those that wait can't be refused any more, being a
    part of something that has begun. Were they only to look from time to time, the others would take every place that
    becomes free, and they might wait for minutes; were they always first, a large batch would keep all others out.

    Args:
        submit: puts a request into the queue; raises QueueFullError where there is no room, unless its time is over.
    """

    def __init__(self, submit: Callable[[GenerationRequest], Generation]) -> None:
        self._submit = submit
        self._waiting: dict[Priority, deque[_Waiting[Generation]]] = defaultdict(deque)
        self._newcomer_was_last: set[Priority] = set()

    def submit(self, request: GenerationRequest) -> Generation:
        """For those who come new.

        Raises:
            QueueFullError: there is no room, or only for one that has waited for it.
        """
        waiting, priority = self._waiting[request.priority], request.priority
        if waiting and priority in self._newcomer_was_last:
            self._let_in(priority)
        generation = self._submit(request)
        self._newcomer_was_last.add(priority)
        return generation

    async def wait(self, request: GenerationRequest) -> Generation:
        """Puts a request into the queue as soon as there is room. Raises what `submit` raises of other errors."""
        entry: _Waiting[Generation] = _Waiting(request, asyncio.get_running_loop().create_future())
        waiting = self._waiting[request.priority]
        waiting.append(entry)
        try:
            while not entry.place.done():
                await asyncio.wait([entry.place], timeout=LOOK_SECONDS)
                if entry.place.done():
                    break
                if waiting[0] is entry:
                    self._let_in(request.priority)
                elif _overdue(request):  # which is ended at once, whether or not there is room
                    waiting.remove(entry)
                    return self._submit(request)
            return entry.place.result()
        except asyncio.CancelledError:
            if entry in waiting:
                waiting.remove(entry)
            elif entry.place.exception() is None:
                entry.place.result().cancel()
            raise

    def _let_in(self, priority: Priority) -> None:
        """Lets the first of those that wait in, if there is room."""
        waiting = self._waiting[priority]
        try:
            generation = self._submit(waiting[0].request)
        except QueueFullError:
            return
        except Exception as error:  # which is for the one that waits
            waiting.popleft().place.set_exception(error)
        else:
            waiting.popleft().place.set_result(generation)
        self._newcomer_was_last.discard(priority)


def _overdue(request: GenerationRequest) -> bool:
    now = time.monotonic()
    return any(moment is not None and moment <= now for moment in (request.deadline, request.time_limit))
