"""Long work on the event loop, with pauses in which others get their turn."""

import asyncio
import time

SLICE_SECONDS = 0.005


class Pauses:
    """Shared by the tasks that do one piece of work.

    A few microseconds for each of ten thousand items would else keep everyone waiting for their sum.
    """

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._over = False

    async def take(self) -> None:
        """To be called after each item: lets others have the event loop where it was not theirs for a while."""
        while time.monotonic() - self._since > SLICE_SECONDS:
            if not self._over:
                self._over = True
                asyncio.get_running_loop().call_soon(self._begin)
            await asyncio.sleep(0)

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._over = False
