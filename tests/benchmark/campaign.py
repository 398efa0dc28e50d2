"""The measurements on one model: everybody on the same inputs, in turn, round after round."""

from contextlib import ExitStack
from pathlib import Path

from server.bundle.load import Bundle
from server.cpu import usable_cpus
from tests.benchmark.beam_search import measure_beam
from tests.benchmark.effort import Effort, Notify
from tests.benchmark.greedy import OPEN_LOOP_SHARES, measure_greedy
from tests.benchmark.marks import Kind
from tests.benchmark.operators import ROWS, measure_operators
from tests.benchmark.outcome import Outcome
from tests.benchmark.short_list import measure_short_lists
from tests.benchmark.translators import Translators
from tests.benchmark.workload import Workload


def measure(
    kind: Kind,
    bundle: Bundle,
    converted: Path,
    workload: Workload,
    effort: Effort,
    serve: list[str],
    notify: Notify,
) -> Outcome:
    """Starts every contender in its own process, compares their answers, then measures them in turn.

    Args:
        kind: of the model, by which marks differ.
        bundle: what is served and stepped.
        converted: the same weights as CTranslate2 loads them; not read where it takes no part.
        workload: the inputs.
        serve: more arguments of dragoman-serve.
        notify: told what is going on, before each measurement.

    Raises:
        ActorError, ServerStartError: a contender failed.
    """
    outcome = Outcome(describe_model(bundle), workload.title, kind)
    with ExitStack() as stack:
        translators = None
        if effort.ctranslate2 and (effort.greedy or effort.beam):
            translators = Translators(stack, bundle, converted, workload, usable_cpus(), effort.seconds, notify)
        if effort.greedy:
            outcome.greedy = measure_greedy(bundle, workload, translators, effort, serve, notify)
            outcome.greedy.kind = kind
        if effort.beam:
            outcome.beam = measure_beam(bundle, workload, translators, effort, serve, notify)
    if effort.short_list:
        outcome.short_lists = measure_short_lists(bundle, workload, effort, notify)
    if effort.operators:
        outcome.operators = measure_operators(bundle, workload, notify)
    return outcome


def samples_ahead(effort: Effort) -> int:
    """About how often `measure` notifies, for a progress bar."""
    greedy = 3 + (12 + 12 * effort.ctranslate2) * effort.rounds + len(OPEN_LOOP_SHARES) * (effort.open_seconds > 0)
    beam = 2 + (9 + 6 * effort.ctranslate2) * effort.rounds
    short_list = 3 * effort.rounds
    searches = greedy * effort.greedy + beam * effort.beam + short_list * effort.short_list
    return searches + 3 * effort.ctranslate2 + len(ROWS) * effort.operators


def describe_model(bundle: Bundle) -> str:
    """Name, shape and precision."""
    manifest = bundle.manifest
    shape = manifest.shape
    return (
        f"{manifest.name}: d {shape.d_model}, {shape.encoder_layers}+{shape.decoder_layers} layers, FFN {shape.d_ff}, "
        f"V {shape.target_vocabulary:,}, {shape.parameters / 1e6:.1f}M parameters, {manifest.precision}, "
        f"attention {manifest.attention}" + (", caches in int8" if manifest.cache == "int8" else "")
    )
