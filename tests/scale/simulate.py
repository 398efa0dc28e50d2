"""The simulations of the plan, each with its own seed, so that each can be repeated alone."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from tests.benchmark.results import read
from tests.scale.balance import BALANCERS
from tests.scale.fleet import capacity, steady
from tests.scale.plan import Plan
from tests.scale.scaling import Scaled, bursts, in_flight_target, mornings
from tests.scale.service import RESULTS, Measured, parsed
from tests.scale.validate import Compared, compare, runs

SEED = 1
UTILIZATIONS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
REPLICAS, CALLS = 16, 30_000
SIZES, SIZES_AT = (1, 4, 16, 64), 0.8
BALANCED_AT = (0.6, 0.8, 0.9)
MODEL = "base"  # of the simulations that need one model


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


class Queue(BaseModel):
    """All simulations.

    Attributes:
        limits: Calls per second at which a replica of each model is full.
        utilization, balancing, replicas: See points.
        bursts, mornings: See tests.scale.scaling.
        validation: See tests.scale.validate.
    """

    limits: dict[str, float]
    utilization: list[Point]
    balancing: list[Point]
    replicas: list[Point]
    bursts: list[Scaled]
    mornings: list[Scaled]
    validation: list[Compared]


def simulate(measured: Mapping[str, Measured], plan: Plan, say: Callable[[str], None]) -> Queue:
    """Runs all simulations."""
    limit = limits(measured)
    found: dict[str, list[Point]] = {}
    for name, simulations in points(measured, limit).items():
        say(f"{name}: {len(simulations)} simulations")
        found[name] = [one() for one in simulations]
    say("autoscaling")
    rate = plan.utilization * limit[MODEL]
    flying = in_flight_target(measured[MODEL], rate)
    scaled = [one() for one in bursts(measured[MODEL], rate, flying)]
    risen = [one() for one in mornings(measured[MODEL], rate, flying, plan)]
    say("the benchmark's server")
    compared = [each for run in runs(measured) for each in compare(run, measured[run.model])]
    return Queue(limits=limit, **found, bursts=scaled, mornings=risen, validation=compared)


def load_queue(folder: Path = RESULTS) -> Queue:
    """Returns the simulations that were written."""
    return parsed(Queue, read("queue", folder), folder / "queue.json")
