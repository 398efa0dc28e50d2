"""Replicas behind a load balancer, under random arrivals."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from tests.scale.arrivals import Rate, arrivals, constant
from tests.scale.balance import BALANCERS, Balancer
from tests.scale.clock import Clock
from tests.scale.replica import Call, Replica
from tests.scale.service import Lengths, Service
from tests.support.load import percentile

SETTLE = 0.2  # part of a simulation at its start that does not count


@dataclass(frozen=True)
class Tails:
    """Seconds: percentiles of the time in the queue and of the latency that clients see, and the mean latency."""

    calls: int
    queue_p50: float
    queue_p99: float
    p50: float
    p99: float
    mean: float


def tails(calls: Sequence[Call]) -> Tails:
    waits, latencies = [call.waited for call in calls], [call.latency for call in calls]
    quantiles = (
        percentile(waits, 0.5),
        percentile(waits, 0.99),
        percentile(latencies, 0.5),
        percentile(latencies, 0.99),
    )
    return Tails(len(calls), *quantiles, mean=fmean(latencies) if latencies else float("nan"))


@dataclass
class Fleet:
    """Replicas that come and go.

    Attributes:
        replicas: Those that clients send calls to.
        calls: All that were answered, in the order of their answers.
    """

    clock: Clock
    service: Service
    lengths: Lengths
    balancer: Balancer
    draw: random.Random
    client_seconds: float = 0.0
    replicas: list[Replica] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def add(self, number: int = 1) -> None:
        for _ in range(number):
            self.replicas.append(Replica(self.clock, self.service, self.calls.append, self.client_seconds))

    def remove(self) -> None:
        """Takes the newest replica away from clients; it finishes what it has."""
        self.replicas.pop()

    def send(self, due: float) -> None:
        source, target = self.lengths[int(self.draw.random() * len(self.lengths))]
        self.balancer.choose(self.replicas).send(Call(source, target, due))

    def feed(self, rate: Rate, highest: float, start: float, end: float) -> None:
        """Sends calls at random moments between `start` and `end`, see arrivals."""
        moments = arrivals(rate, highest, start, end, self.draw)

        def next_call() -> None:
            moment = next(moments, None)
            if moment is None:
                return

            def send() -> None:
                self.send(moment)
                next_call()

            self.clock.at(moment, send)

        next_call()


def steady(
    service: Service,
    lengths: Lengths,
    replicas: int,
    rate: float,
    calls: int,
    seed: int,
    balancer: str = "two choices",
    client_seconds: float = 0.0,
) -> Tails:
    """Simulates a constant rate until about so many calls are answered; the first fifth does not count.

    Args:
        rate: Calls per second of all replicas together.
        balancer: Key of BALANCERS.
        client_seconds: See Replica.
    """
    draw = random.Random(seed)
    fleet = Fleet(Clock(), service, lengths, BALANCERS[balancer](draw), draw, client_seconds)
    fleet.add(replicas)
    seconds = calls / (1 - SETTLE) / rate
    fleet.feed(constant(rate), rate, 0.0, seconds)
    fleet.clock.run()
    return tails([call for call in fleet.calls if call.due >= SETTLE * seconds])


def closed(
    service: Service, lengths: Lengths, callers: int, calls: int, seed: int, client_seconds: float = 0.0
) -> tuple[float, Tails]:
    """Simulates one replica with callers of whom each waits for its answer before the next call.

    Returns:
        calls per second, and their percentiles.
    """
    draw = random.Random(seed)
    clock = Clock()
    found: list[Call] = []

    def again(call: Call | None) -> None:
        if call is not None:
            found.append(call)
        if len(found) < calls:
            source, target = lengths[int(draw.random() * len(lengths))]
            replica.send(Call(source, target, clock.now))

    replica = Replica(clock, service, again, client_seconds)
    for _ in range(callers):
        again(None)
    clock.run()
    counted = found[int(SETTLE * calls) :]
    seconds = counted[-1].done - counted[0].done
    return (len(counted) - 1) / seconds, tails(counted)


def capacity(service: Service, lengths: Lengths, calls: int = 4000, seed: int = 0) -> float:
    """Returns the calls per second of one replica whose rows are all in use."""
    callers = service.engines * service.rows
    rate, _ = closed(service, lengths, callers, max(calls, 8 * callers), seed)
    return rate
