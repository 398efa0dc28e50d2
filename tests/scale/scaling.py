"""Simulations of autoscaling: a burst of calls, and a morning."""

import math
import random
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel

from deploy.generate import CHART
from tests.scale.arrivals import Burst, Day, Rate, constant
from tests.scale.autoscaling import Answered, Autoscaler, Behavior, Signal, in_flight, waiting
from tests.scale.balance import TwoChoices
from tests.scale.clock import Clock
from tests.scale.fleet import Fleet, steady, tails
from tests.scale.plan import Plan
from tests.scale.replica import Call
from tests.scale.service import Measured

SEED = 1
REPLICAS = 4  # that a usual rate, or the mean of a day, keeps at the plan's utilization
TARGET_CALLS = 15_000  # to find the usual calls in flight
BURST = {"start": 60.0, "rise": 60.0, "hold": 180.0, "factor": 2.0}
BURST_END = 420.0
HOUR = 60.0  # seconds of an hour in the morning, which is thus sixty times as steep as a real one
SURPRISE = {"start": 12 * HOUR, "rise": 30.0, "hold": 60.0, "factor": 1.5}  # at noon
MORNING_END = 15 * HOUR
WINDOW = 10.0  # seconds of a point of the picture
WARM, COLD = 30.0, 150.0  # seconds until a new replica gets calls, with a free node and without


class Scaled(BaseModel):
    """A load that changes, and what an autoscaler made of it.

    Attributes:
        name: The signal.
        target: Its value per replica.
        start_seconds: Seconds until a new replica gets calls.
        p50, p99: Latency of the calls that were due while the load was unusual.
        most: Most replicas at a time.
        times, rates, replicas, p99s: By WINDOW seconds.
    """

    name: str
    target: float | None
    start_seconds: float | None
    p50: float
    p99: float
    most: int
    times: list[float]
    rates: list[float]
    replicas: list[float]
    p99s: list[float]


class Scenario(NamedTuple):
    """A load from time 0 on.

    Attributes:
        highest: A rate that it never exceeds.
        end: When it ends.
        counted: Time from which, and until which, calls count.
        replicas: Replicas at the start, and the fewest.
    """

    load: Rate
    highest: float
    end: float
    counted: tuple[float, float]
    replicas: int


def chart_values() -> dict[str, Any]:
    """Returns the chart's default values."""
    values: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return values


def chart_behavior(start_seconds: float) -> Behavior:
    """Returns the autoscaling behavior of the chart's template with its default values."""
    values = chart_values()
    template = (CHART / "templates" / "autoscaling.yaml").read_text(encoding="utf-8")
    text = template.partition('{{- define "dragoman.scalingBehavior" -}}')[2].partition("{{- end -}}")[0]
    filled = text.replace("{{ .scaleDownSeconds }}", str(values["autoscaling"]["scaleDownSeconds"]))
    return Behavior.of_chart(values, yaml.safe_load(filled), start_seconds)


def waiting_target() -> float:
    """Returns the chart's autoscaling.waitingPerPod."""
    return float(chart_values()["autoscaling"]["waitingPerPod"])


def in_flight_target(measured: Measured, rate: float) -> float:
    """Returns the calls in flight of a replica at a rate: rate times mean latency."""
    usual = steady(measured.service, measured.pairs, REPLICAS, REPLICAS * rate, TARGET_CALLS, SEED)
    return rate * usual.mean


def bursts(measured: Measured, rate: float, flying: float) -> list[Callable[[], Scaled]]:
    """Returns the simulations of a burst: without autoscaling, and with it by several signals.

    Args:
        rate: Usual calls per second of a replica.
        flying: Calls in flight of a replica at this rate.
    """
    burst = Burst(constant(rate * REPLICAS), **BURST)
    over = BURST["start"] + 2 * BURST["rise"] + BURST["hold"]
    scenario = Scenario(burst, rate * REPLICAS * BURST["factor"], BURST_END, (BURST["start"], over), REPLICAS)
    signals: list[tuple[Signal | None, float]] = [
        (None, WARM),
        (Signal("waiting requests", waiting_target(), waiting), WARM),
        (Signal("waiting requests", waiting_target(), waiting), COLD),
        (Signal("calls in flight", flying, in_flight), WARM),
        (Signal("calls answered", rate, Answered()), WARM),
    ]
    return [partial(scaled, measured, scenario, signal, start) for signal, start in signals]


def mornings(measured: Measured, rate: float, flying: float, plan: Plan) -> list[Callable[[], Scaled]]:
    """Returns the simulations of a morning, from midnight to the peak at noon and a burst on top of it.

    With as many replicas as the peak takes, and with an autoscaler by two signals from as few as the night takes.

    Args:
        rate: Calls per second of a replica at the plan's utilization.
        flying: Calls in flight of a replica at this rate.
    """
    day = Day(rate * REPLICAS, plan.swing, 24 * HOUR)
    load, highest = Burst(day, **SURPRISE), day.peak * SURPRISE["factor"]
    fixed, few = (math.ceil(REPLICAS * (1 + swing)) for swing in (plan.swing, -plan.swing))
    scenario = Scenario(load, highest, MORNING_END, (0.0, MORNING_END), few)
    return [
        partial(scaled, measured, scenario._replace(replicas=fixed), None, WARM),
        partial(scaled, measured, scenario, Signal("waiting requests", waiting_target(), waiting), WARM),
        partial(scaled, measured, scenario, Signal("calls in flight", flying, in_flight), WARM),
    ]


def scaled(measured: Measured, scenario: Scenario, signal: Signal | None, start_seconds: float) -> Scaled:
    """Simulates a scenario.

    Args:
        signal: What the autoscaler looks at; None for no autoscaler.
    """
    draw = random.Random(SEED)
    fleet = Fleet(Clock(), measured.service, measured.pairs, TwoChoices(draw), draw)
    fleet.add(scenario.replicas)
    fleet.feed(scenario.load, scenario.highest, 0.0, scenario.end)
    counts: list[int] = []
    times = [WINDOW * number for number in range(int(scenario.end / WINDOW))]
    for time in times:
        fleet.clock.at(time, lambda: counts.append(len(fleet.replicas)))
    if signal is not None:
        behavior = chart_behavior(start_seconds)
        Autoscaler(fleet, signal, behavior, scenario.replicas, 8 * REPLICAS).run(0.0, scenario.end)
    fleet.clock.run()
    first, last = scenario.counted
    during = tails([call for call in fleet.calls if first <= call.due < last])
    by_window: list[list[Call]] = [[] for _ in times]
    for call in fleet.calls:
        by_window[min(int(call.due / WINDOW), len(times) - 1)].append(call)
    return Scaled(
        name="none" if signal is None else signal.name,
        target=None if signal is None else signal.target,
        start_seconds=None if signal is None else start_seconds,
        p50=during.p50,
        p99=during.p99,
        most=max(counts),
        times=times,
        rates=[fmean([scenario.load(time), scenario.load(time + WINDOW)]) for time in times],
        replicas=[float(count) for count in counts],
        p99s=[tails(calls).p99 for calls in by_window],
    )
