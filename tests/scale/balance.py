"""How clients choose the replica of a call."""

import random
from collections.abc import Callable, Sequence
from typing import Protocol

from tests.scale.replica import Replica


class Balancer(Protocol):
    """Chooses among the replicas that clients know."""

    def choose(self, replicas: Sequence[Replica]) -> Replica: ...


class RoundRobin:
    """One after the other: gRPC's policy `round_robin`, which the service config of the chart's clients names."""

    def __init__(self, draw: random.Random) -> None:
        self._next = 0

    def choose(self, replicas: Sequence[Replica]) -> Replica:
        self._next += 1
        return replicas[self._next % len(replicas)]


class ManyClients:
    """Round robin by many clients that know nothing of each other: a replica by chance."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def choose(self, replicas: Sequence[Replica]) -> Replica:
        return replicas[int(self._draw.random() * len(replicas))]


class TwoChoices:
    """The less busy of two replicas drawn at random: Envoy's policy LEAST_REQUEST, with two choices."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def choose(self, replicas: Sequence[Replica]) -> Replica:
        size = len(replicas)
        one, other = (replicas[int(self._draw.random() * size)] for _ in range(2))
        return one if one.outstanding <= other.outstanding else other


class LeastLoaded:
    """A replica with the fewest calls; among several, by chance. Needs to know all of them at every call."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw

    def choose(self, replicas: Sequence[Replica]) -> Replica:
        least = min(replica.outstanding for replica in replicas)
        best = [replica for replica in replicas if replica.outstanding == least]
        return best[int(self._draw.random() * len(best))]


BALANCERS: dict[str, Callable[[random.Random], Balancer]] = {
    "round robin": RoundRobin,
    "round robin, many clients": ManyClients,
    "two choices": TwoChoices,
    "least loaded": LeastLoaded,
}
