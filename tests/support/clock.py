"""A clock that tests advance."""


class Clock:
    """Stands in for time.monotonic, and its `moment` for time.time.

    Attributes:
        now: Monotonic seconds.
    """

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def moment(self) -> float:
        """Returns seconds since 1970."""
        return 1_800_000_000 + self.now
