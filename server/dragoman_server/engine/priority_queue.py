"""What the scheduler counts of those that wait, of rows that are set aside, and of the room that an engine has."""

from collections import OrderedDict
from dataclasses import dataclass, field

from dragoman_server.engine.job import Job


@dataclass(slots=True)
class Lane:
    """The jobs of one priority that wait, in the order of their arrival.

    Attributes:
        weight: rows of this lane that start for so many of the other, while both have some.
        turn: rows started, divided by the weight; the lane where it is least is next.
    """

    weight: int
    jobs: OrderedDict[Job, None] = field(default_factory=OrderedDict)
    tokens: int = 0
    turn: float = 0.0


@dataclass(slots=True)
class Hold:
    """Free rows of an engine that are set aside for a job that wants more than there are.

    Attributes:
        first: rows that were, to begin with.
        released: rows that have become free since; every other one is set aside.
    """

    job: Job
    first: int
    released: int = 0

    @property
    def rows(self) -> int:
        return min(self.job.search.rows, self.first + (self.released + 1) // 2)


@dataclass(slots=True)
class Room:
    """What an engine has left for newcomers.

    Attributes:
        free: rows that are free and not set aside.
        share: rows until it has as many as the other engines.
        batch: rows that batch jobs have, those set aside for one among them,
        batch_limit: and how many they may have.
        tokens: source tokens that it may encode.
    """

    free: int
    share: int
    batch: int
    batch_limit: int
    tokens: int


def within(rows: int, room: Room, batch: bool) -> bool:
    """Whether a job leaves free what batch jobs have to; one that wants more may run where no other does."""
    return not batch or room.batch == 0 or room.batch + rows <= room.batch_limit
