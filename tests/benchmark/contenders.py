"""Who is measured in greedy search, and at which loads: the raw loop and the server. CTranslate2 comes beside them."""

from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from dragoman.local import LOOPBACK, LocalServer
from tests.benchmark.actor import Actor
from tests.benchmark.effort import Contender
from tests.benchmark.engine_work import EngineWork
from tests.benchmark.raw_loop import RawLoop
from tests.benchmark.samples import Sample, Series
from tests.benchmark.workload import Workload
from tests.support.load import LoadGenerator

IN_FLIGHT = (1, 8, 64)
BATCHES_AT_ONCE = 4  # calls of GenerateBatch, for the load beyond 64


def thread_settings(cores: int) -> list[tuple[int, int]]:
    """(workers, threads of each): one with all cores, and one for each core."""
    return sorted({(1, cores), (cores, 1)})


def raw_loops(stack: ExitStack, bundle: Path, workload: Workload, cores: int) -> dict[tuple[int, int], Actor]:
    """A raw loop for each thread setting."""
    return {
        (engines, threads): stack.enter_context(
            closing(
                Actor(RawLoop, bundle, workload.source_ids, engines, threads, max(IN_FLIGHT), workload.max_new_tokens)
            )
        )
        for engines, threads in thread_settings(cores)
    }


def raw_contenders(loops: dict[tuple[int, int], Actor], steps: int) -> list[Contender]:
    """The raw loops at each number of rows."""
    return [
        Contender(
            Series("raw", rows, f"{engines} x {threads} threads", threads=(engines, threads)),
            partial(_raw, actor, rows, steps),
        )
        for rows in IN_FLIGHT
        for (engines, threads), actor in loops.items()
    ]


def _raw(actor: Actor, rows: int, steps: int, seconds: float) -> Sample:
    sample: Sample = actor.call("measure", seconds, rows, steps)
    return sample


def served_contenders(stack: ExitStack, server: LocalServer, workload: Workload) -> list[Contender]:
    """The server: single calls, and batches of as many inputs, one call at a time; at last several batches."""
    address, pid = (LOOPBACK, server.port), server.process.pid

    def generator(method: str, requests: list[bytes]) -> Actor:
        return stack.enter_context(closing(Actor(LoadGenerator, address, pid, method, requests)))

    unary = generator("Generate", workload.unary())
    contenders = [
        Contender(Series("unary", n, "single calls"), partial(closed_loop, server, unary, n)) for n in IN_FLIGHT
    ]
    for size in IN_FLIGHT[1:]:
        batch = generator("GenerateBatch", workload.batches(size))
        contenders.append(Contender(Series("batch", size, f"1 call of {size}"), partial(closed_loop, server, batch, 1)))
    setting = f"{BATCHES_AT_ONCE} calls of {size}"
    series = Series("batch", BATCHES_AT_ONCE * size, setting)
    return [*contenders, Contender(series, partial(closed_loop, server, batch, BATCHES_AT_ONCE))]


def closed_loop(server: LocalServer, generator: Actor, concurrency: int, seconds: float) -> Sample:
    """A sample of so many callers, each of whom waits for the answer, with what the engines did meanwhile."""
    before = EngineWork.of_page(server.metrics())
    sample: Sample = generator.call("closed", concurrency, seconds)
    return replace(sample, work=EngineWork.of_page(server.metrics()).since(before))
