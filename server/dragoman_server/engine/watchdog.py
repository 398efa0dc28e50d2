"""Notices what hangs. Pure logic, without threads or clock."""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Who = TypeVar("Who", bound=Hashable)


class Watchdog(Generic[Who]):
    """Told again and again what everyone is working at, it tells who is at the same thing for too long.

    It counts looks, and not seconds: a process that was stopped for an hour, as debuggers and sleeping laptops do, has
    not been working all that time, and neither has whoever it watches.

    Args:
        looks: at which someone was at the same thing, so many that he hangs.
    """

    def __init__(self, looks: int) -> None:
        self._looks = looks
        self._seen: dict[Who, tuple[int, int]] = {}  # what each is at, and looks since

    def look(self, working: Mapping[Who, int]) -> list[Who]:
        """Who hangs.

        Args:
            working: those who work, and the number of what they are at, which is another one for each thing.
        """
        seen, self._seen = self._seen, {}
        hanging = []
        for who, what in working.items():
            before, looks = seen.get(who, (what, 0))
            looks = looks + 1 if before == what else 1
            self._seen[who] = what, looks
            if looks >= self._looks:
                hanging.append(who)
        return hanging
