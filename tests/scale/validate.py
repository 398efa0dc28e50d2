"""Compares the simulation of one replica with a real server, as tests.benchmark and tests.scale.measure found it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pydantic import BaseModel

from tests.benchmark.machine import QUIET_CORES
from tests.benchmark.results import RESULTS, read
from tests.scale.fleet import Tails, closed, steady
from tests.scale.service import Lengths, Measured, Service

CALLS, SEED = 4000, 1
FIXED = [(16, 32)]  # source and target tokens of all requests to base in tests.benchmark
COSTS = ("step_seconds", "row_seconds", "encode_seconds", "token_seconds", "call_seconds")


@dataclass(frozen=True)
class Load:
    """A load of a real server, and the latency that was measured, in seconds."""

    callers: int | None
    rate: float | None
    p50: float
    p99: float


@dataclass(frozen=True)
class Run:
    """A benchmark of one model.

    Attributes:
        name: Of the file of results.
        date: When it ran.
        lengths: Of its inputs.
    """

    name: str
    model: str
    date: str
    lengths: Lengths
    loads: list[Load]


class Compared(BaseModel):
    """One load, measured and simulated, in seconds.

    Attributes:
        run, date: File of results of the benchmark, and when it ran.
        factor: By which the benchmark's machine was slower than the one on which the costs were measured.
    """

    run: str
    date: str
    model: str
    factor: float
    callers: int | None
    rate: float | None
    measured: tuple[float, float]
    simulated: tuple[float, float]


def runs(measured: Mapping[str, Measured], folder: Path = RESULTS) -> Iterator[Run]:
    """Yields the measurements of served int8 models: beside other servers, beside CTranslate2, and for this simulation.

    The last one counts only if the machine was quiet: busy cores change its latencies, though not its CPU times.
    """
    for model in measured:
        if found := read("servers", folder).get(f"{model} int8"):
            server = found["systems"]["dragoman"]
            loads = [Load(each["callers"], None, each["p50"], each["p99"]) for each in server["closed"]]
            loads.append(Load(None, server["open"]["calls"], server["open"]["p50"], server["open"]["p99"]))
            yield Run("servers", model, found["machine"]["date"], measured[model].pairs, loads)
        if found := read("serving", folder).get(f"{model} int8"):
            rows = [row for row in found["greedy"] if row["system"] == "unary"]
            loads = [Load(row["load"], None, row["p50"], row["p99"]) for row in rows]
            arrivals = found["arrivals"]
            loads.append(Load(None, arrivals["calls_per_second"], arrivals["p50"], arrivals["p99"]))
            fixed = FIXED if model == "base" else measured[model].pairs
            yield Run("serving", model, found["machine"]["date"], fixed, loads)
    for model, each in measured.items():
        if each.machine["busy_cores_before"] <= QUIET_CORES:
            loads = [Load(one.callers, one.rate, one.p50, one.p99) for one in (*each.closed, *each.opened)]
            yield Run("service", model, each.machine["date"], each.pairs, loads)


def compare(run: Run, measured: Measured, calls: int = CALLS) -> list[Compared]:
    """Simulates each load of a benchmark.

    The machine's speed is the only thing that is fitted: all costs are multiplied by the median, over the loads with
    callers, of measured over simulated median latency. Random arrivals play no part in that.
    """
    loads = [load for load in run.loads if load.callers]
    ratios = [load.p50 / _simulate(load, run.lengths, measured, 1.0, calls).p50 for load in loads]
    factor = median(ratios)
    found = []
    for load in run.loads:
        simulated = _simulate(load, run.lengths, measured, factor, calls)
        found.append(
            Compared(
                run=run.name,
                date=run.date,
                model=run.model,
                factor=factor,
                callers=load.callers,
                rate=load.rate,
                measured=(load.p50, load.p99),
                simulated=(simulated.p50, simulated.p99),
            )
        )
    return found


def slower(service: Service, factor: float) -> Service:
    """Returns the service on a machine that takes `factor` times as long for everything."""
    return service.model_copy(update={name: factor * getattr(service, name) for name in COSTS})


def _simulate(load: Load, lengths: Lengths, measured: Measured, factor: float, calls: int) -> Tails:
    service, client = slower(measured.service, factor), factor * measured.client_seconds
    if load.callers:
        _, found = closed(service, lengths, load.callers, calls, SEED, client)
        return found
    assert load.rate is not None
    return steady(service, lengths, 1, load.rate, calls, SEED, client_seconds=client)
