"""Large corpora: how long their preparation takes, and what the trainer needs above its model.

    python -m tests.benchmark.corpora --pairs 10000000 --folder /tmp/corpora

Made-up pairs are written, prepared and trained on for a few steps. The same model is trained on the first 20,000 of
them for comparison: what its process holds is the model's. 10 million pairs take 7 GB of the folder meanwhile.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

WORDS = 200_000
SMALL = 20_000  # pairs
STEPS = 40
RECIPE = """
data:
  train: [{corpus}]
  dev_held_out_sources: 500
  duplicates: drop
  max_length_ratio: 4
  on_bad_line: skip
  prepared: {prepared}
tokenizers: {{joint: true, source: {{kind: bpe, vocabulary: 16000{dropout}}}}}
model:
  {{d_model: 128, heads: 4, d_ff: 512, encoder_layers: 2, decoder_layers: 2, share_embeddings: all,
    max_source_length: 256, max_target_length: 256}}
training:
  {{steps: {steps}, batch_tokens: 4000, learning_rate: 1.0e-3, warmup_steps: 20, log_every: 1, checkpoint_every: 1000,
    evaluate_every: 1000}}
evaluation: {{metrics: [exact_match]}}
{augmentation}
"""
CHANGES = "augmentation: {concatenated: 0.05, numbers: 0.3, names: 0.1, inserts: 0.1}"
ONSETS, VOWELS, CODAS = "b d f g k l m n p r s t v w st sch z h".split(), "a e i o u ei au ä ö".split(), ",n,r,s,t,l"


class Usage(NamedTuple):
    """What processes took: wall and processor seconds, and the peak memory of the largest in MB."""

    wall: float
    processor: float
    largest: float


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description="How the trainer copes with a large corpus.")
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--changes", action="store_true", help="with augmentation and BPE-dropout")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    large, small = folder / "large.tsv", folder / "small.tsv"
    if not large.exists():
        write_corpus(large, arguments.pairs)
    with large.open(encoding="utf-8") as lines, small.open("w", encoding="utf-8") as file:
        file.writelines(line for _, line in zip(range(SMALL), lines, strict=False))
    for corpus in (large, small):
        recipe = write_recipe(folder, corpus, changes=arguments.changes)
        usage = prepare(recipe, folder / "run-prepare", arguments.threads)
        print(
            f"{corpus.name}: prepared in {usage.wall:,.0f} s ({usage.processor:,.0f} s of processors), largest process "
            f"{usage.largest:,.0f} MB",
            flush=True,
        )
    held = {}
    for corpus in (small, large):
        run = folder / f"run-{corpus.stem}-{time.time_ns()}"
        recipe = write_recipe(folder, corpus, changes=arguments.changes)
        first_step, held[corpus] = train(recipe, run, arguments.threads)
        print(f"{corpus.name}: first step after {first_step:.1f} s, at most {held[corpus]:,.0f} MB", flush=True)
    print(f"the trainer holds {held[large] - held[small]:,.0f} MB more for the large corpus")


def write_corpus(path: Path, pairs: int) -> None:
    """Writes sentences of about 14 words of a vocabulary with a Zipf distribution, the targets word by word."""
    draw, rng = random.Random(1), np.random.default_rng(1)
    syllables = [a + b + c for a in ONSETS for b in VOWELS for c in CODAS.split(",")]
    source, target = (["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(WORDS)] for _ in range(2))
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, pairs, 50_000):
            lengths = np.clip(rng.normal(14, 7, min(50_000, pairs - start)).round().astype(int), 2, 60)
            ranks = (np.exp(rng.random(int(lengths.sum())) * np.log(WORDS)).astype(int) - 1).tolist()
            place = 0
            for length in lengths.tolist():
                words = ranks[place : place + length]
                place += length
                file.write(" ".join(source[i] for i in words) + ".\t" + " ".join(target[i] for i in words) + ".\n")


def write_recipe(folder: Path, corpus: Path, *, changes: bool) -> Path:
    """Writes the recipe of a corpus."""
    path = folder / f"{corpus.stem}.yaml"
    path.write_text(
        RECIPE.format(
            corpus=corpus,
            prepared=folder / f"prepared-{corpus.stem}{'-changes' if changes else ''}",
            steps=STEPS,
            dropout=", bpe_dropout: 0.1, byte_dropout: 0.1" if changes else "",
            augmentation=CHANGES if changes else "",
        )
    )
    return path


def command(*arguments: object) -> list[str]:
    """Returns the command of `dragoman-train` with these arguments."""
    return [str(Path(sys.executable).with_name("dragoman-train")), *map(str, arguments)]


def prepare(recipe: Path, run: Path, threads: int) -> Usage:
    """Prepares the data of a recipe."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command(recipe, "--out", run, "--prepare", "--threads", threads), check=True, stdout=sys.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Usage(time.monotonic() - start, processor, after.ru_maxrss / 1024)


def train(recipe: Path, run: Path, threads: int) -> tuple[float, float]:
    """Trains a few steps; returns the seconds until the first one is made, and the most resident memory in MB."""
    arguments = recipe, "--out", run, "--device", "cpu", "--threads", threads
    start, first, most = time.monotonic(), None, 0
    with subprocess.Popen(command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            # The steps alone count, not what the evaluation at the end needs.
            records = [json.loads(line) for line in _lines(run / "metrics.jsonl")]
            if first is None and records:
                first = time.monotonic() - start
            resident = [line for line in status.splitlines() if line.startswith("VmRSS")]
            if resident and len(records) < STEPS:
                most = max(most, int(resident[0].split()[1]))
            time.sleep(0.02)
    assert process.returncode == 0
    assert first is not None
    return first, most / 1024


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if line.endswith("}")] if file.exists() else []


if __name__ == "__main__":
    main()
