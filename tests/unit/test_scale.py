"""The simulation of docs/scale.md: its queues agree with theory, its replicas and its autoscaler with the rules."""

import random
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from dragoman_server.bundle.load import load_bundle
from dragoman_server.engine.scheduler import SchedulerOptions
from dragoman_training.model import Transformer
from tests.benchmark.gpu.steps import weight_bytes
from tests.benchmark.random_bundle import BASE, VOCABULARY
from tests.scale.arrivals import DAY, Burst, Day, arrivals, constant
from tests.scale.autoscaling import Autoscaler, Behavior, Signal
from tests.scale.balance import BALANCERS, TwoChoices
from tests.scale.clock import Clock, Cores
from tests.scale.fleet import Fleet, capacity, closed, steady
from tests.scale.measure import Window, fit, line
from tests.scale.plan import GpuShape, Plan, Sizing, addresses, followed_replicas, rollout_seconds
from tests.scale.replica import Call, Replica
from tests.scale.service import Measured, Observed, Service
from tests.scale.training import Machines, Shape, Step
from tests.scale.validate import COSTS, Load, Run, compare, runs
from tests.support.bundles import SHIPPED_FP32

MILLISECOND = 0.001
BATCHING = Service(
    cores=4,
    engines=2,
    rows=32,
    step_seconds=2 * MILLISECOND,
    row_seconds=0.2 * MILLISECOND,
    encode_seconds=0.5 * MILLISECOND,
    token_seconds=0.1 * MILLISECOND,
    call_seconds=0.3 * MILLISECOND,
    min_rows_per_engine=1,
    min_single_rows_per_engine=1,
)
LENGTHS = [(8, 6), (12, 10), (20, 17)]


def service(**changed: Any) -> Service:
    return BATCHING.model_copy(update=changed)


def single_server(seconds: float) -> Service:
    """One row, and a service time that never varies: a queue whose waiting time is known."""
    free = {"row_seconds": 0.0, "encode_seconds": 0.0, "token_seconds": 0.0, "call_seconds": 0.0}
    return service(engines=1, rows=1, step_seconds=seconds, **free)


@pytest.mark.parametrize("utilization", [0.3, 0.5, 0.8])
def test_one_row_waits_as_long_as_the_formula_for_constant_service_says(utilization: float) -> None:
    seconds = 10 * MILLISECOND
    draw = random.Random(3)
    fleet = Fleet(Clock(), single_server(seconds), [(1, 1)], TwoChoices(draw), draw)
    fleet.add()
    rate = utilization / seconds
    fleet.feed(constant(rate), rate, 0.0, 20_000 / rate)
    fleet.clock.run()
    expected = utilization / (2 * (1 - utilization)) * seconds  # Pollaczek and Khinchine
    assert fmean(call.waited for call in fleet.calls) == pytest.approx(expected, rel=0.1)
    assert fmean(call.latency for call in fleet.calls) == pytest.approx(expected + seconds, rel=0.05)


def test_every_call_is_answered_once_in_the_order_of_its_times() -> None:
    draw = random.Random(5)
    fleet = Fleet(Clock(), BATCHING, LENGTHS, TwoChoices(draw), draw)
    fleet.add(3)
    sent: list[float] = []
    fleet.balancer = _Noting(fleet.balancer, fleet.clock, sent)
    fleet.feed(constant(900.0), 900.0, 0.0, 3.0)
    fleet.clock.run()
    assert sorted(call.due for call in fleet.calls) == sent
    assert len(sent) == pytest.approx(2700, rel=0.1)
    assert all(call.due <= call.queued <= call.started < call.done for call in fleet.calls)
    assert [replica.outstanding for replica in fleet.replicas] == [0, 0, 0]


class _Noting:
    def __init__(self, balancer: Any, clock: Clock, sent: list[float]) -> None:
        self._balancer, self._clock, self._sent = balancer, clock, sent

    def choose(self, replicas: Any) -> Replica:
        self._sent.append(self._clock.now)
        chosen: Replica = self._balancer.choose(replicas)
        return chosen


def test_a_call_alone_takes_what_its_work_takes() -> None:
    rate, found = closed(BATCHING, [(20, 17)], callers=1, calls=50, seed=0)
    work = 0.3 + 0.5 + 20 * 0.1 + 17 * (2 + 0.2)
    assert (found.p50, found.p99) == pytest.approx((work * MILLISECOND, work * MILLISECOND))
    assert rate == pytest.approx(1 / (work * MILLISECOND))
    assert found.queue_p99 == 0


def test_rows_share_steps() -> None:
    """A full engine's turn is a step of all rows and the encoding of those that replace the finished ones."""
    one = service(engines=1, call_seconds=0.0)
    target = 10
    full = capacity(one, [(10, target)])
    calls_per_turn = 32 / target
    turn = 2 + 32 * 0.2 + calls_per_turn * 10 * 0.1  # without the encoder runs' fixed part: at most one a turn
    assert calls_per_turn / ((turn + 0.5) * MILLISECOND) <= full <= calls_per_turn / (turn * MILLISECOND)
    assert capacity(service(engines=1, rows=8), LENGTHS) < capacity(service(engines=1), LENGTHS)


def ends(work: dict[str, tuple[float, float]]) -> dict[str, float]:
    """Returns when each thread is done that starts at a time and computes for so long, on two cores."""
    clock, found = Clock(), dict[str, float]()
    cores = Cores(clock, 2)

    def start(name: str, seconds: float) -> None:
        def done() -> None:
            found[name] = clock.now

        cores.compute(seconds, done)

    for name, (begin, seconds) in work.items():
        clock.at(begin, partial(start, name, seconds))
    clock.run()
    return found


def test_threads_share_cores() -> None:
    assert ends({"short": (0, 1), "long": (0, 3), "late": (1, 2)}) == pytest.approx({"short": 1, "long": 3, "late": 3})
    three = ends({"one": (0, 2), "two": (0, 2), "three": (0, 4)})
    assert three == pytest.approx({"one": 3, "two": 3, "three": 5}), "two thirds of a core each, then a whole one"


def test_the_last_engine_of_a_small_model_rests_while_the_other_copes() -> None:
    """The rule is the server's scheduler's: the simulation uses it."""
    used: dict[int, set[int]] = {}
    for single_rows in (1, 24):
        clock, calls = Clock(), list[Call]()
        replica = Replica(clock, service(min_single_rows_per_engine=single_rows), calls.append)
        for _ in range(16):
            replica.send(Call(8, 6, 0.0))
        clock.run()
        used[single_rows] = {engine.index for engine in replica.engines if engine.steps}
        assert len(calls) == 16
    assert used == {1: {0, 1}, 24: {1}}


def test_the_same_seed_gives_the_same_percentiles() -> None:
    one, again, other = (steady(BATCHING, LENGTHS, 4, 800.0, 2000, seed) for seed in (1, 1, 2))
    assert one == again != other


def test_balancing_by_load_has_shorter_tails_than_chance() -> None:
    rate = 0.85 * capacity(BATCHING, LENGTHS) * 8
    p99 = {name: steady(BATCHING, LENGTHS, 8, rate, 12_000, 1, name).queue_p99 for name in BALANCERS}
    assert p99["two choices"] < p99["round robin, many clients"]
    assert p99["least loaded"] < 1.1 * p99["two choices"], "to know all replicas helps little, if at all"
    assert p99["round robin"] < p99["round robin, many clients"]


def test_arrivals_follow_their_rate() -> None:
    load = Burst(constant(100.0), start=10.0, rise=10.0, hold=20.0, factor=3.0)
    assert [load(now) for now in (0, 10, 15, 20, 30, 40, 45, 50, 60)] == pytest.approx(
        [100, 100, 200, 300, 300, 300, 200, 100, 100]
    )
    moments = list(arrivals(load, 300.0, 0.0, 60.0, random.Random(1)))
    assert moments == sorted(moments)
    counts = [sum(low <= moment < high for moment in moments) for low, high in ((0, 10), (20, 40), (50, 60))]
    assert counts == pytest.approx([1000, 6000, 1000], rel=0.1)
    gaps = [later - sooner for sooner, later in pairwise(moments) if 20 < sooner < 40]
    assert fmean(gap**2 for gap in gaps) / fmean(gaps) ** 2 == pytest.approx(2, rel=0.15), "as of a Poisson process"
    with pytest.raises(ValueError, match="expected at most 200"):
        list(arrivals(load, 200.0, 0.0, 60.0, random.Random(1)))


def test_a_day_has_its_mean_and_its_peak() -> None:
    day = Day(1000.0, 0.6)
    assert fmean(day(hour * DAY / 240) for hour in range(240)) == pytest.approx(1000)
    assert (day(0.0), day(DAY / 2), day.peak) == pytest.approx((400, 1600, 1600))


BEHAVIOR = Behavior(
    scrape_seconds=15, sync_seconds=15, up_seconds=30, keep_seconds=300, down_seconds=60, start_seconds=20
)


def scaled(values: dict[float, float], end: float, replicas: int = 4, maximum: int = 64) -> list[tuple[float, int]]:
    """Returns when the wanted replicas changed, and to what, if the metric has each value from a time on."""
    draw = random.Random(0)
    fleet = Fleet(Clock(), BATCHING, LENGTHS, TwoChoices(draw), draw)
    fleet.add(replicas)

    def read(fleet: Fleet) -> float:
        return values[max(time for time in values if time <= fleet.clock.now)]

    autoscaler = Autoscaler(fleet, Signal("a metric", 10.0, read), BEHAVIOR, 2, maximum)
    autoscaler.run(0.0, end)
    fleet.clock.run()
    changes, before = list[tuple[float, int]](), replicas
    for time, _, wanted in autoscaler.history:
        if wanted != before:
            changes.append((time, wanted))
        before = wanted
    assert len(fleet.replicas) == before
    return changes


def test_replicas_at_most_double_in_a_period_and_follow_the_metric() -> None:
    assert scaled({0.0: 40.0, 60.0: 300.0}, 200) == [(67.5, 8), (97.5, 16), (127.5, 30)]
    assert scaled({0.0: 40.0, 60.0: 300.0}, 200, maximum=12) == [(67.5, 8), (97.5, 12)]


def test_two_replicas_may_be_added_where_doubling_adds_less() -> None:
    assert scaled({0.0: 10.0, 60.0: 100.0}, 100, replicas=1) == [(7.5, 2), (67.5, 4), (97.5, 8)]


def test_a_metric_within_the_tolerance_changes_nothing() -> None:
    assert scaled({0.0: 43.9}, 100) == []
    assert scaled({0.0: 44.1}, 100) == [(7.5, 5)]


def test_superfluous_replicas_go_one_by_one_after_a_while() -> None:
    changes = scaled({0.0: 40.0, 60.0: 10.0}, 520)
    assert changes == [(352.5, 3), (412.5, 2)], "five minutes after the metric last asked for four"


def test_costs_are_found_in_measurements() -> None:
    assert line([(x, 3 + 2 * x) for x in (1, 4, 20)]) == pytest.approx((3, 2))
    assert line([(1, 1.0), (2, 2.5), (4, 6.0)])[0] == 0, "no cost is negative"
    assert line([(1, 4.0), (2, 3.0), (4, 2.0)])[1] == 0


def window(steps: int, rows: int, runs: int, tokens: int, calls: int) -> Window:
    """What a server would report whose work costs what BATCHING says, on cores that it has half of the time."""
    stepping = steps * (BATCHING.step_seconds + rows * BATCHING.row_seconds)
    encoding = runs * BATCHING.encode_seconds + tokens * BATCHING.token_seconds
    counts = {"step_seconds_sum": 2 * stepping, "step_seconds_count": steps, "step_rows_sum": steps * rows}
    counts |= {"encode_seconds_sum": 2 * encoding, "encode_seconds_count": runs, "source_tokens_total": tokens}
    counts |= {"queue_seconds_count": calls}
    return Window(1.0, calls * BATCHING.call_seconds, stepping + encoding, counts)


def test_costs_are_those_of_cpu_time() -> None:
    windows = [window(100, 1, 10, 80, 10), window(50, 8, 20, 600, 60), window(10, 32, 9, 700, 70)]
    found = fit(windows, BATCHING.rows, BATCHING.engines, SchedulerOptions(min_rows_per_engine=1))
    for name in COSTS:
        assert getattr(found, name) == pytest.approx(getattr(BATCHING, name)), name


def measured_on(busy_cores: float, closed: tuple[Observed, ...] = (), opened: tuple[Observed, ...] = ()) -> Measured:
    return Measured(
        machine={"busy_cores_before": busy_cores, "date": "a day"},
        inputs="",
        characters=1,
        lengths="8:6 12:10",
        bundle_bytes=1,
        series=1,
        service=BATCHING,
        client_seconds=0.0,
        closed=list(closed),
        opened=list(opened),
    )


def test_latencies_of_a_busy_machine_are_not_compared(tmp_path: Path) -> None:
    callers = Observed(callers=8, rate=None, calls_per_second=1, p50=0.1, p99=0.2, p99s=[])
    arrivals = Observed(callers=None, rate=5.0, calls_per_second=1, p50=0.3, p99=0.4, p99s=[])
    quiet, busy = (measured_on(cores, (callers,), (arrivals,)) for cores in (0.1, 1.9))
    (run,) = runs({"quiet": quiet, "busy": busy}, tmp_path)
    assert run == Run(
        "service", "quiet", "a day", [(8, 6), (12, 10)], [Load(8, None, 0.1, 0.2), Load(None, 5, 0.3, 0.4)]
    )


def test_only_the_machines_speed_is_fitted_to_a_benchmark() -> None:
    """A server that does what the simulation does, on a machine half as fast."""
    loads = []
    for callers in (1, 8, 32):
        _, found = closed(service(), LENGTHS, callers, 1000, 1, client_seconds=0.0)
        loads.append(Load(callers, None, 2 * found.p50, 2 * found.p99))
    measured = measured_on(0.0)
    found_loads = compare(Run("a run", "a model", "a day", LENGTHS, loads), measured, calls=1000)
    assert {round(each.factor, 1) for each in found_loads} == {2.0}
    for each in found_loads:
        assert each.simulated == pytest.approx(each.measured, rel=0.1)


def test_sizing_is_arithmetic() -> None:
    plan = Plan(requests=86_400_000, swing=0.5, utilization=0.5, clusters=4, reserved=0.2)
    sizing = Sizing(plan, source=10, target=8, characters=40, cores=2, limit=100)
    assert (plan.day.mean, plan.day.peak, plan.after_loss) == pytest.approx((1000, 1500, 2 / 3))
    assert sizing.core_tokens == 400
    assert sizing.peak_replicas == 32, "1500 / 50 are 30, and eight in each of four clusters"
    assert sizing.mean_replicas == 20
    assert sizing.requests_of(30) == pytest.approx(plan.requests)
    assert sizing.day_price(20) == pytest.approx(20 * 2 / 0.8 * 24 * 0.1027 / 2)
    assert sizing.million_requests() == pytest.approx(sizing.day_price(20) / 86.4)
    assert sizing.million_tokens() == pytest.approx(sizing.million_requests() / 8)


def test_what_grows_is_arithmetic() -> None:
    assert rollout_seconds(1000, 1, 5, 60) == 65_000
    assert rollout_seconds(1000, 250, 5, 60) == 260
    assert rollout_seconds(10, 3, 5, 60) == 4 * 65
    assert 12 + 60 + 16 * addresses() <= 65_535 < 12 + 60 + 16 * (addresses() + 1)
    day, replicas = Day(1000.0, 0.6), followed_replicas(Day(1000.0, 0.6), 60)
    steepest = max(day(DAY * part / 1440) - day(DAY * (part + 1) / 1440) for part in range(720, 1440))
    assert steepest / day.mean * replicas == pytest.approx(1, rel=0.01), "one replica a minute"


def test_weights_of_a_step_are_those_of_a_decoder_graph() -> None:
    bundle = load_bundle(SHIPPED_FP32)
    shape = bundle.manifest.shape
    counted = GpuShape(shape.d_model, shape.d_ff, shape.decoder_layers, shape.target_vocabulary, item_bytes=4)
    assert counted.item_bytes * counted.weights == pytest.approx(weight_bytes(bundle), rel=0.02)
    assert shape.heads * shape.d_head == shape.d_model
    cache = counted.step_bytes(1, 10, 7) - counted.step_bytes(0, 10, 7)
    assert cache == 2 * shape.decoder_layers * shape.d_model * (10 + 4) * 4


def test_a_training_step_on_paper() -> None:
    shape = Shape(d_model=4, d_ff=8, encoder_layers=1, decoder_layers=2, vocabulary=100)
    assert (shape.encoder, shape.decoder, shape.table) == (4 * 16 + 64, 2 * (8 * 16 + 64), 400)
    assert shape.parameters == 128 + 384 + 800
    machines = Machines("", nodes=2, gpus=4, flops=6 * 912, inside=1000.0, between=500.0)
    assert machines.all_reduce(100.0) == pytest.approx(2 * 3 / 4 * 100 / 1000 + 2 / 2 * 100 / 500)
    step = Step(shape, machines, tokens=3.0)
    assert step.compute == pytest.approx(3.0)
    assert step.sent_bytes == pytest.approx(2 * 7 / 8 * 4 * 1312)
    one = Step(shape, Machines("", 1, 1, flops=6 * 912, inside=1.0, between=1.0), tokens=3.0)
    assert (one.communication, one.efficiency) == (0, 1)


def test_parameters_on_paper_are_those_of_the_model() -> None:
    with torch.device("meta"):
        model = Transformer(BASE, VOCABULARY, VOCABULARY, 0)
    real = sum(parameter.numel() for parameter in model.parameters())
    assert Shape().parameters == pytest.approx(real, rel=0.005)
