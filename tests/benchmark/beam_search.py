"""Beam search: the server, its engines in a loop and CTranslate2 on the same inputs, with the same beam, in turn."""

from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from dragoman.local import LOOPBACK, LocalServer
from server.bundle.load import Bundle
from server.cpu import usable_cpus
from tests.benchmark.actor import Actor
from tests.benchmark.answers import Answers, agreements, sequence_error_rates, served_answers
from tests.benchmark.beam import Beam
from tests.benchmark.contenders import closed_loop
from tests.benchmark.effort import Contender, Effort, Notify, take_samples
from tests.benchmark.engine_loop import EngineLoop, Searches
from tests.benchmark.outcome import BeamSearch
from tests.benchmark.samples import Sample, Series
from tests.benchmark.translators import Translators
from tests.benchmark.workload import Workload
from tests.support.load import LoadGenerator

BATCHES = (2, 8, 32)  # inputs in flight, with as many rows each as the beam is wide


def measure_beam(
    bundle: Bundle,
    workload: Workload,
    translators: Translators | None,
    effort: Effort,
    serve: list[str],
    notify: Notify,
) -> BeamSearch:
    """See tests.benchmark.campaign.measure. The server gets as many rows as the largest batch needs."""
    beam = Beam()
    outcome = BeamSearch(beam=beam)
    rows = beam.size * max(BATCHES)
    with ExitStack() as stack:
        notify("beam search: starting the server")
        server = stack.enter_context(
            LocalServer("--bundle", str(bundle.path), "--max-rows", str(rows), *serve),
        )
        searches = {
            "early": [beam.search(workload.max_new_tokens)],
            "exact": [replace(beam, early_stopping=False).search(workload.max_new_tokens)],
        }
        engines = start_engines(stack, bundle, workload, searches, rows)

        notify("beam search: comparing answers")
        answers: dict[str, Answers] = {
            "engines": engines.call("answers", "early", max(BATCHES)),
            "server": served_answers(server, workload.unary(beam, tokens=True), max(BATCHES)),
        }
        if translators:
            answers["CTranslate2"] = translators.answers(beam)
        outcome.agreements = agreements(answers, bundle, workload, *searches["early"])
        outcome.quality = sequence_error_rates(answers, bundle, workload)
        outcome.steps = workload.mean_steps(answers["engines"])

        contenders = [engine_contender(engines, "engines", "early", size) for size in BATCHES]
        if outcome.steps < workload.max_new_tokens:  # else the rule of stopping makes no difference
            contenders.append(engine_contender(engines, "engines exact", "exact", max(BATCHES)))
        contenders += _served(stack, server, workload, beam)
        if translators:
            contenders += translators.beam(beam, BATCHES)
        outcome.series = take_samples(contenders, effort, notify)
    return outcome


def start_engines(stack: ExitStack, bundle: Bundle, workload: Workload, searches: Searches, rows: int) -> Actor:
    """An EngineLoop on all cores."""
    arguments = bundle.path, workload.source_ids, searches, rows, usable_cpus()
    return stack.enter_context(closing(Actor(EngineLoop, *arguments)))


def engine_contender(engines: Actor, system: str, search: str, size: int) -> Contender:
    """The search of that name, `size` inputs at a time."""

    def measure(seconds: float) -> Sample:
        sample: Sample = engines.call("measure", seconds, search, size)
        return sample

    return Contender(Series(system, size, engines.call("setting")), measure)


def _served(stack: ExitStack, server: LocalServer, workload: Workload, beam: Beam) -> list[Contender]:
    """Single calls, and batches of as many inputs, one call at a time."""

    def generator(method: str, requests: list[bytes]) -> Actor:
        arguments = (LOOPBACK, server.port), server.process.pid, method, requests
        return stack.enter_context(closing(Actor(LoadGenerator, *arguments)))

    unary = generator("Generate", workload.unary(beam))
    contenders = [
        Contender(Series("unary", size, "single calls"), partial(closed_loop, server, unary, size)) for size in BATCHES
    ]
    for size in BATCHES:
        batch = generator("GenerateBatch", workload.batches(size, beam))
        contenders.append(Contender(Series("batch", size, f"1 call of {size}"), partial(closed_loop, server, batch, 1)))
    return contenders
