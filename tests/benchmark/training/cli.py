"""`python -m tests.benchmark.training`: our training step beside PyTorch's Transformer and Hugging Face's Marian."""

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman_server.machine import usable_cpus
from tests.benchmark import results
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.machine import describe
from tests.benchmark.training.trainers import Attention, Contender, Marian, OfTorch, Ours, Steps
from tests.benchmark.training.work import Precision, Work, base_work, small_work

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16")
CONTENDERS: tuple[tuple[str, type[Contender], tuple[Attention, ...]], ...] = (
    ("dragoman", Ours, ("own",)),
    ("nn.Transformer", OfTorch, ("fused", "plain")),
    ("Marian", Marian, ("fused", "plain")),
)


def compare(work: Work, rounds: int, threads: int) -> dict[str, Any]:
    """All trainers, each in a process of its own, in turn on the same batches; every other round backwards."""
    with ExitStack() as stack:
        turns: list[tuple[str, Attention, Actor, list[Steps]]] = []
        for name, contender, ways in CONTENDERS:
            actor = stack.enter_context(closing(Actor(contender, work, threads)))
            actor.call("measure", 0, ways[0])  # what is made once
            turns += [(name, way, actor, []) for way in ways]
        for number in range(rounds):
            for _, way, actor, samples in turns if number % 2 == 0 else reversed(turns):
                samples.append(actor.call("measure", 1 + number * work.steps, way))
        series = [
            {
                "trainer": name,
                "attention": way,
                "rates": [sample.target_tokens / sample.seconds for sample in samples],
                "peak_mb": actor.call("peak_bytes") / 2**20,
            }
            for name, way, actor, samples in turns
        ]
    return {"parameters": work.parameters(), "threads": threads, "series": series}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Samples of each series.")] = 3,
    shape: Annotated[str, typer.Option(help="small, base, or both.")] = "both",
    output: Annotated[Path, typer.Option(help="Folder of training.json, to which this adds.")] = results.RESULTS,
) -> None:
    """Measures tokens a second and peak memory of a training step, all trainers on the same batches in turn."""
    machine = describe("tests.benchmark.training", ("torch", "transformers", "numpy"))
    maker = machine["cpu"].split()[0].removesuffix("(R)")  # which decides a lot
    document = results.read("training", output)
    try:
        for make in (small_work, base_work):
            for precision in PRECISIONS:
                work = make(precision)
                if shape in ("both", work.name):
                    print(f"{work.name} {precision}", flush=True)
                    document[f"{work.name} {precision}, {maker}"] = {
                        "machine": machine,
                        **compare(work, rounds, usable_cpus()),
                    }
                    results.write("training", document, output)
    except ActorError as error:
        typer.echo(f"benchmark: {error}", err=True)
        raise typer.Exit(1) from None
