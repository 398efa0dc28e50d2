"""What an evaluation costs: seconds, and the most memory in terms of what training holds.

    python -m tests.benchmark.evaluation RUN --beam 1 --beam 5

Continues a run of dragoman-train in memory: makes some steps, then evaluates on its dev set with each search, as the
trainer does. The run stays as it is.
"""

import argparse
import contextlib
import shutil
import tempfile
import threading
import time
from pathlib import Path

import torch

from dragoman_training.data.prepare import prepare
from dragoman_training.files import METRICS_FILE
from dragoman_training.optimization.allocator import release_memory
from dragoman_training.recipe import Recipe, load_recipe
from dragoman_training.trainer import Trainer
from tests.support.training import silent_bar

STEPS = 10


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="What an evaluation costs.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--beam", type=int, action="append", default=[])
    parser.add_argument("--early-stopping", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of training to compare the memory with")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        shutil.copytree(arguments.run, run)
        (run / METRICS_FILE).unlink(missing_ok=True)
        for beam in arguments.beam or [1, 5]:
            search = f"evaluation.beam_size={beam}", f"evaluation.early_stopping={arguments.early_stopping}".lower()
            measure(load_recipe(run / "recipe.yaml", search), run, arguments.steps)


def measure(recipe: Recipe, run: Path, steps: int) -> None:
    """Prints what one evaluation costs."""
    data = prepare(recipe, run, lambda line: None)
    trainer = Trainer(recipe, run, data, torch.device("cpu"), threading.Event(), silent_bar(recipe))
    with contextlib.closing(trainer.metrics_log):
        plan = trainer.sampler.plan(trainer.position)
        longest = sorted((next(plan) for _ in range(20 * steps)), key=lambda batch: batch.tokens)[-steps:]
        forget_peak()
        for planned in longest:
            trainer.learner.update([planned.read()], planned.target_tokens)
        training = memory("VmHWM")
        release_memory()
        forget_peak()
        start, processor = time.perf_counter(), time.process_time()
        loss, evaluation = trainer.evaluate()
        wall, processor = time.perf_counter() - start, time.process_time() - processor
        peak = memory("VmHWM")
    tokens = sum(len(data.tokenizers.target.encode(answer).ids) for answer in evaluation.answers.values())
    count = len(evaluation.answers)
    scores = ", ".join(f"{name} {score.value:.2f}" for name, score in evaluation.scores.items())
    print(
        f"step {trainer.step}, beam {recipe.evaluation.beam_size}: {count} sources in {wall:.1f} s, {processor:.1f} "
        f"processor seconds; {tokens / count:.1f} tokens an answer; peak {peak / training:.2f} times that of training "
        f"({training / 1e6:.0f} MB); loss {loss:.3f}, {scores}",
        flush=True,
    )


def memory(name: str) -> int:
    """Returns a value of /proc/self/status in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])


def forget_peak() -> None:
    """Starts the peak of memory anew."""
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main()
