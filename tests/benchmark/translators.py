"""CTranslate2 as a contender, with its fastest kernels and its best thread settings."""

import json
from collections.abc import Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from dragoman_server.bundle.manifest import Precision
from dragoman_server.machine import usable_cpus
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.translator import CTranslate2
from tests.benchmark.turns import Contender
from tests.benchmark.workload import Workload
from tests.support.load import Sample

COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}
# CTranslate2 chooses kernels by the processor's maker; where that is not Intel, these may be faster than its choice.
KERNELS: dict[str, dict[str, str]] = {
    "default kernels": {},
    "AVX512 kernels": {"CT2_FORCE_CPU_ISA": "AVX512"},
    "MKL": {"CT2_USE_MKL": "1"},
}
TRIED_LOAD = 64


def thread_settings(cores: int) -> list[tuple[int, int]]:
    """Thread settings (workers, threads per worker): one worker on all cores, and one per core."""
    return sorted({(1, cores), (cores, 1)})


class Translators:
    """CTranslate2 with a converted model in each thread setting, in processes with its fastest kernels.

    Args:
        stack: Exit stack that closes the processes.
        model: Directory of the converted model.
        precision: Precision of the weights and products.
        seconds: Length of each trial of the kernels.

    Raises:
        ActorError: CTranslate2 can't run the model.
    """

    def __init__(self, stack: ExitStack, model: Path, workload: Workload, precision: Precision, seconds: float):
        self._ids = _target_ids(model)
        inputs = workload.source_tokens, workload.max_new_tokens, COMPUTE_TYPES[precision]

        def start(stack: ExitStack, kernels: str, workers: int, threads: int) -> Actor:
            actor = Actor(CTranslate2, model, *inputs, workers, threads, environment=KERNELS[kernels])
            return stack.enter_context(closing(actor))

        trials: dict[str, float] = {}
        for kernels in KERNELS:
            with ExitStack() as trial:
                try:
                    sample = start(trial, kernels, usable_cpus(), 1).call("measure", seconds, TRIED_LOAD)
                    trials[kernels] = sample.tokens / sample.seconds
                except ActorError:  # this build or this processor may not have them
                    if not KERNELS[kernels]:
                        raise
        self.kernels = max(trials, key=trials.__getitem__)
        self._actors = {
            f"{workers} x {threads} threads, {self.kernels}": start(stack, self.kernels, workers, threads)
            for workers, threads in thread_settings(usable_cpus())
        }

    def contenders(self, loads: Iterable[int | None], beam: int = 1) -> list[Contender]:
        """Returns contenders for each number of inputs per call."""

        def measure(actor: Actor, load: int | None, seconds: float) -> Sample:
            sample: Sample = actor.call("measure", seconds, load, beam)
            return sample

        return [
            Contender("ctranslate2", load, setting, partial(measure, actor, load))
            for load in loads
            for setting, actor in self._actors.items()
        ]

    def whole(self, batches: Iterable[int], beam: int = 1) -> list[Contender]:
        """Returns contenders that translate all inputs in one call, for each number of inputs decoded together."""

        def measure(actor: Actor, batch: int, _: float) -> Sample:
            sample: Sample = actor.call("whole", batch, beam)
            return sample

        return [
            Contender("ctranslate2", None, f"{setting}, batches of {batch}", partial(measure, actor, batch))
            for batch in batches
            for setting, actor in self._actors.items()
        ]

    def answers(self) -> list[list[int]]:
        """Returns the token ids of every input's greedy answer, without the end token."""
        answers: list[list[str]] = next(iter(self._actors.values())).call("answers")
        return [[self._ids[token] for token in answer] for answer in answers]

    def pid(self, setting: str) -> int:
        return self._actors[setting].pid


def _target_ids(model: Path) -> dict[str, int]:
    """Returns the ids of the target tokens of a converted model."""
    files = [path for side in ("target", "shared") if (path := model / f"{side}_vocabulary.json").exists()]
    return {token: index for index, token in enumerate(json.loads(files[0].read_text(encoding="utf-8")))}
