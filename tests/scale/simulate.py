"""The simulations of the plan, each with its own seed, so that each can be repeated alone."""

import random
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

import yaml
from pydantic import BaseModel

from deploy.generate import CHART
from tests.benchmark.results import read
from tests.scale.arrivals import Burst, constant
from tests.scale.autoscaling import Answered, Autoscaler, Behavior, Signal, in_flight, waiting
from tests.scale.balance import BALANCERS, TwoChoices
from tests.scale.clock import Clock
from tests.scale.fleet import Fleet, capacity, steady, tails
from tests.scale.plan import Plan
from tests.scale.service import RESULTS, Measured, parsed
from tests.scale.validate import Compared, compare, runs

SEED = 1
UTILIZATIONS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
REPLICAS, CALLS = 16, 30_000
SIZES, SIZES_AT = (1, 4, 16, 64), 0.8
BALANCED_AT = (0.6, 0.8, 0.9)
MODEL = "base"  # of the simulations that need one model
BURST_REPLICAS = 4
BURST = {"start": 60.0, "rise": 60.0, "hold": 180.0, "factor": 2.0}
BURST_END = 420.0
WINDOW = 10.0  # seconds of a point of the picture
WARM, COLD = 30.0, 150.0  # seconds until a new replica gets calls, with a free node and without


class Point(BaseModel):
    """One simulation: which, and its percentiles in seconds."""

    model: str
    replicas: int
    balancer: str
    utilization: float
    queue_p50: float
    queue_p99: float
    p50: float
    p99: float


def limits(measured: Mapping[str, Measured]) -> dict[str, float]:
    """Returns the calls per second at which a replica of each model is full."""
    return {name: capacity(each.service, each.pairs) for name, each in measured.items()}


def point(measured: Measured, limit: float, model: str, replicas: int, balancer: str, utilization: float) -> Point:
    rate = utilization * limit * replicas
    found = steady(measured.service, measured.pairs, replicas, rate, CALLS, SEED, balancer)
    return Point(
        model=model,
        replicas=replicas,
        balancer=balancer,
        utilization=utilization,
        queue_p50=found.queue_p50,
        queue_p99=found.queue_p99,
        p50=found.p50,
        p99=found.p99,
    )


def points(measured: Mapping[str, Measured], limit: Mapping[str, float]) -> dict[str, list[Callable[[], Point]]]:
    """Returns the simulations of a constant rate, by table."""

    def one(model: str, replicas: int, balancer: str, utilization: float) -> Callable[[], Point]:
        return partial(point, measured[model], limit[model], model, replicas, balancer, utilization)

    return {
        "utilization": [one(name, REPLICAS, "two choices", each) for name in measured for each in UTILIZATIONS],
        "balancing": [one(MODEL, REPLICAS, name, each) for name in BALANCERS for each in BALANCED_AT],
        "replicas": [one(MODEL, size, "two choices", SIZES_AT) for size in SIZES],
    }


class Scaled(BaseModel):
    """A burst of calls, and what an autoscaler made of it.

    Attributes:
        name: The signal.
        target: Its value per replica.
        start_seconds: Seconds until a new replica gets calls.
        p50, p99: Latency of the calls that were due during the burst.
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


def chart_behavior(start_seconds: float) -> Behavior:
    """Returns the autoscaling behavior of the chart's template with its default values."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    template = (CHART / "templates" / "autoscaling.yaml").read_text(encoding="utf-8")
    text = template.partition('{{- define "dragoman.scalingBehavior" -}}')[2].partition("{{- end -}}")[0]
    filled = text.replace("{{ .scaleDownSeconds }}", str(values["autoscaling"]["scaleDownSeconds"]))
    return Behavior.of_chart(values, yaml.safe_load(filled), start_seconds)


def waiting_target() -> float:
    """Returns the chart's autoscaling.waitingPerPod."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return float(values["autoscaling"]["waitingPerPod"])


def bursts(measured: Measured, limit: float, plan: Plan) -> list[Callable[[], Scaled]]:
    """Returns the simulations of a burst: without autoscaling, and with it by several signals."""
    rate = plan.utilization * limit
    usual = steady(measured.service, measured.pairs, BURST_REPLICAS, BURST_REPLICAS * rate, CALLS // 2, SEED)
    flying = rate * usual.mean
    signals: list[tuple[Signal | None, float]] = [
        (None, WARM),
        (Signal("waiting requests", waiting_target(), waiting), WARM),
        (Signal("waiting requests", waiting_target(), waiting), COLD),
        (Signal("calls in flight", flying, in_flight), WARM),
        (Signal("calls answered", rate, Answered()), WARM),
    ]
    return [partial(burst, measured, rate, signal, start) for signal, start in signals]


def burst(measured: Measured, rate: float, signal: Signal | None, start_seconds: float) -> Scaled:
    """Simulates a burst.

    Args:
        rate: Usual calls per second of each of BURST_REPLICAS replicas.
        signal: What the autoscaler looks at; None for no autoscaler.
    """
    draw = random.Random(SEED)
    fleet = Fleet(Clock(), measured.service, measured.pairs, TwoChoices(draw), draw)
    fleet.add(BURST_REPLICAS)
    load = Burst(constant(rate * BURST_REPLICAS), **BURST)
    fleet.feed(load, rate * BURST_REPLICAS * BURST["factor"], 0.0, BURST_END)
    counts: list[int] = []
    times = [WINDOW * number for number in range(int(BURST_END / WINDOW))]
    for time in times:
        fleet.clock.at(time, lambda: counts.append(len(fleet.replicas)))
    if signal is not None:
        behavior = chart_behavior(start_seconds)
        Autoscaler(fleet, signal, behavior, BURST_REPLICAS, 8 * BURST_REPLICAS).run(0.0, BURST_END)
    fleet.clock.run()
    end = BURST["start"] + 2 * BURST["rise"] + BURST["hold"]
    during = tails([call for call in fleet.calls if BURST["start"] <= call.due < end])
    by_window = [[call for call in fleet.calls if time <= call.due < time + WINDOW] for time in times]
    return Scaled(
        name="none" if signal is None else signal.name,
        target=None if signal is None else signal.target,
        start_seconds=None if signal is None else start_seconds,
        p50=during.p50,
        p99=during.p99,
        most=max(counts),
        times=times,
        rates=[fmean([load(time), load(time + WINDOW)]) for time in times],
        replicas=[float(count) for count in counts],
        p99s=[tails(calls).p99 for calls in by_window],
    )


class Queue(BaseModel):
    """All simulations.

    Attributes:
        limits: Calls per second at which a replica of each model is full.
        utilization, balancing, replicas: See points.
        bursts: See bursts.
        validation: See tests.scale.validate.
    """

    limits: dict[str, float]
    utilization: list[Point]
    balancing: list[Point]
    replicas: list[Point]
    bursts: list[Scaled]
    validation: list[Compared]


def simulate(measured: Mapping[str, Measured], plan: Plan, say: Callable[[str], None]) -> Queue:
    """Runs all simulations."""
    limit = limits(measured)
    found: dict[str, list[Point]] = {}
    for name, simulations in points(measured, limit).items():
        say(f"{name}: {len(simulations)} simulations")
        found[name] = [one() for one in simulations]
    say("a burst")
    scaled = [one() for one in bursts(measured[MODEL], limit[MODEL], plan)]
    say("the benchmark's server")
    compared = [each for run in runs(measured) for each in compare(run, measured[run.model])]
    return Queue(limits=limit, **found, bursts=scaled, validation=compared)


def load_queue(folder: Path = RESULTS) -> Queue:
    """Returns the simulations that were written."""
    return parsed(Queue, read("queue", folder), folder / "queue.json")
