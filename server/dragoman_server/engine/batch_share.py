"""How many of an engine's rows batch jobs may have. Pure logic, without threads, clock or ONNX Runtime."""

from collections.abc import Sequence

BATCH_RESERVE = 8  # batch jobs leave one row in this many free
LEAST_ROWS = 8  # that batch jobs may have in an engine beside interactive ones
PRESENT_SECONDS = 1.0  # after an interactive job, in which the next is expected


class BatchShare:
    """The rows that batch jobs may have in an engine.

    They always leave some free, for interactive jobs that arrive while long batch jobs run. While there are interactive
    jobs, or were a moment ago, they may also make the engine's turns only so much longer: rows cost a turn about their
    number, and the turn itself costs as much as some rows.

    Args:
        engines: Number of engines.
        slowdown: Times as long as without batch jobs that turns may take beside interactive jobs.
        turn_rows: Rows that cost as much as a turn does without any.

    Attributes:
        limits: The last limit of each engine that has had one.
    """

    def __init__(self, engines: int, slowdown: float, turn_rows: int) -> None:
        self._interactive = [0] * engines  # rows in use or kept in the engine's last turn
        self._slowdown = slowdown
        self._turn_rows = turn_rows
        self._present_until = 0.0
        self.limits: dict[int, int] = {}

    def arrived(self, now: float) -> None:
        """Notes an interactive job."""
        self._present_until = now + PRESENT_SECONDS

    def turn(self, engine: int, interactive_rows: int, now: float) -> None:
        """Notes the rows that interactive jobs have in an engine that begins a turn."""
        self._interactive[engine] = interactive_rows
        if interactive_rows:
            self.arrived(now)

    def limit(self, engine: int, max_rows: int, running: Sequence[int], waiting: int, now: float) -> int:
        """Returns how many rows batch jobs may have in an engine.

        Args:
            max_rows: Rows of the engine.
            running: Rows of all jobs, by engine.
            waiting: Number of interactive jobs that wait.
        """
        limit = max_rows - max_rows // BATCH_RESERVE
        if now < self._present_until:
            rows = sum(map(min, self._interactive, running))  # an engine that has come to rest has had no turn since
            interactive = (rows + waiting) / len(running)
            limit = min(limit, max(LEAST_ROWS, int((self._slowdown - 1) * (self._turn_rows + interactive))))
        self.limits[engine] = limit
        return limit
