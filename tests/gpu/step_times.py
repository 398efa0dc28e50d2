"""Prints how long a decode step takes on a device, by rows: `python tests/gpu/step_times.py BUNDLE --device cuda`."""

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from server.bundle.load import load_bundle
from server.runtime.device import choose_device
from server.runtime.model import Runtime, Sessions

ROUNDS = 7


def main(
    bundle_path: Annotated[Path, typer.Argument(metavar="BUNDLE")],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    threads: Annotated[int, typer.Option(help="threads of one operator")] = 1,
    source: Annotated[int, typer.Option(help="source tokens of each row")] = 8,
    steps: Annotated[int, typer.Option(help="steps in a round")] = 16,
) -> None:
    """The median over interleaved rounds of the mean step, with full rows and greedy tokens fed back."""
    bundle = load_bundle(bundle_path)
    chosen = choose_device(device, bundle.decoder)
    sessions = Sessions(bundle, chosen, threads)
    steps = min(steps, bundle.manifest.limits.max_target_tokens)
    counts = [1, 2, 4, 8, 16, 32, 64, 128]
    runtime = Runtime(sessions, counts[-1])
    rng = np.random.default_rng(0)
    ids = rng.integers(4, bundle.manifest.shape.source_vocabulary, (counts[-1], source)).tolist()
    times: dict[int, list[float]] = {rows: [] for rows in counts}
    encode_times: dict[int, list[float]] = {rows: [] for rows in counts}
    for round_ in range(ROUNDS + 1):
        for rows in counts:
            started = time.perf_counter()
            runtime.encode(ids[:rows], 0)
            encoded = time.perf_counter()
            for _ in range(steps):
                tokens = runtime.top(rows, 1).ids
                runtime.tokens[:rows] = tokens
                runtime.positions[:rows] += 1
            if round_:  # the first one warms up
                times[rows].append((time.perf_counter() - encoded) / steps)
                encode_times[rows].append(encoded - started)
    table = Table(title=f"{bundle.manifest.name} {bundle.manifest.precision} on {chosen}, {threads} thread(s)")
    for column in ("rows", "step, ms", "tokens/s", "encode, ms"):
        table.add_column(column, justify="right")
    for rows in counts:
        step = float(np.median(times[rows]))
        encode = float(np.median(encode_times[rows]))
        table.add_row(str(rows), f"{step * 1e3:.3f}", f"{rows / step:,.0f}", f"{encode * 1e3:.3f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
