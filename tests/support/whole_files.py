"""How pytest-xdist hands files to test processes, also after one of them has died."""

from typing import Any

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

Unit = dict[str, bool]  # tests of a file, and whether each has ended


class WholeFiles(LoadFileScheduling):  # type: ignore[misc]
    """Gives each test process whole files, in order.

    xdist's own way waits forever after a test has killed its process: the process that replaces it gets files that are
    finished, or a single test, which a process starts only when it knows the next one. Also, it would start the test
    again, and knows nothing of second tries.
    """

    def schedule(self) -> None:
        super().schedule()
        for node in self.nodes:  # a second file, or the message that there is none
            self._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Takes the tests that a process has not ended, and returns the one that it was running."""
        units: dict[str, Unit] = self.assigned_work.pop(node)
        tests = [(unit, test) for unit in units.values() for test, ended in unit.items() if not ended]
        if not tests:
            return None
        unit, running = tests[0]
        unit[running] = True
        self._requeue(units)
        return running

    def mark_test_pending(self, item: str) -> None:
        """Gives the test that killed its process a second try."""
        scope = self._split_scope(item)
        unit: Unit = self.workqueue.get(scope, {})
        self._requeue({scope: unit | {item: False}})

    def _requeue(self, units: dict[str, Unit]) -> None:
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})


def make_scheduler(config: Any, log: Any) -> WholeFiles | None:
    """Returns the scheduler for `--dist loadfile`."""
    return WholeFiles(config, log) if config.getvalue("dist") == "loadfile" else None
