"""`python -m tests.benchmark.bulk`: compares `dragoman bulk` with CTranslate2's translate_batch over the same file."""

import random
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.bulk.folders import find_work
from dragoman.bulk.in_process import open_bundle
from dragoman.bulk.work import BulkWork
from dragoman.requests import GenerateOptions
from dragoman_export.bundle.weights import load_model
from dragoman_server.bundle.load import Bundle
from tests.benchmark import results
from tests.benchmark.actor import Actor
from tests.benchmark.cli import Arithmetic, Model, bundle_of
from tests.benchmark.machine import describe
from tests.benchmark.random_bundle import BUILD
from tests.benchmark.translators import Translators
from tests.benchmark.turns import Contender, Effort, take_turns
from tests.benchmark.workload import SEED, Workload, encoded, random_text, real_words
from tests.support.ctranslate2_model import convert
from tests.support.load import Sample

BATCHES = (32, 64)  # of CTranslate2; larger ones are slower on two cores
WORDS, SENTENCES = 12_000, 512
BASE_SOURCE_TOKENS, BASE_TARGET_TOKENS = (4, 28), 32


class WholeFile:
    """`dragoman bulk` of one file, with a model that is loaded once.

    Args:
        bundle: Directory of the bundle.
        folder: Folder of `in.txt`, which is answered.
        options: How to search.
    """

    def __init__(self, bundle: Path, folder: Path, options: GenerateOptions) -> None:
        self._folder = folder
        self._backend = open_bundle(bundle, options)
        self.whole()  # warm-up

    def whole(self) -> Sample:
        """Answers the file from its first line on."""
        tokens, cpu, started = self._backend.measure()[1], time.process_time(), time.perf_counter()
        work = BulkWork(find_work(self._folder / "in.txt", self._folder / "out.txt"), {}, restart=True)
        counts = work.run(self._backend)
        seconds = time.perf_counter() - started
        tokens = self._backend.measure()[1] - tokens
        return Sample(seconds, tokens, counts.answered, [seconds], cpu_seconds={"own": time.process_time() - cpu})

    def close(self) -> None:
        self._backend.close()


def workload_of(model: Model, bundle: Bundle, texts: int | None) -> Workload:
    """Returns distinct words for the small model, and random texts of several lengths for the base shape."""
    if model is Model.small:
        return real_words(bundle, texts or WORDS)
    draw = random.Random(SEED)
    made = [random_text(bundle, draw.randint(*BASE_SOURCE_TOKENS), draw) for _ in range(texts or SENTENCES)]
    low, high = (count + 1 for count in BASE_SOURCE_TOKENS)
    title = f"random texts of {low} to {high} tokens, with {BASE_TARGET_TOKENS} target tokens each"
    return encoded(bundle, title, made, BASE_TARGET_TOKENS)


def measure(bundle: Bundle, converted: Path, workload: Workload, rounds: int, beam: int) -> dict[str, Any]:
    """Returns the rates of both, in target tokens a second, round by round."""
    options: GenerateOptions = {"max_new_tokens": workload.max_new_tokens}
    if beam > 1:  # with CTranslate2's end of a search
        options = {**options, "beam_size": beam, "early_stopping": True}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "in.txt").write_text("".join(f"{text}\n" for text in workload.texts), encoding="utf-8")
        ours = stack.enter_context(closing(Actor(WholeFile, bundle.path, folder, options)))

        def whole(_: float) -> Sample:
            sample: Sample = ours.call("whole")
            return sample

        translators = Translators(stack, converted, workload, bundle.manifest.precision, 1.0)
        contenders = [Contender("bulk", None, "default", whole), *translators.whole(BATCHES, beam)]
        rows = take_turns(contenders, Effort(rounds, 0.0), lambda what: print(f"  {what}", flush=True))
    return {row.system: row.model_dump(exclude_none=True) for row in rows}


def main(
    model: Annotated[list[Model] | None, typer.Option(help="Only this one.")] = None,
    precision: Annotated[list[Arithmetic] | None, typer.Option(help="Only this one.")] = None,
    beam: Annotated[list[int] | None, typer.Option(min=1, help="Beam size; 1 is greedy. Default: 1 and 4.")] = None,
    texts: Annotated[
        int | None, typer.Option(min=1, help="Rows of the files. Default: 12,000 words, 512 texts.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Samples of everybody.")] = 3,
    output: Annotated[Path, typer.Option(help="Folder of bulk.json, to which this adds.")] = results.RESULTS,
) -> None:
    """Measures whole files as ratios to CTranslate2, in one run."""
    machine, found = describe("tests.benchmark.bulk"), results.read("bulk", output)
    for kind in model or Model:
        for arithmetic in precision or Arithmetic:
            bundle = bundle_of(kind, arithmetic)
            workload, converted = workload_of(kind, bundle, texts), BUILD / f"ctranslate2-{kind.value}"
            convert(load_model(bundle), bundle.source_tokenizer, bundle.target_tokenizer, converted)
            for size in beam or (1, 4):
                label = f"{kind.value} {arithmetic.value}, {'greedy' if size == 1 else f'beam of {size}'}"
                print(f"{label}: {len(workload.texts):,} {workload.title}", flush=True)
                rates = measure(bundle, converted, workload, rounds, size)
                print(f"  {_told(rates)}", flush=True)
                inputs = {"texts": len(workload.texts), "inputs": workload.title}
                found[label] = {"machine": machine, **inputs, **rates}
                results.write("bulk", found, output)


def _told(rates: dict[str, Any]) -> str:
    ours, theirs = rates["bulk"]["rates"], rates["ctranslate2"]["rates"]
    ratios = ", ".join(f"{a / b:.2f}" for a, b in zip(ours, theirs, strict=True))
    cores = " and ".join(f"{rates[system]['core_ms']:.2f}" for system in ("bulk", "ctranslate2"))
    return f"{ours[-1]:,.0f} tokens/s; over CTranslate2's by rounds: {ratios}; core ms for each text: {cores}"


if __name__ == "__main__":  # worker processes import this module under another name
    typer.run(main)
