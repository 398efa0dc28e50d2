"""The chart's autoscaling on a simulated clock: what Prometheus scrapes, KEDA and the HorizontalPodAutoscaler do."""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from tests.scale.fleet import Fleet

TOLERANCE = 0.1  # of a HorizontalPodAutoscaler, which changes nothing if the metric is this close to its target
RATE_SECONDS = 60.0  # window of rate()


@dataclass(frozen=True)
class Behavior:
    """How fast pods are added and removed, as in the chart's template and values.

    Attributes:
        scrape_seconds: Between two samples of the metrics.
        sync_seconds: Between two decisions.
        up_seconds: Period in which pods at most double, or two are added.
        keep_seconds: Time that pods must have been superfluous.
        down_seconds: Period in which one pod is removed.
        start_seconds: From the decision until clients send calls to the new pod.
    """

    scrape_seconds: float
    sync_seconds: float
    up_seconds: float
    keep_seconds: float
    down_seconds: float
    start_seconds: float

    @classmethod
    def of_chart(cls, values: dict[str, Any], scaling: dict[str, Any], start_seconds: float) -> Self:
        """Returns the behavior that the chart sets.

        Args:
            values: Values of the chart.
            scaling: `behavior` of its ScaledObject or HorizontalPodAutoscaler.
        """
        return cls(
            scrape_seconds=_seconds(values["monitoring"]["podMonitor"]["interval"]),
            sync_seconds=float(values["autoscaling"]["keda"]["pollingInterval"]),
            up_seconds=max(policy["periodSeconds"] for policy in scaling["scaleUp"]["policies"]),
            keep_seconds=scaling["scaleDown"]["stabilizationWindowSeconds"],
            down_seconds=max(policy["periodSeconds"] for policy in scaling["scaleDown"]["policies"]),
            start_seconds=start_seconds,
        )


def _seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


@dataclass(frozen=True)
class Signal:
    """A metric, summed over the pods, by which they scale.

    Attributes:
        name: Its name on the page.
        target: Its value per pod.
        read: Function that returns the sum at this moment.
    """

    name: str
    target: float
    read: Callable[[Fleet], float]


def waiting(fleet: Fleet) -> float:
    return float(sum(replica.waiting for replica in fleet.replicas))


def in_flight(fleet: Fleet) -> float:
    return float(sum(replica.outstanding for replica in fleet.replicas))


class Answered:
    """rate(dragoman_requests_total) over a minute."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def __call__(self, fleet: Fleet) -> float:
        now, counts = fleet.clock.now, self._counts
        counts.append((now, len(fleet.calls)))
        while counts[0][0] < now - RATE_SECONDS:
            counts.popleft()
        since, before = counts[0]
        return (len(fleet.calls) - before) / (now - since) if now > since else 0.0


class Autoscaler:
    """Adds and removes the replicas of a fleet.

    Attributes:
        history: Time, replicas that serve, and those wanted, at each decision.
    """

    def __init__(self, fleet: Fleet, signal: Signal, behavior: Behavior, minimum: int, maximum: int) -> None:
        self.fleet, self.signal, self.behavior = fleet, signal, behavior
        self.minimum, self.maximum = minimum, maximum
        self.wanted = len(fleet.replicas)
        self.history: list[tuple[float, int, int]] = []
        self._sample: float | None = None
        self._recommended: deque[tuple[float, int]] = deque()
        self._changes: list[tuple[float, int]] = []

    def run(self, start: float, end: float) -> None:
        """Scrapes and decides at the intervals of the behavior."""
        clock = self.fleet.clock
        for interval, offset, action in (
            (self.behavior.scrape_seconds, 0.0, self._scrape),
            (self.behavior.sync_seconds, self.behavior.sync_seconds / 2, self._decide),
        ):
            for number in range(math.ceil((end - start - offset) / interval)):
                clock.at(start + offset + number * interval, action)

    def _scrape(self) -> None:
        self._sample = self.signal.read(self.fleet)

    def _decide(self) -> None:
        now = self.fleet.clock.now
        if self._sample is not None:
            self._scale(self._within_policies(self._recommend(self._sample, now), now), now)
        self.history.append((now, len(self.fleet.replicas), self.wanted))

    def _recommend(self, value: float, now: float) -> int:
        """Returns the highest number of pods that the metric asked for within `keep_seconds`, or more now."""
        ratio = value / (self.signal.target * self.wanted)
        asked = self.wanted if abs(ratio - 1) <= TOLERANCE else math.ceil(value / self.signal.target)
        recommended = self._recommended
        recommended.append((now, asked))
        while recommended[0][0] <= now - self.behavior.keep_seconds:
            recommended.popleft()
        if asked < self.wanted:
            asked = min(self.wanted, max(pods for _, pods in recommended))
        return max(self.minimum, min(self.maximum, asked))

    def _within_policies(self, asked: int, now: float) -> int:
        """Returns as much of a change as the policies allow in their periods."""
        behavior = self.behavior
        if asked > self.wanted:
            before = self.wanted - self._changed(now - behavior.up_seconds, added=True)
            return min(asked, max(2 * before, before + 2))
        if asked < self.wanted:
            before = self.wanted + self._changed(now - behavior.down_seconds, added=False)
            return max(asked, before - 1)
        return asked

    def _changed(self, since: float, added: bool) -> int:
        """Returns how many pods were added, or removed, since a time."""
        return sum(abs(pods) for at, pods in self._changes if at > since and (pods > 0) is added)

    def _scale(self, pods: int, now: float) -> None:
        change = pods - self.wanted
        if change:
            self._changes.append((now, change))
        self.wanted = pods
        for _ in range(change):
            self.fleet.clock.at(now + self.behavior.start_seconds, self._start)
        while len(self.fleet.replicas) > pods:
            self.fleet.remove()

    def _start(self) -> None:
        if len(self.fleet.replicas) < self.wanted:  # it may have become superfluous meanwhile
            self.fleet.add()
