"""What a run would be: its batches, parameters, memory and time, measured in a few steps that are not kept."""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from dragoman_training.data.batches import BatchSampler
from dragoman_training.data.packed import Lengths
from dragoman_training.data.prepare import TrainingData, prepare
from dragoman_training.data.prepared import Prepared
from dragoman_training.optimization.allocator import keep_freed_memory, memory_in_use
from dragoman_training.optimization.freeze import count_parameters
from dragoman_training.optimization.learner import Learner
from dragoman_training.progress import ProgressBar
from dragoman_training.recipe import Recipe, TrainingConfig
from dragoman_training.run.start import Start, write_start
from dragoman_training.run.teachers import load_teachers
from dragoman_training.startup import INSTALL, allocates_with_glibc
from dragoman_training.trainer.time_left import evaluations_left

LARGEST_STEPS = 3  # with the largest batch, to see the most memory
TIMED_STEPS = 12  # with batches of all sizes ...
ENOUGH_SECONDS, ENOUGH_STEPS = 30, 4  # ... or fewer, if they take long
# Bytes of a weight in training: itself, its gradient, and two moments of AdamW.
BYTES_OF_A_WEIGHT = 16


class Shape(NamedTuple):
    """The padded shape of a batch, and its number in the epoch."""

    tokens: int
    rows: int
    source: int
    target: int
    number: int


def dry_run(
    recipe: Recipe, start: Start | None, device: torch.device, stop: Callable[[], bool], bar: ProgressBar
) -> None:
    """Shows what a run of the recipe would be.

    Args:
        recipe: Recipe of the run.
        start: Weights that the run starts from, None for untrained ones.
        device: Device to train on.
        stop: Whether the user wants no more of it.
        bar: Where progress and results are shown.

    Raises:
        TrainingError: The data is bad, or training diverges in its first steps.
    """
    echo = bar.echo
    with tempfile.TemporaryDirectory(prefix="dragoman-dry-run-") as folder:
        run = Path(folder)
        if start is not None:
            write_start(start, run)
        with bar.preparing() as progress:
            data = prepare(_without_preparing(recipe), run, echo, progress)
        sampler = BatchSampler(data.epochs, recipe.training.batch_tokens, recipe.seed, data.tokenizers.special)
        batches = sampler.block(epoch=0)
        source, target = batches[0].pairs.lengths()
        shapes = sorted(_shape(number, source[b.indices], target[b.indices]) for number, b in enumerate(batches))
        _show_batches(recipe.training, shapes, int(source.sum() + target.sum()), data.epochs.blocks(0), echo)
        learner = _build(recipe, data, start, device, run, echo)

        def make_step(shape: Shape) -> float:
            """Makes a step of one batch, and returns its seconds."""
            batch = batches[shape.number].read()
            begin = time.perf_counter()
            learner.update([batch], batch.target_tokens)
            return time.perf_counter() - begin

        if device.type == "cpu":
            keep_freed_memory()
            if allocates_with_glibc():
                echo(f"steps would be faster with tcmalloc, which a run finds if it is installed: {INSTALL}")
        echo(f"making up to {LARGEST_STEPS + TIMED_STEPS} steps")
        for _ in range(LARGEST_STEPS):
            if stop():
                return
            make_step(shapes[-1])
        echo(f"after {LARGEST_STEPS} steps with the largest batch: {memory_in_use(device)}")
        sample = [shapes[(2 * i + 1) * len(shapes) // (2 * TIMED_STEPS)] for i in range(TIMED_STEPS)]
        random.Random(0).shuffle(sample)  # so that the first ones are of all sizes, too
        seconds: list[float] = []
        while len(seconds) < TIMED_STEPS and (len(seconds) < ENOUGH_STEPS or sum(seconds) < ENOUGH_SECONDS):
            if stop():
                return
            seconds.append(make_step(sample[len(seconds)]))
        trained = sum(batches[shape.number].target_tokens for shape in sample[: len(seconds)])
        _show_time(recipe, data, statistics.mean(seconds), trained / sum(seconds), echo)


def _without_preparing(recipe: Recipe) -> Recipe:
    """Returns a recipe whose data is prepared in the run directory, unless it is prepared elsewhere already."""
    folder = recipe.data.prepared
    if folder is None or Prepared.load(folder) is not None:
        return recipe
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"prepared": None})})


def _shape(number: int, source: Lengths, target: Lengths) -> Shape:
    longest_source, longest_target = int(source.max()), int(target.max())
    return Shape(len(source) * (longest_source + longest_target), len(source), longest_source, longest_target, number)


def _show_batches(
    config: TrainingConfig, shapes: list[Shape], used: int, blocks: int, echo: Callable[[str], None]
) -> None:
    """Shows the batches of an epoch.

    Args:
        shapes: Those of its first block.
        used: Their tokens without padding.
        blocks: Blocks of the epoch, which are of one size.
    """
    rows = [shape.rows for shape in shapes]
    padding = 1 - used / sum(shape.tokens for shape in shapes)
    largest = shapes[-1]
    count = len(shapes) * blocks
    epochs = config.steps * config.accumulate / count
    echo(
        f"batches: {'about ' if blocks > 1 else ''}{count:,} an epoch, of {min(rows)} to {max(rows)} pairs (median "
        f"{statistics.median(rows):g}), {padding:.1%} padding; {config.steps:,} steps are {epochs:.1f} epochs"
    )
    echo(
        f"the largest batch: source [{largest.rows}, {largest.source}], target [{largest.rows}, {largest.target}]; the "
        f"longest source has {max(shape.source for shape in shapes)} tokens, the longest target "
        f"{max(shape.target for shape in shapes)}"
    )


def _build(
    recipe: Recipe,
    data: TrainingData,
    start: Start | None,
    device: torch.device,
    run: Path,
    echo: Callable[[str], None],
) -> Learner:
    """Builds what learns and shows its size."""
    tokenizers = data.tokenizers
    teachers = load_teachers(recipe, tokenizers, device)
    learner = Learner(recipe, tokenizers.vocabularies, tokenizers.special.pad, device, run, teachers=teachers)
    if start is not None:
        learner.start_from(start.weights)
    for line in learner.notices:
        echo(line)
    counts = count_parameters(learner.model)
    total, trained = sum(counts.values()), sum(parameter.numel() for parameter in learner.trained)
    parts = ", ".join(f"{part} {count:,}" for part, count in counts.items() if count)
    frozen = "" if trained == total else f"; {trained:,} of them are trained"
    echo(f"parameters: {total:,} ({parts}){frozen}")
    taught = sum(sum(count_parameters(teacher).values()) for teacher in teachers)
    if teachers:
        echo(f"parameters of {len(teachers)} {'teachers' if len(teachers) > 1 else 'teacher'}: {taught:,}")
    averaged = 0 if learner.average is None else total
    held = BYTES_OF_A_WEIGHT * trained + 4 * (total - trained + averaged + taught)
    echo(f"weights, gradients and the optimizer's state take {held / 1e6:,.1f} MB; activations come on top")
    return learner


def _show_time(recipe: Recipe, data: TrainingData, seconds: float, speed: float, echo: Callable[[str], None]) -> None:
    """Shows how long the steps and the evaluations would take.

    Args:
        seconds: Time of one batch.
        speed: Target tokens trained a second.
    """
    config = recipe.training
    step = seconds * config.accumulate
    echo(f"{1 / step:.2f} steps/s: the {config.steps:,} steps would take {_length(step * config.steps)}")
    evaluations = -(-config.steps // config.evaluate_every) + 1 if data.dev else 0
    names = [f"{evaluations} on dev"] * bool(evaluations) + ["1 on test"] * bool(data.test_pairs)
    if names:
        time_of_all = evaluations_left(recipe, data, [], 0, speed)
        echo(f"evaluations ({' and '.join(names)}) would take another {_length(time_of_all)} or so")


def _length(seconds: float) -> str:
    if seconds < 60:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 3600:.1f} h" if seconds > 5400 else f"{seconds / 60:.1f} min"
