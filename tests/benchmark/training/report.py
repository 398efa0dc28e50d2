"""The comparison of trainers, as it is kept on disk and as a page for people."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, Field

from tests.benchmark.marks import Mark
from tests.benchmark.report import headings
from tests.benchmark.tables import table
from tests.benchmark.training.trainers import Steps

WANTED = 1.5  # times the better of the others
OURS = "dragoman"
SETTINGS = {"own": "", "fused": "fused attention", "plain": "attention by plain products"}


@dataclass
class Series:
    """One trainer with one way to compute attention.

    Attributes:
        samples: one a round, of the same batches as everybody's.
        peak_bytes: most memory that its process took for training; both ways of a trainer share a process.
    """

    trainer: str
    attention: str
    samples: list[Steps] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def rates(self) -> list[float]:
        """Target tokens a second, a round each."""
        return [sample.target_tokens / sample.seconds for sample in self.samples]

    @property
    def step_seconds(self) -> float:
        return median(sample.seconds / sample.steps for sample in self.samples)


@dataclass
class Comparison:
    """Trainers of one shape in one precision.

    Attributes:
        lengths: where those of the batches come from.
    """

    shape: str
    lengths: str
    precision: str
    parameters: int
    threads: int
    series: list[Series]

    @property
    def ours(self) -> Series:
        return next(series for series in self.series if series.trainer == OURS)

    @property
    def best_other(self) -> Series:
        return max((s for s in self.series if s.trainer != OURS), key=lambda series: median(series.rates))

    def ratios(self, one: Series, other: Series) -> list[float]:
        """Of tokens a second, round by round."""
        return [a / b for a, b in zip(one.rates, other.rates, strict=True)]


class Piece(BaseModel):
    """A comparison, and on which machine it was made."""

    machine: dict[str, Any]
    comparison: Comparison


class Results(BaseModel):
    """By shape and precision, in words."""

    pieces: dict[str, Piece] = Field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def markdown(results: Results) -> str:
    """The page."""
    return "\n\n".join(_page(list(results.pieces.values()))) + "\n"


def mark(comparison: Comparison) -> Mark:
    """Tokens a second over those of the better of the others."""
    value = median(comparison.ratios(comparison.ours, comparison.best_other))
    return Mark("training: tokens/s over the better of nn.Transformer and Marian", [value], WANTED)


def finding(comparison: Comparison) -> str:
    """Whether the mark is reached, in a sentence."""
    best = comparison.best_other
    ratios = comparison.ratios(comparison.ours, best)
    wanted = mark(comparison)
    return (
        f"{wanted.label} {comparison.shape}, {comparison.precision}: {OURS} trains {wanted.outcome} as many tokens a "
        f"second ({min(ratios):.2f}–{max(ratios):.2f}) as {best.trainer} with {SETTINGS[best.attention]}, the better "
        f"of the others ({wanted.goal} wanted), with {comparison.ours.peak_bytes / best.peak_bytes:.2f} times its "
        "memory."
    )


def _page(pieces: Sequence[Piece]) -> Iterator[str]:
    comparisons = [piece.comparison for piece in pieces]
    yield "# Training, measured"
    yield from headings([piece.machine for piece in pieces])
    yield (
        "A step is what training runs: making a batch, forward, backward, clipping of gradients, AdamW. All trainers "
        "get the same batches, shapes, optimiser (PyTorch's fused AdamW), label smoothing, dropout in the same places "
        "and threads, each in a process of its own, in turn, round after round; ratios are taken within each round. "
        "Numbers are medians, in parentheses the lowest and the highest; tokens are those of targets, without padding. "
        "Memory is the most that a process took beyond its imports and data. The two ways to compute attention of "
        "`nn.Transformer` and of Marian are PyTorch's; each has the process's memory."
    )
    yield "\n".join(f"- {finding(comparison)}" for comparison in comparisons)
    for comparison in comparisons:
        yield (
            f"## {comparison.shape}, {comparison.precision}: {comparison.parameters / 1e6:.1f} million parameters, "
            f"{comparison.threads} thread{'s' if comparison.threads > 1 else ''}; lengths of {comparison.lengths}"
        )
        yield table(
            [
                "trainer",
                "attention",
                "tokens/s",
                "s a step",
                f"{OURS} / it",
                "peak memory, MB",
                "loss of the last step",
            ],
            [_row(comparison, series) for series in comparison.series],
        )


def _row(comparison: Comparison, series: Series) -> list[str]:
    ratios = comparison.ratios(comparison.ours, series)
    return [
        series.trainer,
        SETTINGS[series.attention],
        f"{median(series.rates):,.0f} ({min(series.rates):,.0f}–{max(series.rates):,.0f})",
        f"{series.step_seconds:.2f}",
        "1" if series is comparison.ours else f"{median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        f"{series.peak_bytes / 2**20:,.0f}",
        f"{series.samples[-1].loss:.2f}",
    ]
