"""The scheduler as engine threads and the event loop share it: with its lock, and the engines that sleep."""

import threading

from dragoman_server.engine.scheduler import Scheduler


class SharedQueue:
    """The scheduler with its lock.

    The engine that fell asleep last is woken first: the caches of its core still hold the model's weights.

    Attributes:
        lock: Lock to hold while using the scheduler or calling a method of this class.
        stopping: Whether engines should end.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.lock = threading.Lock()
        self.stopping = False
        self._sleepers: list[threading.Lock] = []

    def sleep(self) -> None:
        """Releases the lock until another thread wakes this one."""
        alarm = threading.Lock()
        alarm.acquire()
        self._sleepers.append(alarm)
        self.lock.release()
        try:
            alarm.acquire()
        finally:
            self.lock.acquire()

    def wake(self) -> None:
        """Wakes one sleeping engine if those that are awake have enough to do."""
        asleep = len(self._sleepers)
        if asleep and self.scheduler.should_wake_engine(len(self.scheduler.active) - asleep):
            self._sleepers.pop().release()

    def wake_all(self) -> None:
        while self._sleepers:
            self._sleepers.pop().release()
