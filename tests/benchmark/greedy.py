"""Greedy search: the server, the raw loop and CTranslate2 on the same inputs, in turn."""

from contextlib import ExitStack, closing

import psutil

from dragoman.local import LOOPBACK, LocalServer
from server.bundle.load import Bundle
from server.cpu import usable_cpus
from server.search.options import SearchOptions
from tests.benchmark.actor import Actor
from tests.benchmark.answers import Answers, agreements, sequence_error_rates, served_answers
from tests.benchmark.contenders import IN_FLIGHT, raw_contenders, raw_loops, served_contenders
from tests.benchmark.effort import Effort, Notify, take_samples
from tests.benchmark.memory import peak_megabytes
from tests.benchmark.metrics_cost import measure_metrics
from tests.benchmark.outcome import Greedy
from tests.benchmark.translators import Translators
from tests.benchmark.workload import Workload
from tests.support.load import LoadGenerator

OPEN_LOOP_SHARES = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0)  # of the calls per second that 64 callers in a closed loop get


def measure_greedy(
    bundle: Bundle,
    workload: Workload,
    translators: Translators | None,
    effort: Effort,
    serve: list[str],
    notify: Notify,
) -> Greedy:
    """See tests.benchmark.campaign.measure."""
    outcome = Greedy()
    with ExitStack() as stack:
        notify("starting the server")
        server = stack.enter_context(LocalServer("--bundle", str(bundle.path), *serve))
        outcome.start_seconds = server.start_seconds
        loops = raw_loops(stack, bundle.path, workload, usable_cpus())

        notify("comparing answers")
        answers: dict[str, Answers] = {
            "raw step loop": next(iter(loops.values())).call("answers"),
            "server": served_answers(server, workload.unary(tokens=True), max(IN_FLIGHT)),
        }
        if translators:
            answers["CTranslate2"] = translators.answers()
        limit = workload.max_new_tokens
        outcome.agreements = agreements(answers, bundle, workload, SearchOptions(limit))
        outcome.quality = sequence_error_rates(answers, bundle, workload)
        outcome.steps = workload.mean_steps(answers["raw step loop"])

        contenders = [*raw_contenders(loops, round(outcome.steps)), *served_contenders(stack, server, workload)]
        if translators:
            contenders += translators.greedy()
        outcome.series = take_samples(contenders, effort, notify)
        if effort.open_seconds:
            _open_loop(server, workload, outcome, effort, notify)
        notify("counting")
        outcome.metrics = measure_metrics()
        outcome.resident_megabytes = psutil.Process(server.process.pid).memory_info().rss / 1e6
        outcome.peak_megabytes = {"server": peak_megabytes(server.process.pid)}
        actors = {"raw": loops, "ctranslate2": translators.actors if translators else {}}
        for system, name in (("raw", "raw step loop"), ("ctranslate2", "CTranslate2")):
            if best := outcome.best(system):
                outcome.peak_megabytes[name] = peak_megabytes(actors[system][best.threads].pid)
    return outcome


def _open_loop(server: LocalServer, workload: Workload, outcome: Greedy, effort: Effort, notify: Notify) -> None:
    closed = outcome.at("unary", max(IN_FLIGHT))
    assert closed is not None
    capacity = sum(s.sequences for s in closed.samples) / sum(s.seconds for s in closed.samples)
    address = (LOOPBACK, server.port)
    with closing(Actor(LoadGenerator, address, server.process.pid, "Generate", workload.unary())) as generator:
        for seed, share in enumerate(OPEN_LOOP_SHARES):
            rate = share * capacity
            notify(f"open loop at {rate:.0f} calls a second")
            outcome.open_loop.append((rate, generator.call("open", rate, effort.open_seconds, seed)))
