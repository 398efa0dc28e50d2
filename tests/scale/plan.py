"""The plan's arithmetic: replicas, cores, GPUs, money, and what grows with the number of replicas."""

import math
from dataclasses import dataclass

from tests.scale.arrivals import DAY, Day
from tests.scale.prices import CPU, HOURS, MILLION, Api, Machine
from tests.scale.service import Measured

DNS_BYTES = 65_535  # of a message over TCP
DNS_HEADER, DNS_RECORD = 12, 16  # bytes; a record of an address, with its name as a pointer to the first
NAME_BYTES = 60  # of the question, about: g2p-dragoman.speech.svc.cluster.local


@dataclass(frozen=True)
class Plan:
    """What is assumed of the region.

    Attributes:
        requests: Requests of a day.
        swing: By how much of the mean the rate rises and falls in a day.
        utilization: Calls per second of a replica at the daily peak, of the most that it can answer.
        clusters: Clusters, of which one may be lost.
        reserved: Part of a node's cores for what else runs there.
    """

    requests: float = 1e9
    swing: float = 0.6
    utilization: float = 0.6
    clusters: int = 8
    reserved: float = 0.1

    @property
    def day(self) -> Day:
        return Day(self.requests / DAY, self.swing)

    @property
    def after_loss(self) -> float:
        """Utilization at the peak when one cluster is lost."""
        return self.utilization * self.clusters / (self.clusters - 1)


@dataclass(frozen=True)
class Sizing:
    """What one model takes.

    Attributes:
        plan: See Plan.
        source, target: Mean tokens of a request.
        characters: Mean characters of its source.
        cores: Cores of a replica.
        limit: Calls per second at which a replica is full.
    """

    plan: Plan
    source: float
    target: float
    characters: float
    cores: int
    limit: float

    @classmethod
    def of(cls, measured: Measured, limit: float, plan: Plan) -> "Sizing":
        pairs = measured.pairs
        source, target = (sum(each) / len(pairs) for each in zip(*pairs, strict=True))
        return cls(plan, source, target, measured.characters, measured.service.cores, limit)

    @property
    def core_tokens(self) -> float:
        """Target tokens per second of a core, when the replica is full."""
        return self.limit * self.target / self.cores

    def replicas_at(self, rate: float) -> float:
        return rate / (self.plan.utilization * self.limit)

    @property
    def peak_replicas(self) -> int:
        """Replicas at the daily peak, equally many in each cluster."""
        return self.plan.clusters * math.ceil(self.replicas_at(self.plan.day.peak) / self.plan.clusters)

    @property
    def mean_replicas(self) -> float:
        """Mean over a day, if the number of replicas follows the load."""
        return self.replicas_at(self.plan.day.mean)

    def requests_of(self, replicas: int) -> float:
        """Returns the requests of a day that so many replicas at the peak carry."""
        return self.plan.requests * replicas / self.replicas_at(self.plan.day.peak)

    def day_price(self, replicas: float, machine: Machine = CPU) -> float:
        """Returns dollars for running so many replicas for a day."""
        cores = replicas * self.cores / (1 - self.plan.reserved)
        return cores * machine.hour / machine.cores * DAY / HOURS

    def million_requests(self) -> float:
        return self.day_price(self.mean_replicas) / self.plan.requests * MILLION

    def million_tokens(self) -> float:
        return self.million_requests() / self.target

    def api_million_requests(self, api: Api) -> float:
        return api.million_characters * self.characters

    def api_million_tokens(self, api: Api) -> float:
        return self.api_million_requests(api) / self.target


@dataclass(frozen=True)
class GpuShape:
    """What a decode step reads of a model in half precision.

    Attributes:
        d_model, d_ff, decoder_layers, vocabulary: Of the target side.
    """

    d_model: int
    d_ff: int
    decoder_layers: int
    vocabulary: int
    item_bytes: int = 2

    @property
    def weights(self) -> int:
        """Weights of a step: self-attention, queries and outputs of cross-attention, feed-forward, output layer."""
        layer = 6 * self.d_model**2 + 2 * self.d_model * self.d_ff
        return self.decoder_layers * layer + self.vocabulary * self.d_model

    def step_bytes(self, rows: int, source: float, target: float) -> float:
        """Returns the bytes that a step reads: all weights, and each row's cache at its mean length."""
        cache = 2 * self.decoder_layers * self.d_model * (source + (target + 1) / 2)
        return self.item_bytes * (self.weights + rows * cache)

    def floor(self, machine: Machine, rows: int, source: float, target: float) -> float:
        """Returns the seconds below which no step of so many rows can be: the time to read its bytes."""
        return self.step_bytes(rows, source, target) / machine.bandwidth

    def ceiling(self, machine: Machine, rows: int, source: float, target: float) -> float:
        """Returns tokens per second at the floor."""
        return rows / self.floor(machine, rows, source, target)


BASE_SHAPE = GpuShape(d_model=512, d_ff=2048, decoder_layers=6, vocabulary=32_000)


def loop_limit(measured: Measured, target: float) -> float:
    """Returns the tokens per second that the event loop of one server can hand out, however fast its device is."""
    return target / measured.service.call_seconds


def break_even(tokens: float, machine: Machine, sizing: Sizing) -> float:
    """Returns the part of `tokens` per second that the machine must reach to cost as much per token as CPUs."""
    return machine.hour / (tokens * HOURS) / (CPU.hour / CPU.cores / (sizing.core_tokens * HOURS))


def rollout_seconds(replicas: int, surge: int, start: float, ready: float) -> float:
    """Returns how long replacing all replicas takes, `surge` at a time.

    Args:
        start: Seconds until a new replica is ready.
        ready: Seconds for which it must be ready before the next is replaced.
    """
    return math.ceil(replicas / surge) * (start + ready)


def addresses() -> int:
    """Returns how many addresses fit into the DNS answer of a headless Service."""
    return (DNS_BYTES - DNS_HEADER - NAME_BYTES) // DNS_RECORD


def connections_per_second(clients: int, replicas: int, age: float) -> float:
    """Returns how many connections begin each second if every client connects to every replica anew at an age."""
    return clients * replicas / age


def followed_replicas(day: Day, down_seconds: float) -> float:
    """Returns the mean replicas of a cluster up to which removing one per period follows the evening's decline.

    The rate declines by at most mean * swing * 2 * pi in a day, when it passes its mean.
    """
    return DAY / (2 * math.pi * day.swing * down_seconds)
