"""Measures the server, its raw step loop and CTranslate2 in turn, on the same inputs."""

import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from dragoman.local import LOOPBACK, LocalServer
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.bundle.load import Bundle
from dragoman_server.engine.batch_share import PRESENT_SECONDS
from dragoman_server.machine import usable_cpus
from tests.benchmark.actor import Actor
from tests.benchmark.raw_loop import RawLoop
from tests.benchmark.results import Arrivals, Bulk, Row
from tests.benchmark.translators import Translators, thread_settings
from tests.benchmark.turns import Contender, Effort, Notify, take_turns
from tests.benchmark.workload import Workload
from tests.support.load import LoadGenerator, Sample, percentile
from tests.support.many_load import ManyGenerator
from tests.support.memory import peak_megabytes

LOADS = (1, 8, 64)
BEAM, BEAM_INPUTS = 4, (2, 8, 32)
PEAK_SHARE = 0.7  # of the calls a second that 64 callers get, at random moments
OPEN_SECONDS = 4.0
STARTS = 3
BULK_CALLS, INTERACTIVE_CALLS = 2, 8
LEAST_BULK = 1000  # inputs of a batch


def measure(
    bundle: Bundle, converted: Path, workload: Workload, effort: Effort, serve: list[str], notify: Notify
) -> dict[str, Any]:
    """Returns all of results.Served except the machine.

    Args:
        converted: The same weights, converted for CTranslate2.
        serve: More arguments of dragoman-serve.

    Raises:
        ActorError, ServerStartError: A contender failed.
    """
    arguments = ["--bundle", str(bundle.path), *serve]
    with ExitStack() as stack:
        notify("choosing CTranslate2's kernels")
        translators = Translators(stack, converted, workload, bundle.manifest.precision, effort.seconds)
        notify("starting the server")
        starts = [_start_seconds(arguments) for _ in range(STARTS - 1)]
        server = stack.enter_context(LocalServer(*arguments))
        raw = _raw_loops(stack, bundle, workload)

        notify("comparing answers")
        answers = served_answers(server, workload)
        steps, same = workload.mean_steps(answers), sum(map(list.__eq__, answers, translators.answers()))

        notify("greedy search")
        contenders = _raw_contenders(raw, round(steps)) + served_contenders(stack, server, workload)
        loads = [*LOADS, None] if len(workload.texts) > max(LOADS) else LOADS
        greedy = take_turns(contenders + translators.contenders(loads), effort, notify)
        rows = {(row.system, row.load): row for row in greedy}
        peak = rows["unary", max(LOADS)].rate / steps
        notify("calls at random moments")
        arrivals = _arrivals(stack, server, workload, PEAK_SHARE * peak)
        peaks = {
            "server": peak_megabytes(server.process.pid),
            "CTranslate2": peak_megabytes(translators.pid(rows["ctranslate2", max(LOADS)].setting)),
        }
        bulk = None
        if len(workload.texts) >= LEAST_BULK:
            notify("calls beside batches")
            bulk = _beside_bulk(stack, server, workload, rows["unary", INTERACTIVE_CALLS])
        server.stop()
        notify(f"beam search, {BEAM} hypotheses")
        server = stack.enter_context(LocalServer(*arguments, "--max-rows", str(BEAM * max(BEAM_INPUTS))))
        contenders = [batch_contender(stack, server, workload, size, BEAM) for size in BEAM_INPUTS]
        beam = take_turns(contenders + translators.contenders(BEAM_INPUTS, BEAM), effort, notify)
    return {
        "model": describe_model(bundle),
        "inputs": workload.title,
        "tokens_per_answer": steps,
        "same_answers": (same, len(answers)),
        "greedy": [row.model_dump() for row in greedy],
        "beam": [row.model_dump() for row in beam],
        "arrivals": arrivals.model_dump(),
        "bulk": bulk and bulk.model_dump(),
        "peak_mb": peaks,
        "start_seconds": median([*starts, server.start_seconds]),
    }


def describe_model(bundle: Bundle) -> str:
    """Describes name, shape and precision."""
    manifest = bundle.manifest
    shape = manifest.shape
    return (
        f"{manifest.name}: d {shape.d_model}, {shape.encoder_layers}+{shape.decoder_layers} layers, FFN {shape.d_ff}, "
        f"V {shape.target_vocabulary:,}, {shape.parameters / 1e6:.1f}M parameters, {manifest.precision}"
    )


def served_answers(server: LocalServer, workload: Workload) -> list[list[int]]:
    """Returns the token ids of each input's greedy answer; none if a call failed."""
    address, requests = (LOOPBACK, server.port), workload.unary(tokens=True)
    with closing(Actor(LoadGenerator, address, server.process.pid, "Generate", requests)) as generator:
        replies: list[bytes | None] = generator.call("answers", max(LOADS))
    parsed = [pb.GenerateResponse.FromString(reply) if reply else None for reply in replies]
    return [[token.id for token in response.hypotheses[0].tokens] if response else [] for response in parsed]


def _start_seconds(arguments: list[str]) -> float:
    with LocalServer(*arguments) as server:
        return server.start_seconds


def _raw_loops(stack: ExitStack, bundle: Bundle, workload: Workload) -> dict[str, Actor]:
    """By setting."""
    return {
        f"{engines} x {threads} threads": stack.enter_context(
            closing(Actor(RawLoop, bundle.path, workload.source_ids, engines, threads, max(LOADS)))
        )
        for engines, threads in thread_settings(usable_cpus())
    }


def _raw_contenders(loops: dict[str, Actor], steps: int) -> list[Contender]:
    def measure(actor: Actor, rows: int, seconds: float) -> Sample:
        sample: Sample = actor.call("measure", seconds, rows, steps)
        return sample

    return [
        Contender("raw", rows, setting, partial(measure, actor, rows))
        for rows in LOADS
        for setting, actor in loops.items()
    ]


def _generator(stack: ExitStack, server: LocalServer, method: str, requests: list[bytes]) -> Actor:
    address = LOOPBACK, server.port
    return stack.enter_context(closing(Actor(LoadGenerator, address, server.process.pid, method, requests)))


def _closed(generator: Actor, calls: int, seconds: float) -> Sample:
    """Runs concurrent callers, each of which waits for its answer."""
    sample: Sample = generator.call("closed", calls, seconds)
    return sample


def _closed_alone(generator: Actor, calls: int, seconds: float) -> Sample:
    """The same once the server has stopped expecting interactive calls, for which it bounds the rows of batches."""
    time.sleep(PRESENT_SECONDS)
    return _closed(generator, calls, seconds)


def served_contenders(stack: ExitStack, server: LocalServer, workload: Workload) -> list[Contender]:
    unary = _generator(stack, server, "Generate", workload.unary())
    singles = [Contender("unary", n, "single calls", partial(_closed, unary, n)) for n in LOADS]
    return [*singles, many_contender(stack, server, workload), batch_contender(stack, server, workload, max(LOADS))]


def many_contender(stack: ExitStack, server: LocalServer, workload: Workload) -> Contender:
    """Runs one GenerateMany call with the most items in flight."""
    address, count = (LOOPBACK, server.port), max(LOADS)
    items = workload.defaults(), workload.texts
    generator = stack.enter_context(closing(Actor(ManyGenerator, address, server.process.pid, *items)))
    return Contender("many", count, f"1 call, {count} items in flight", partial(_closed_alone, generator, count))


def batch_contender(stack: ExitStack, server: LocalServer, workload: Workload, size: int, beam: int = 1) -> Contender:
    """Runs one GenerateBatch call of `size` inputs at a time."""
    generator = _generator(stack, server, "GenerateBatch", workload.batches(size, beam))
    return Contender("batch", size, f"1 call of {size}", partial(_closed_alone, generator, 1))


def _arrivals(stack: ExitStack, server: LocalServer, workload: Workload, rate: float) -> Arrivals:
    sample = _generator(stack, server, "Generate", workload.unary()).call("open", rate, OPEN_SECONDS, 0)
    tails = {f"p{round(100 * q)}": percentile(sample.latencies, q) for q in (0.5, 0.99)}
    return Arrivals(calls_per_second=rate, failed=sample.failed, **tails)


def _beside_bulk(stack: ExitStack, server: LocalServer, workload: Workload, alone: Row) -> Bulk:
    """Runs single calls beside batches of all inputs; counts the batches' tokens during the calls."""
    batches = _generator(stack, server, "GenerateBatch", workload.batches(len(workload.texts)))
    calls = _generator(stack, server, "Generate", workload.unary())
    undisturbed = _closed_alone(batches, BULK_CALLS, 1.0)
    beside: list[Sample] = []
    thread = threading.Thread(target=lambda: beside.append(_closed(batches, BULK_CALLS, 3.0)))
    thread.start()
    samples = [_closed(calls, INTERACTIVE_CALLS, 0.5)]
    while thread.is_alive():
        samples.append(_closed(calls, INTERACTIVE_CALLS, 0.5))
    assert alone.p99
    # The first began before the batches had all rows, the last went on when they had ended.
    latencies = [x for sample in samples[1:-1] or samples for x in sample.latencies]
    rates = [sample.tokens / sample.seconds for sample in (*beside, undisturbed)]
    return Bulk(slower=percentile(latencies, 0.99) / alone.p99, kept=rates[0] / rates[1])
