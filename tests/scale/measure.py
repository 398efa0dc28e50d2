"""`python -m tests.scale.measure`: what a call costs a served model, and its latency at two loads, for the simulation.

CPU time is measured, not wall-clock time: it is nearly the same whether or not other processes use the machine.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any, NamedTuple

import numpy as np
import psutil
import typer

from dragoman.local import LOOPBACK, LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import Bundle, load_bundle
from dragoman_server.engine.engine_options import EngineOptions, choose_engines, scheduling_for, weight_bytes
from dragoman_server.engine.scheduler import SchedulerOptions
from dragoman_server.machine import usable_cpus
from dragoman_server.models.repository import SHIPPED_MODELS
from dragoman_server.runtime.device import CPU
from dragoman_training.data.tatoeba import read_archive, split
from tests.benchmark import results
from tests.benchmark.machine import ROOT, describe
from tests.benchmark.random_bundle import BASE, VOCABULARY, random_bundle
from tests.benchmark.servers.inputs import sentence_inputs
from tests.benchmark.servers.load import PROTOCOLS
from tests.benchmark.workload import real_words
from tests.ramp.measure import total
from tests.scale.service import RESULTS, Measured, Observed, Service, pack
from tests.support.load import LoadGenerator, Sample, percentile, tokens

ARCHIVE = ROOT.parent / "shared" / "data" / "tatoeba-de-en" / "deu.txt.gz"
TEXTS = 512
CALLERS = (1, 2, 4, 8, 16, 32, 64, 128)
FULL = CALLERS[-1]  # callers that keep both engines and the event loop busy
LOADS = (0.4, 0.7)  # of the calls per second of FULL callers
ROUNDS = 3
COUNTS = (
    "step_seconds_sum",
    "step_seconds_count",
    "step_rows_sum",
    "encode_seconds_sum",
    "encode_seconds_count",
    "source_tokens_total",
    "queue_seconds_count",
)


@dataclass(frozen=True)
class Asked:
    """Texts for one model, each with the most tokens of its answer."""

    bundle: Bundle
    title: str
    texts: list[str]
    limits: list[int]


class Window(NamedTuple):
    """What a server did during a measurement: wall-clock and CPU seconds, and increases of its metrics."""

    seconds: float
    loop_cpu: float
    engine_cpu: float
    counts: dict[str, float]


def words() -> Asked:
    bundle = load_bundle(SHIPPED_MODELS / "g2p-en" / "1")
    workload = real_words(bundle, TEXTS)
    return Asked(bundle, workload.title, workload.texts, [workload.max_new_tokens] * len(workload.texts))


def sentences() -> Asked:
    """Returns sentences of Tatoeba's test set if it is available, else the bundle's examples."""
    bundle = load_bundle(SHIPPED_MODELS / "de-en" / "1")
    limit = bundle.manifest.limits.max_target_tokens
    texts, title = list(bundle.manifest.examples), "the bundle's examples"
    if ARCHIVE.exists():
        texts = [german for german, _ in split(read_archive(ARCHIVE))["test"][:TEXTS]]
        title = "sentences of Tatoeba's test set"
    return Asked(bundle, title, texts, [limit] * len(texts))


def symbols() -> Asked:
    bundle = random_bundle("base", BASE, VOCABULARY, "int8")
    inputs = sentence_inputs(bundle)
    return Asked(bundle, inputs.workload.title, inputs.workload.texts, inputs.limits)


MODELS: dict[str, Callable[[], Asked]] = {"g2p-en": words, "de-en": sentences, "base": symbols}


class Observer:
    """Watches a server's threads and metrics while a load runs."""

    def __init__(self, server: LocalServer) -> None:
        self._server, self._process = server, psutil.Process(server.process.pid)

    def watch(self, load: Callable[[], Sample]) -> tuple[Window, Sample]:
        """Runs a load; the reading of metrics falls outside of the window."""
        before = self._counts()
        cpu, started = self._cpu(), time.perf_counter()
        sample = load()
        seconds, after_cpu = time.perf_counter() - started, self._cpu()
        after = self._counts()
        loop, engines = (end - start for end, start in zip(after_cpu, cpu, strict=True))
        return Window(seconds, loop, engines, {name: after[name] - before[name] for name in after}), sample

    def _counts(self) -> dict[str, float]:
        metrics = self._server.metrics()
        return {name: total(metrics, f"dragoman_{name}") for name in COUNTS}

    def _cpu(self) -> tuple[float, float]:
        """Returns the CPU seconds of the event loop, which is the main thread, and of all others: the engines."""
        times = {thread.id: thread.user_time + thread.system_time for thread in self._process.threads()}
        loop = times.pop(self._process.pid)
        return loop, sum(times.values())


def measure(asked: Asked, machine: dict[str, Any], seconds: float, say: Callable[[str], None]) -> Measured:
    """Measures one model: closed loops for its costs, and random arrivals at two loads; all take turns.

    Args:
        machine: See tests.benchmark.machine.
        seconds: Length of each measurement.
    """
    bundle = asked.bundle
    generate = PROTOCOLS["generate"].request
    requests = [generate("", *each) for each in zip(asked.texts, asked.limits, strict=True)]
    with LocalServer("--bundle", str(bundle.path), "--log-requests", "none") as server:
        rows, engines = _engines(server)
        generator = LoadGenerator((LOOPBACK, server.port), server.process.pid, "Generate", requests)
        observer = Observer(server)
        answers = [pb.GenerateResponse.FromString(each) for each in generator.answers(16) if each]
        generator.closed(FULL, seconds)  # warm-up
        windows: dict[int, list[tuple[Window, Sample]]] = {callers: [] for callers in CALLERS}
        for number in range(ROUNDS):
            say(f"  round {number + 1} of {ROUNDS}: callers")
            for callers in CALLERS:
                windows[callers].append(observer.watch(partial(generator.closed, callers, seconds)))
        capacity = median(sample.sequences / sample.seconds for _, sample in windows[FULL])
        opened: dict[float, list[Sample]] = {share: [] for share in LOADS}
        for number in range(ROUNDS):
            say(f"  round {number + 1} of {ROUNDS}: random arrivals")
            for share in LOADS:
                opened[share].append(generator.open(share * capacity, 2 * seconds, number))
        series = len(server.metrics())
    options = EngineOptions(cores=usable_cpus())
    _, threads = choose_engines(options, CPU, weight_bytes(bundle.manifest))
    scheduling = scheduling_for(options, bundle.manifest, rows, CPU, shared=threads == 1)
    samples = [sample for each in windows.values() for _, sample in each]
    service = fit([window for each in windows.values() for window, _ in each], rows, engines, scheduling)
    source = [len(ids.ids) for ids in bundle.source_tokenizer.encode_batch(asked.texts)]
    lengths = [(asks, tokens(answer)) for asks, answer in zip(source, answers, strict=True)]
    return Measured(
        machine=machine,
        inputs=asked.title,
        characters=fmean(map(len, asked.texts)),
        lengths=pack(lengths),
        bundle_bytes=weight_bytes(bundle.manifest),
        series=series,
        service=service,
        client_seconds=sum(sample.cpu_seconds["load"] for sample in samples) / sum(s.sequences for s in samples),
        closed=[_observed([sample for _, sample in each], callers=n) for n, each in windows.items()],
        opened=[_observed(each, rate=share * capacity) for share, each in opened.items()],
    )


def _engines(server: LocalServer) -> tuple[int, int]:
    """Returns rows per engine, and the number of engines."""
    rows = [value for name, value in server.metrics().items() if name.startswith("dragoman_rows{")]
    return round(rows[0]), len(rows)


def fit(windows: Sequence[Window], rows: int, engines: int, scheduling: SchedulerOptions) -> Service:
    """Fits what steps, encoder runs and calls cost.

    The CPU time of the engines' threads is divided between steps and encoder runs as their wall-clock time is, which
    gives both their share of what an engine does besides.
    """
    steps, runs = [], []
    for window in windows:
        counts = window.counts
        busy = counts["step_seconds_sum"] + counts["encode_seconds_sum"]
        cpu = window.engine_cpu / busy
        step = cpu * counts["step_seconds_sum"] / counts["step_seconds_count"]
        steps.append((counts["step_rows_sum"] / counts["step_seconds_count"], step))
        run = cpu * counts["encode_seconds_sum"] / counts["encode_seconds_count"]
        runs.append((counts["source_tokens_total"] / counts["encode_seconds_count"], run))
    calls = sum(window.counts["queue_seconds_count"] for window in windows)
    step_seconds, row_seconds = line(steps)
    encode_seconds, token_seconds = line(runs)
    return Service(
        cores=usable_cpus(),
        engines=engines,
        rows=rows,
        min_rows_per_engine=scheduling.min_rows_per_engine,
        min_single_rows_per_engine=scheduling.min_single_rows_per_engine,
        step_seconds=step_seconds,
        row_seconds=row_seconds,
        encode_seconds=encode_seconds,
        token_seconds=token_seconds,
        call_seconds=sum(window.loop_cpu for window in windows) / calls,
    )


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Returns a and b, neither negative, of the line a + b * x with the least relative errors."""
    x, y = (np.array(values) for values in zip(*points, strict=True))
    columns = np.stack([1 / y, x / y], axis=1)
    found, *_ = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)
    if found[0] < 0:
        found = np.array([0.0, (x / y).sum() / (x / y).dot(x / y)])
    if found[1] < 0:
        found = np.array([(1 / y).sum() / (1 / y).dot(1 / y), 0.0])
    return float(found[0]), float(found[1])


def _observed(samples: Sequence[Sample], callers: int | None = None, rate: float | None = None) -> Observed:
    latencies = [latency for sample in samples for latency in sample.latencies]
    return Observed(
        callers=callers,
        rate=rate,
        calls_per_second=median(sample.sequences / sample.seconds for sample in samples),
        p50=percentile(latencies, 0.5),
        p99=percentile(latencies, 0.99),
        p99s=[percentile(sample.latencies, 0.99) for sample in samples],
    )


def main(
    model: Annotated[list[str] | None, typer.Option(help=f"Only this one: {', '.join(MODELS)}.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of each measurement.")] = 1.5,
    output: Annotated[Path, typer.Option(help="Folder of service.json, to which this adds.")] = RESULTS,
) -> None:
    """Measures served models for the simulation."""
    if unknown := set(model or ()) - set(MODELS):
        raise typer.BadParameter(f"{unknown.pop()} is not a model; expected one of {', '.join(MODELS)}")
    document: dict[str, Any] = results.read("service", output)
    machine = describe("tests.scale.measure")
    for name in model or MODELS:
        print(name, flush=True)
        found = measure(MODELS[name](), machine, seconds, lambda what: print(what, flush=True))
        document[name] = found.model_dump()
        results.write("service", document, output)
    print(f"Written to {output / 'service.json'}.")


if __name__ == "__main__":
    typer.run(main)
