"""Who is measured, and at which loads."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dragoman.local import LOOPBACK, LocalServer
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.load import LoadGenerator
from tests.benchmark.raw_loop import RawLoop
from tests.benchmark.samples import Sample, Series
from tests.benchmark.translator import CTranslate2
from tests.benchmark.workload import Workload

IN_FLIGHT = (1, 8, 64)
BATCHES_AT_ONCE = 4  # calls of GenerateBatch, for the load beyond 64
# CTranslate2 chooses kernels by the processor's maker; where that is not Intel, these may be faster than its choice.
KERNELS: dict[str, dict[str, str]] = {
    "default kernels": {},
    "AVX512 kernels": {"CT2_FORCE_CPU_ISA": "AVX512"},
    "MKL": {"CT2_USE_MKL": "1"},
}


@dataclass(frozen=True)
class Contender:
    """A series and how to take a sample of about so many seconds."""

    series: Series
    measure: Callable[[float], Sample]


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
        Contender(Series("raw", rows, f"{engines} x {threads} threads"), partial(_raw, actor, rows, steps))
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
    contenders = [Contender(Series("unary", n, "single calls"), partial(_closed, unary, n)) for n in IN_FLIGHT]
    for size in IN_FLIGHT[1:]:
        batch = generator("GenerateBatch", workload.batches(size))
        contenders.append(Contender(Series("batch", size, f"1 call of {size}"), partial(_closed, batch, 1)))
    setting = f"{BATCHES_AT_ONCE} calls of {size}"
    series = Series("batch", BATCHES_AT_ONCE * size, setting)
    return [*contenders, Contender(series, partial(_closed, batch, BATCHES_AT_ONCE))]


def _closed(actor: Actor, concurrency: int, seconds: float) -> Sample:
    sample: Sample = actor.call("closed", concurrency, seconds)
    return sample


class Translators:
    """CTranslate2 over a converted model, in processes with its fastest kernels.

    Args:
        stack: closes the processes.
        model: the converted model.
        seconds: of each trial of the kernels.
        notify: told which kernels are tried.

    Raises:
        ActorError: CTranslate2 can't run the model.
    """

    def __init__(
        self,
        stack: ExitStack,
        model: Path,
        workload: Workload,
        cores: int,
        seconds: float,
        notify: Callable[[str], None],
    ) -> None:
        self._stack, self._model, self._workload, self._cores = stack, model, workload, cores
        trials: dict[str, float] = {}
        for kernels in KERNELS:
            notify(f"CTranslate2 with {kernels}")
            with ExitStack() as trial:
                try:
                    actors = self._start(trial, kernels, "float32")
                except ActorError:
                    if kernels == "default kernels":
                        raise
                    continue  # this build or this processor does not have them
                samples = [actor.call("measure", seconds, max(IN_FLIGHT), max(IN_FLIGHT)) for actor in actors.values()]
                trials[kernels] = max(sample.tokens_per_second for sample in samples)
        self.kernels = max(trials, key=trials.__getitem__)
        self.actors = self._start(stack, self.kernels, "float32")

    def contenders(self) -> list[Contender]:
        """float32 at each load and on all inputs at once, and int8 on all inputs, for information."""
        inputs = len(self._workload.texts)
        whole = None if inputs > max(IN_FLIGHT) else max(IN_FLIGHT)
        int8 = self._start(self._stack, self.kernels, "int8")
        contenders = []
        for system, actors, loads in (
            ("ctranslate2", self.actors, [*IN_FLIGHT, *([] if whole else [None])]),
            ("ctranslate2 int8", int8, [whole]),
        ):
            for load in loads:
                for (workers, threads), actor in actors.items():
                    for batch in (32, 64) if load is None else (load,):
                        setting = f"{workers} x {threads} threads, batches of {-(-batch // workers) if load else batch}"
                        series = Series(system, load, f"{setting}, {self.kernels}")
                        contenders.append(Contender(series, partial(_translate, actor, load, batch)))
        return contenders

    def _start(self, stack: ExitStack, kernels: str, compute_type: str) -> dict[tuple[int, int], Actor]:
        work = self._workload
        return {
            (workers, threads): stack.enter_context(
                closing(
                    Actor(
                        CTranslate2,
                        self._model,
                        work.source_tokens,
                        work.max_new_tokens,
                        compute_type,
                        workers,
                        threads,
                        environment=KERNELS[kernels],
                    )
                )
            )
            for workers, threads in thread_settings(self._cores)
        }


def _translate(actor: Actor, size: int | None, batch: int, seconds: float) -> Sample:
    sample: Sample = actor.call("measure", seconds, size, batch)
    return sample
