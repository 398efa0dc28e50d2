"""What engine threads and the event loop share: the scheduler, its lock, and who sleeps until there is work."""

import threading

from dragoman_server.engine.scheduler import Scheduler


class Queue:
    """The scheduler with its lock.

    Who fell asleep last is woken first: its core still has the weights of the model.

    Attributes:
        lock: to be held by whoever looks at the scheduler or calls a method of this class.
        stopping: engines shall end.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.lock = threading.Lock()
        self.stopping = False
        self._sleepers: list[threading.Lock] = []

    def sleep(self) -> None:
        """Waits until the caller is woken, without the lock."""
        alarm = threading.Lock()
        alarm.acquire()
        self._sleepers.append(alarm)
        self.lock.release()
        try:
            alarm.acquire()
        finally:
            self.lock.acquire()

    def wake(self) -> None:
        """Wakes one that sleeps, if there is one and those that are awake have enough to do."""
        asleep = len(self._sleepers)
        if asleep and self.scheduler.should_wake_engine(len(self.scheduler.active) - asleep):
            self._sleepers.pop().release()

    def wake_all(self) -> None:
        while self._sleepers:
            self._sleepers.pop().release()
