"""The measurements on one model: everybody on the same inputs, in turn, round after round."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import psutil

from dragoman.local import LOOPBACK, LocalServer
from dragoman.v1 import generation_pb2 as pb
from server.bundle.load import Bundle
from server.cpu import usable_cpus
from tests.benchmark.actor import Actor
from tests.benchmark.contenders import (
    IN_FLIGHT,
    Contender,
    Translators,
    raw_contenders,
    raw_loops,
    served_contenders,
)
from tests.benchmark.load import LoadGenerator
from tests.benchmark.outcome import Agreement, Outcome
from tests.benchmark.workload import Workload

OPEN_LOOP_SHARES = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0)  # of the calls per second that 64 callers in a closed loop get

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """How much time is spent.

    Attributes:
        seconds: one sample, about.
        rounds: samples of each series.
        open_seconds: arrivals at each rate of the open loop; 0 for no open loop.
        ctranslate2: whether CTranslate2 takes part.
    """

    seconds: float
    rounds: int
    open_seconds: float
    ctranslate2: bool = True


def measure(
    bundle: Bundle, converted: Path, workload: Workload, effort: Effort, serve: list[str], notify: Notify
) -> Outcome:
    """Starts every contender in its own process, compares their answers, then measures them in turn.

    Args:
        bundle: what is served and stepped.
        converted: the same weights as CTranslate2 loads them; not read where it takes no part.
        workload: the inputs.
        serve: more arguments of dragoman-serve.
        notify: told what is going on, before each measurement.

    Raises:
        ActorError, ServerStartError: a contender failed.
    """
    cores = usable_cpus()
    outcome = Outcome(_describe(bundle), workload.title)
    with ExitStack() as stack:
        notify("starting the server")
        server = stack.enter_context(LocalServer("--bundle", str(bundle.path), *serve))
        outcome.start_seconds = server.start_seconds
        loops = raw_loops(stack, bundle.path, workload, cores)
        translators = None
        if effort.ctranslate2:
            translators = Translators(stack, converted, workload, cores, effort.seconds, notify)

        notify("comparing answers")
        answers = {
            "raw step loop": next(iter(loops.values())).call("answers"),
            "server": _served_answers(server, workload),
        }
        if translators:
            token_id = bundle.target_tokenizer.token_to_id
            translated = next(iter(translators.actors.values())).call("answers")
            answers["CTranslate2"] = [[token_id(token) for token in answer] for answer in translated]
        outcome.agreements = _agreements(answers)
        limit = workload.max_new_tokens
        lengths = [min(len(ids) + 1, limit) for ids in answers["raw step loop"]]
        outcome.steps = sum(lengths) / len(lengths)

        contenders = [*raw_contenders(loops, round(outcome.steps)), *served_contenders(stack, server, workload)]
        if translators:
            contenders += translators.contenders()
        _rounds(contenders, effort, notify)
        outcome.series = [contender.series for contender in contenders]
        if effort.open_seconds:
            _open_loop(server, workload, outcome, effort, notify)
        outcome.resident_megabytes = psutil.Process(server.process.pid).memory_info().rss / 1e6
    return outcome


def samples_ahead(effort: Effort) -> int:
    """About how often `measure` notifies, for a progress bar."""
    series = 6 + 6 + (12 if effort.ctranslate2 else 0)
    return 2 + 3 * effort.ctranslate2 + series * effort.rounds + (len(OPEN_LOOP_SHARES) if effort.open_seconds else 0)


def _rounds(contenders: list[Contender], effort: Effort, notify: Notify) -> None:
    for number in range(effort.rounds):
        # Every other round goes backwards, so that a machine that warms up or gets busy favours nobody.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            series = contender.series
            notify(f"round {number + 1}: {series.system}, {series.in_flight or 'all'} in flight, {series.setting}")
            series.samples.append(contender.measure(effort.seconds))


def _open_loop(server: LocalServer, workload: Workload, outcome: Outcome, effort: Effort, notify: Notify) -> None:
    closed = outcome.at("unary", max(IN_FLIGHT))
    assert closed is not None
    capacity = sum(s.sequences for s in closed.samples) / sum(s.seconds for s in closed.samples)
    address = (LOOPBACK, server.port)
    with closing(Actor(LoadGenerator, address, server.process.pid, "Generate", workload.unary())) as generator:
        for seed, share in enumerate(OPEN_LOOP_SHARES):
            rate = share * capacity
            notify(f"open loop at {rate:.0f} calls a second")
            outcome.open_loop.append((rate, generator.call("open", rate, effort.open_seconds, seed)))


def _served_answers(server: LocalServer, workload: Workload) -> list[list[int]]:
    """Token ids that the server answers each input with, 64 calls in flight; none where a call failed."""
    requests = workload.unary(tokens=True)
    address = (LOOPBACK, server.port)
    with closing(Actor(LoadGenerator, address, server.process.pid, "Generate", requests)) as generator:
        replies: list[bytes | None] = generator.call("answers", max(IN_FLIGHT))
    parsed = [pb.GenerateResponse.FromString(reply) if reply else None for reply in replies]
    return [[token.id for token in response.hypotheses[0].tokens] if response else [] for response in parsed]


def _agreements(answers: dict[str, list[list[int]]]) -> list[Agreement]:
    names = list(answers)
    return [
        Agreement(one, other, sum(a == b for a, b in zip(answers[one], answers[other], strict=True)), len(answers[one]))
        for i, one in enumerate(names)
        for other in names[i + 1 :]
    ]


def _describe(bundle: Bundle) -> str:
    manifest = bundle.manifest
    shape = manifest.shape
    return (
        f"{manifest.name}: d {shape.d_model}, {shape.encoder_layers}+{shape.decoder_layers} layers, FFN {shape.d_ff}, "
        f"V {shape.target_vocabulary:,}, {shape.parameters / 1e6:.1f}M parameters, {manifest.precision}, "
        f"attention {manifest.attention}"
    )
