"""Measures the server, CTranslate2 and transformers in turn, on the same model and inputs."""

from collections.abc import Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from dragoman.local import LocalServer
from dragoman_server.bundle.load import Bundle
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.imports.generate import Generate
from tests.benchmark.serving import LOADS, batch_contender, describe_model, served_answers, served_contenders
from tests.benchmark.translators import Translators
from tests.benchmark.turns import Contender, Effort, Notify, take_turns
from tests.benchmark.workload import Workload
from tests.support.load import Sample
from tests.support.memory import peak_megabytes

BEAM, BEAM_INPUTS = 4, 8


def measure(
    directory: Path, bundle: Bundle, converted: Path, workload: Workload, effort: Effort, notify: Notify
) -> dict[str, Any]:
    """Returns all of results.Imported except the machine.

    Args:
        directory: The checkpoint.
        bundle: The same model for the server.
        converted: The same model for CTranslate2.

    Raises:
        ActorError, ServerStartError: A contender failed.
    """
    with ExitStack() as stack:
        notify("choosing CTranslate2's kernels")
        translators = Translators(stack, converted, workload, bundle.manifest.precision, effort.seconds)
        notify("starting the server and transformers")
        # As many rows as beams need: both searches meet the same server.
        rows = ("--max-rows", str(max(*LOADS, BEAM * BEAM_INPUTS)))
        server = stack.enter_context(LocalServer("--bundle", str(bundle.path), *rows))
        generate = stack.enter_context(
            closing(Actor(Generate, directory, workload.source_ids, workload.max_new_tokens))
        )

        notify("comparing answers")
        answers = served_answers(server, workload)
        if not all(answers):
            raise ActorError(f"the server failed {answers.count([])} of {len(answers)} calls")
        others = {"CTranslate2": translators.answers(), "transformers": generate.call("answers")}
        same = {name: sum(map(list.__eq__, answers, theirs)) for name, theirs in others.items()}

        notify("greedy search")
        contenders = served_contenders(stack, server, workload) + translators.contenders(LOADS)
        greedy = take_turns(contenders + _generate_contenders(generate, LOADS), effort, notify)
        (best,) = (row for row in greedy if (row.system, row.load) == ("ctranslate2", max(LOADS)))
        pids = {
            "server": server.process.pid,
            "CTranslate2": translators.pid(best.setting),
            "transformers": generate.pid,
        }
        peaks = {name: peak_megabytes(pid) for name, pid in pids.items()}
        notify(f"beam search, {BEAM} hypotheses")
        contenders = [batch_contender(stack, server, workload, BEAM_INPUTS, BEAM)]
        contenders += translators.contenders([BEAM_INPUTS], BEAM) + _generate_contenders(generate, [BEAM_INPUTS], BEAM)
        beam = take_turns(contenders, effort, notify)
    return {
        "model": describe_model(bundle),
        "inputs": workload.title,
        "answers": len(answers),
        "same_answers": same,
        "greedy": [row.model_dump() for row in greedy],
        "beam": [row.model_dump() for row in beam],
        "peak_mb": peaks,
    }


def _generate_contenders(actor: Actor, loads: Iterable[int], beam: int = 1) -> list[Contender]:
    def measure(load: int, seconds: float) -> Sample:
        sample: Sample = actor.call("measure", seconds, load, beam)
        return sample

    return [Contender("transformers", load, "fp32", partial(measure, load)) for load in loads]
