"""CTranslate2 as a contender, with the kernels and in the thread settings that may be its best."""

from collections.abc import Iterable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from server.bundle.load import Bundle
from server.bundle.manifest import Precision
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.beam import Beam
from tests.benchmark.contenders import IN_FLIGHT, thread_settings
from tests.benchmark.effort import Contender, Notify
from tests.benchmark.samples import Sample, Series
from tests.benchmark.translator import CTranslate2
from tests.benchmark.workload import Workload

# CTranslate2 chooses kernels by the processor's maker; where that is not Intel, these may be faster than its choice.
KERNELS: dict[str, dict[str, str]] = {
    "default kernels": {},
    "AVX512 kernels": {"CT2_FORCE_CPU_ISA": "AVX512"},
    "MKL": {"CT2_USE_MKL": "1"},
}


COMPUTE_TYPES: dict[Precision, str] = {"fp32": "float32", "int8": "int8", "int8-weights": "int8", "int4": "int8"}
"""CTranslate2's on a CPU by a bundle's precision; it has none of four bits."""


class Translators:
    """CTranslate2 over a converted model, in processes with its fastest kernels.

    Args:
        stack: closes the processes.
        bundle: whose token ids answers are told in.
        model: the converted model.
        seconds: of each trial of the kernels.
        notify: told which kernels are tried.

    Raises:
        ActorError: CTranslate2 can't run the model.
    """

    def __init__(
        self,
        stack: ExitStack,
        bundle: Bundle,
        model: Path,
        workload: Workload,
        cores: int,
        seconds: float,
        notify: Notify,
    ) -> None:
        self._stack, self._model, self._workload, self._cores = stack, model, workload, cores
        self._ids = bundle.target_tokenizer.get_vocab(with_added_tokens=True)
        self._compute_type = COMPUTE_TYPES[bundle.manifest.precision]
        trials: dict[str, float] = {}
        for kernels in KERNELS:
            notify(f"CTranslate2 with {kernels}")
            with ExitStack() as trial:
                try:
                    actors = self._start(trial, kernels, self._compute_type)
                except ActorError:
                    if kernels == "default kernels":
                        raise
                    continue  # this build or this processor does not have them
                samples = [actor.call("measure", seconds, max(IN_FLIGHT), max(IN_FLIGHT)) for actor in actors.values()]
                trials[kernels] = max(sample.tokens_per_second for sample in samples)
        self.kernels = max(trials, key=trials.__getitem__)
        self.actors = self._start(stack, self.kernels, self._compute_type)

    def greedy(self) -> list[Contender]:
        """At each load, and on all inputs at once where these are more."""
        whole = [None] if len(self._workload.texts) > max(IN_FLIGHT) else []
        return self._contenders("ctranslate2", self.actors, [*IN_FLIGHT, *whole])

    def beam(self, beam: Beam, loads: Iterable[int]) -> list[Contender]:
        """With so many inputs at a call."""
        return self._contenders("ctranslate2", self.actors, loads, beam)

    def answers(self, beam: Beam | None = None) -> list[list[int]]:
        """Token ids of every input's answer, without the end token."""
        answers: list[list[str]] = next(iter(self.actors.values())).call("answers", beam)
        return [[self._ids[token] for token in answer] for answer in answers]

    def _contenders(
        self,
        system: str,
        actors: dict[tuple[int, int], Actor],
        loads: Iterable[int | None],
        beam: Beam | None = None,
    ) -> list[Contender]:
        contenders = []
        for load in loads:
            for (workers, threads), actor in actors.items():
                for batch in (32, 64) if load is None else (load,):
                    setting = f"{workers} x {threads} threads, batches of {-(-batch // workers) if load else batch}"
                    series = Series(system, load, f"{setting}, {self.kernels}", threads=(workers, threads))
                    contenders.append(Contender(series, partial(_translate, actor, load, batch, beam)))
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


def _translate(actor: Actor, size: int | None, batch: int, beam: Beam | None, seconds: float) -> Sample:
    sample: Sample = actor.call("measure", seconds, size, batch, beam)
    return sample
