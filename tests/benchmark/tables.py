"""Tables, and what stands in their cells."""

from collections.abc import Iterable, Sequence
from statistics import median

from tests.benchmark.outcome import Agreement
from tests.benchmark.samples import Sample, Series, ratios

NAMES = {
    "raw": "raw step loop",
    "engines": "engines in a loop",
    "engines exact": "engines in a loop, exact stopping",
    "unary": "server, Generate",
    "batch": "server, GenerateBatch",
    "ctranslate2": "CTranslate2 in-process",
    "whole": "whole vocabulary",
    "shared": "one list for all",
    "own": "a list for each, drawn at random",
}
"""Of systems."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table that is as readable as text: columns of even width."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def agreement(agreements: Iterable[Agreement]) -> str:
    """Who gave the same tokens as whom."""
    return table(
        ["", "identical answers"],
        [[f"{a.one} and {a.other}", f"{a.same:,} of {a.inputs:,}"] for a in agreements],
    )


def rate(series: Series) -> str:
    """Tokens per second: median, lowest and highest."""
    return f"{series.rate:,.0f} ({min(series.rates):,.0f}–{max(series.rates):,.0f})"


def ratio(series: Series, other: Series | None) -> str:
    """Of tokens per second: median, lowest and highest of the rounds."""
    if other is None or other is series:
        return "" if other is None else "1"
    values = ratios(series, other)
    return f"{median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


def cores(samples: Sequence[Sample]) -> str:
    """Cores kept busy, by process."""
    seconds = sum(sample.seconds for sample in samples)
    return " + ".join(f"{cpu / seconds:.2f}" for cpu in _cpu(samples))


def cost(samples: Sequence[Sample]) -> str:
    """Milliseconds of a core that an answer took, by process."""
    sequences = sum(sample.sequences for sample in samples)
    return " + ".join(f"{1000 * cpu / sequences:.2f}" for cpu in _cpu(samples)) if sequences else ""


def _cpu(samples: Sequence[Sample]) -> list[float]:
    return [sum(sample.cpu_seconds[who] for sample in samples) for who in samples[0].cpu_seconds]
