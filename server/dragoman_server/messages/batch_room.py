"""How batches share the engines' queue with each other, and leave room for others."""

import asyncio
import time
from collections import deque

from dragoman_server.core.errors import QueueFullError

LEAST_CALLS = 16  # that are taken at the same time, however few places there are
RETRY_SECONDS = 1.0


class BatchRoom:
    """The places that one model has for items of batches: so many wait or run at the same time, of all calls together.

    A place that becomes free goes to the call that has the fewest of those that want one, and of equals to the one that
    got one the longest time ago. So a batch never fills the queue, however large, and a small one that comes while a
    large one runs has its places as soon as some are free.

    Args:
        places: that there are.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.free = places
        self.shares: set[BatchShare] = set()
        self._grants = 0

    def grant(self) -> None:
        """Gives free places to those who wait for one."""
        while self.free and (waiting := [share for share in self.shares if share.waiting]):
            share = min(waiting, key=lambda share: (share.held, share.granted))
            place = share.waiting.popleft()
            if not place.done():  # else its task was cancelled, and has not run since
                self.free -= 1
                share.held += 1
                self._grants += 1
                share.granted = self._grants
                place.set_result(None)


class BatchShare:
    """One call's places, within `with`.

    Raises:
        QueueFullError: on entering, where there are so many calls already that this one would have no place for long.
    """

    def __init__(self, room: BatchRoom) -> None:
        self.held = 0
        self.granted = 0  # the number of its last grant, among all
        self.waiting: deque[asyncio.Future[None]] = deque()
        self._room = room

    def __enter__(self) -> "BatchShare":
        if len(self._room.shares) >= max(self._room.places, LEAST_CALLS):
            raise QueueFullError(RETRY_SECONDS)
        self._room.shares.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._room.shares.discard(self)

    async def take(self, moment: float | None = None) -> bool:
        """Waits for a place.

        Args:
            moment: time.monotonic() after which not to wait any longer.

        Returns:
            whether there is one.
        """
        if self._room.free:  # then nobody waits
            self._room.free -= 1
            self.held += 1
            return True
        place = asyncio.get_running_loop().create_future()
        self.waiting.append(place)
        try:
            async with asyncio.timeout(None if moment is None else max(moment - time.monotonic(), 0.0)):
                await place
        except (TimeoutError, asyncio.CancelledError) as error:
            if place.done() and not place.cancelled():
                self.give()
            elif place in self.waiting:
                self.waiting.remove(place)
            if isinstance(error, TimeoutError):
                return False
            raise
        return True

    def give(self) -> None:
        """Gives a place back."""
        self.held -= 1
        self._room.free += 1
        self._room.grant()
