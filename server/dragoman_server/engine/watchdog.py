"""Notices engines and workers that hang. Pure logic, without threads or clock."""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class Watchdog(Generic[Key]):
    """Finds those that do not finish what they work on.

    It counts checks, not seconds: a process that was stopped for an hour, as debuggers and sleeping laptops do, has not
    been working all that time, and neither has what it watches.

    Args:
        max_checks: Number of checks at which one that is still at the same work counts as hanging.
    """

    def __init__(self, max_checks: int) -> None:
        self._max_checks = max_checks
        self._seen: dict[Key, tuple[int, int]] = {}  # number of the current work, and checks since it began

    def hanging(self, working: Mapping[Key, int]) -> list[Key]:
        """Returns those that hang.

        Args:
            working: Number of the current work of each that works; every piece of work has another number.
        """
        seen, self._seen = self._seen, {}
        for key, work in working.items():
            previous, checks = seen.get(key, (work, 0))
            self._seen[key] = work, checks + 1 if previous == work else 1
        return [key for key, (_, checks) in self._seen.items() if checks >= self._max_checks]
