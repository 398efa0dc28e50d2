"""Cooperative scheduling of long work on the event loop."""

import asyncio
import time

SLICE_SECONDS = 0.001


class TimeSlice:
    """Makes long work yield to other tasks of the event loop. The tasks of one piece of work share one.

    Without it, a few microseconds for each of ten thousand items would delay everyone by their sum.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._over = False

    async def yield_if_over(self) -> None:
        """Yields to other tasks if the time slice is over. To be called after each item."""
        while time.monotonic() - self._began > SLICE_SECONDS:
            if not self._over:
                self._over = True
                asyncio.get_running_loop().call_soon(self._begin)
            await asyncio.sleep(0)

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._over = False
