"""Whether MKL or oneDNN computes float32 products faster here.

    python -m tests.benchmark.training.products --threads 2

`dragoman_training.model.linear` takes MKL on Intel's processors and oneDNN on others.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor
from torch.nn import functional as F

# Rows and widths of input and output: linear layers of training, then those of a beam search.
SHAPES = (
    *((1520, 512, 2048), (1520, 2048, 512), (1520, 512, 1536), (256, 512, 32000)),
    *((4000, 256, 1024), (4000, 1024, 256), (4000, 256, 256)),
    *((270, 384, 1536), (270, 1536, 384), (270, 384, 8000), (270, 384, 384), (50, 384, 384)),
)


def onednn(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, in], weight [out, in] -> [rows, out]"""
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")  # type: ignore[no-any-return]


def compare(x: Tensor, weight: Tensor, rounds: int) -> float:
    """Returns MKL's share of oneDNN's time, in turns."""

    def seconds(product: Callable[[Tensor, Tensor], Tensor]) -> float:
        start = time.perf_counter()
        product(x, weight)
        return time.perf_counter() - start

    samples = [(seconds(F.linear), seconds(onednn)) for _ in range(rounds)]
    return min(mkl for mkl, _ in samples) / min(own for _, own in samples)


def main() -> None:
    """Prints a line per shape, and medians."""
    parser = argparse.ArgumentParser(description="Times of float32 products by MKL, over those by oneDNN.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    draw = partial(torch.rand, dtype=torch.float32)
    found = []
    print(f"{'rows':>5} {'in':>5} {'out':>6}  output  input's gradient  weight's gradient")
    for rows, width, out in SHAPES:
        x, weight, gradient = draw(rows, width), draw(out, width), draw(rows, out)
        pairs = (x, weight), (gradient, weight.t()), (gradient.t(), x.t())
        ratios = [compare(*pair, arguments.rounds) for pair in pairs]
        found.append(ratios)
        print(f"{rows:5} {width:5} {out:6}  {ratios[0]:6.2f}  {ratios[1]:16.2f}  {ratios[2]:17.2f}", flush=True)
    print("median              " + "  ".join(f"{median(column):.2f}" for column in zip(*found, strict=True)))


if __name__ == "__main__":
    main()
