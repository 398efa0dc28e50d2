"""The tables of docs/scale.md, each from what was measured, simulated or assumed."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.benchmark.tables import measured_on, table
from tests.scale.plan import (
    BASE_SHAPE,
    Plan,
    Sizing,
    addresses,
    break_even,
    connections_per_second,
    followed_replicas,
    loop_limit,
    rollout_seconds,
)
from tests.scale.prices import APIS, CPU, GPUS, HOURS
from tests.scale.scaling import Scaled, chart_behavior, chart_values
from tests.scale.service import Measured
from tests.scale.simulate import BALANCED_AT, MODEL, UTILIZATIONS, Point, Queue
from tests.scale.training import MACHINES, PAPER_TOKENS, Shape, Step
from tests.scale.validate import Compared

GPU_ROWS = 64
FLEETS = (10, 100, 1_000, 10_000)
CLIENTS = 200  # processes that call
POD_START = 5.0  # seconds; assumed: the image is on the node, and the model loads within two seconds
SURGE = 0.25  # of the replicas at once, instead of the chart's one
NODE_CORES = 64
DISTRIBUTED = 1_000  # replicas whose model is replaced
TRANSLATOR = "de-en"  # its inputs are sentences, which an API could translate

SUMMARY = """- A billion requests a day are {mean:,.0f} a second on average, and {peak:,.0f} at the assumed peak.
- For that peak, `{small}` takes {small_replicas} replicas of two cores, and {large} {large_replicas}. Ten thousand \
replicas of {large} would carry {carried:,.0f} billion requests a day.
- 99 % of {large}'s answers then come within {usual} ms, or {lost} ms with one of {clusters} clusters lost: as \
simulated, times the worst error found in simulated tails.
- Compute for a million requests costs ${small_price:.2f} with `{small}` and ${large_price:.2f} with {large}, at \
assumed prices."""


@dataclass(frozen=True)
class Facts:
    """Everything that the tables show."""

    measured: Mapping[str, Measured]
    queue: Queue
    plan: Plan

    def sizing(self, model: str) -> Sizing:
        return Sizing.of(self.measured[model], self.queue.limits[model], self.plan)

    def tail_factor(self, model: str) -> float:
        """Returns by how much the real p99 with random arrivals exceeded the simulated one, at worst.

        Of all models if there was no benchmark of this one.
        """
        opened = [each for each in self.queue.validation if each.rate]
        same = [each for each in opened if each.model == model] or opened
        return max(each.measured[1] / each.simulated[1] for each in same)


def summary(facts: Facts) -> str:
    day, small, large = facts.plan.day, facts.sizing(TRANSLATOR), facts.sizing(MODEL)
    after_loss = min(share for share in UTILIZATIONS if share >= facts.plan.after_loss)
    usual, lost = (
        facts.tail_factor(MODEL) * _point(facts, MODEL, share).p99 for share in (facts.plan.utilization, after_loss)
    )
    return SUMMARY.format(
        mean=day.mean,
        peak=day.peak,
        small=TRANSLATOR,
        small_replicas=small.peak_replicas,
        small_price=small.million_requests(),
        large=MODEL,
        large_replicas=large.peak_replicas,
        large_price=large.million_requests(),
        carried=large.requests_of(10_000) / 1e9,
        usual=_milli(usual),
        lost=_milli(lost),
        clusters=facts.plan.clusters,
    )


def _point(facts: Facts, model: str, share: float) -> Point:
    """Returns the simulation of a model at a utilization."""
    (found,) = [point for point in facts.queue.utilization if (point.model, point.utilization) == (model, share)]
    return found


def costs(facts: Facts) -> str:
    rows = []
    for name, measured in facts.measured.items():
        service, sizing = measured.service, facts.sizing(name)
        rows.append(
            [
                name,
                f"{sizing.source:.1f} → {sizing.target:.1f}",
                f"{_micro(service.step_seconds)} + {_micro(service.row_seconds)}",
                f"{_micro(service.encode_seconds)} + {_micro(service.token_seconds)}",
                _micro(service.call_seconds),
                f"{sizing.limit:,.0f}",
                f"{sizing.core_tokens:,.0f}",
            ]
        )
    header = ["", "tokens of a request", "a step + a row", "an encoder run + a token", "a call", "calls/s when full"]
    return table([*header, "target tokens/s a core"], rows)


def measured_line(facts: Facts) -> str:
    found = {measured_on(each.machine) for each in facts.measured.values()}
    return "\n".join(f"- {line}" for line in sorted(found))


def validation(facts: Facts) -> str:
    rows = [
        [
            f"{each.model}, {each.run}.json of {each.date.split()[0]}, × {each.factor:.2f}",
            _load(each),
            " / ".join(_milli(value) for value in each.measured),
            " / ".join(_milli(value) for value in each.simulated),
            " / ".join(
                f"{real / simulated:.2f}" for real, simulated in zip(each.measured, each.simulated, strict=True)
            ),
        ]
        for each in facts.queue.validation
    ]
    return table(["benchmark", "load", "measured p50 / p99, ms", "simulated", "measured over simulated"], rows)


def _load(each: Compared) -> str:
    if each.callers is None:
        return f"{each.rate:,.0f} calls/s at random"
    return "1 caller" if each.callers == 1 else f"{each.callers} callers"


def sizing(facts: Facts) -> str:
    rows = []
    for name in facts.measured:
        found = facts.sizing(name)
        peak = found.peak_replicas
        rows.append(
            [
                name,
                f"{found.plan.utilization * found.limit:,.0f}",
                f"{peak:,} ({peak // facts.plan.clusters:,} a cluster)",
                f"{peak * found.cores:,}",
                f"{found.mean_replicas:,.0f}",
                f"{found.requests_of(10_000) / 1e9:,.0f} billion",
            ]
        )
    header = ["", "calls/s of a replica", "replicas at the peak", "their cores", "replicas, mean of a day"]
    return table([*header, "requests a day of 10,000 replicas"], rows)


def utilization(facts: Facts) -> str:
    models = list(facts.measured)
    rows = []
    for share in UTILIZATIONS:
        cells = [f"{share:.0%}"]
        for model in models:
            point = _point(facts, model, share)
            expected = _milli(facts.tail_factor(model) * point.p99)
            cells += [_pair(point.queue_p50, point.queue_p99), f"{_pair(point.p50, point.p99)} ({expected})"]
        rows.append(cells)
    header = [text for model in models for text in (f"{model}: queue", "latency")]
    return table(["of the limit", *header], rows)


def balancing(facts: Facts) -> str:
    rows: dict[str, list[str]] = {}
    for point in facts.queue.balancing:
        cells = rows.setdefault(point.balancer, [point.balancer])
        cells.append(f"{_pair(point.queue_p50, point.queue_p99)}; {_pair(point.p50, point.p99)}")
    return table(["", *(f"{share:.0%}: queue; latency" for share in BALANCED_AT)], list(rows.values()))


def replicas(facts: Facts) -> str:
    points = facts.queue.replicas
    rows = [
        [f"{point.replicas}", _pair(point.queue_p50, point.queue_p99), _pair(point.p50, point.p99)] for point in points
    ]
    return table(["replicas", "queue", "latency"], rows)


def burst(facts: Facts) -> str:
    rows = []
    for one in facts.queue.bursts:
        ready = "–" if one.start_seconds is None else f"{one.start_seconds:.0f} s"
        rows.append([_signal(one), ready, f"{one.p50:.2f} / {one.p99:.2f} s", str(one.most)])
    return table(["signal", "new replicas get calls after", "p50 / p99 in the burst", "most replicas"], rows)


def morning(facts: Facts) -> str:
    fixed = sum(facts.queue.mornings[0].replicas)
    rows = []
    for one in facts.queue.mornings:
        count = f"{one.replicas[0]:.0f} to {one.most}" if one.target else f"{one.most}, fixed"
        time = f"{sum(one.replicas) / fixed:.0%}"
        rows.append([_signal(one), count, time, f"{one.p50:.2f} / {one.p99:.2f} s", f"{max(one.p99s):.2f} s"])
    header = ["signal", "replicas", "their time, of the fixed ones'", "p50 / p99", "p99 of the worst ten seconds"]
    return table(header, rows)


def _signal(one: Scaled) -> str:
    return one.name if one.target is None else f"{one.name}, {one.target:.3g} a replica"


def gpus(facts: Facts) -> str:
    found = facts.sizing(MODEL)
    loop = loop_limit(facts.measured[MODEL], found.target)
    rows = []
    for machine in GPUS:
        floor = BASE_SHAPE.floor(machine, GPU_ROWS, found.source, found.target)
        ceiling = BASE_SHAPE.ceiling(machine, GPU_ROWS, found.source, found.target)
        even = break_even(ceiling, machine, found)
        needed = even * ceiling
        rows.append(
            [
                f"{machine.accelerator}, {machine.bandwidth / 1e9:,.0f} GB/s",
                f"{_micro(floor)} µs",
                _rounded(ceiling),
                _rounded(loop),
                f"{_rounded(needed)} ({even:.0%} of the ceiling)",
                f"{math.ceil(needed / loop)}",
            ]
        )
    header = ["GPU", "floor of a step", "ceiling, tokens/s", "one event loop, tokens/s", "as cheap as CPUs at tokens/s"]
    return table([*header, "server processes for that"], rows)


def prices(facts: Facts) -> str:
    del facts
    rows = [[machine.name, f"${machine.hour:,.4g} an hour", machine.source] for machine in (CPU, *GPUS)]
    rows += [[api.name, f"${api.million_characters:,.2f} a million characters", api.source] for api in APIS]
    return table(["", "assumed price", "read in"], rows)


def cost(facts: Facts) -> str:
    rows = []
    for name in facts.measured:
        found = facts.sizing(name)
        fixed = found.day_price(found.peak_replicas)
        followed = found.day_price(found.mean_replicas)
        rows.append(
            [
                name,
                f"${fixed:,.0f} / ${followed:,.0f}",
                f"${found.million_requests():.3f}",
                f"${found.million_tokens():.4f}",
                *(f"${found.api_million_tokens(api):,.0f}" if name == TRANSLATOR else "–" for api in APIS),
            ]
        )
    header = ["", "a day, fixed / autoscaled", "a million requests", "a million target tokens"]
    return table([*header, *(api.name for api in APIS)], rows)


def growth(facts: Facts) -> str:
    """What grows with the replicas of one cluster."""
    values = chart_values()
    ready, age = float(values["minReadySeconds"]), float(values["config"]["max_connection_age_seconds"])
    behavior, series = chart_behavior(0.0), max(each.series for each in facts.measured.values())
    follow = followed_replicas(facts.plan.day, behavior.down_seconds)
    rows = []
    for count in FLEETS:
        surge = math.ceil(SURGE * count)
        rows.append(
            [
                f"{count:,}",
                "yes" if count <= addresses() else "no",
                f"{connections_per_second(CLIENTS, count, age):,.0f}",
                f"{series * count:,}",
                _duration(rollout_seconds(count, 1, POD_START, ready)),
                _duration(rollout_seconds(count, surge, POD_START, ready)),
                "yes" if count / (1 + facts.plan.swing) <= follow else "no",
            ]
        )
    header = ["replicas", "one DNS answer holds them", f"new connections/s of {CLIENTS} clients", "series"]
    header += ["rollout, one at a time", f"{SURGE:.0%} at a time", "scale-down follows the evening"]
    return table(header, rows)


def distribution(facts: Facts) -> str:
    nodes = math.ceil(DISTRIBUTED * facts.measured[MODEL].service.cores / (NODE_CORES * (1 - facts.plan.reserved)))
    rows = []
    for name, measured in facts.measured.items():
        size = measured.bundle_bytes
        rows.append([name, *(_bytes(copies * size) for copies in (1, nodes, DISTRIBUTED))])
    header = ["", "the bundle", f"once a node ({nodes})", f"once a replica ({DISTRIBUTED:,})"]
    return table(header, rows)


def training(facts: Facts) -> str:
    del facts
    shape, rows = Shape(), []
    for machine in MACHINES:
        for step_tokens in (PAPER_TOKENS, PAPER_TOKENS * machine.count // 8):
            step = Step(shape, machine, step_tokens / machine.count)
            row = [
                machine.name,
                f"{step_tokens:,} ({step.tokens:,.0f} a GPU)",
                f"{step.sent_bytes / 1e6:,.0f} MB",
                f"{1000 * step.compute:.2f}",
                f"{1000 * step.communication:.2f}",
                f"{1000 * step.seconds:.2f}",
                f"{step.efficiency:.0%}",
                f"{step.tokens_per_second / 1e6:.1f} million",
            ]
            if row not in rows:
                rows.append(row)
    header = ["machines", "target tokens of a step", "sent by a GPU", "computing, ms", "all-reduce, ms", "step, ms"]
    return table([*header, "efficiency", "target tokens/s"], rows)


def _rounded(value: float) -> str:
    """Returns a number of three digits and zeros."""
    return f"{float(f'{value:.3g}'):,.0f}"


def _micro(seconds: float) -> str:
    value = 1e6 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _milli(seconds: float) -> str:
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _pair(middle: float, tail: float) -> str:
    return f"{_milli(middle)} / {_milli(tail)}"


def _duration(seconds: float) -> str:
    return f"{seconds / HOURS:,.1f} h" if seconds >= HOURS else f"{seconds / 60:,.0f} min"


def _bytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


QUEUES: Mapping[str, Callable[[Facts], str]] = {
    "validation": validation,
    "utilization": utilization,
    "balancing": balancing,
    "replicas": replicas,
    "burst": burst,
    "morning": morning,
}
SUMS: Mapping[str, Callable[[Facts], str]] = {
    "summary": summary,
    "costs": costs,
    "measured": measured_line,
    "sizing": sizing,
    "gpus": gpus,
    "prices": prices,
    "cost": cost,
    "growth": growth,
    "distribution": distribution,
    "training": training,
}


def queue_tables(facts: Facts) -> dict[str, str]:
    """Returns what was simulated, by the name of the table."""
    return {name: make(facts) for name, make in QUEUES.items()}


def all_tables(facts: Facts) -> dict[str, str]:
    """Returns all tables of the page by name."""
    return {name: make(facts) for name, make in {**SUMS, **QUEUES}.items()}
