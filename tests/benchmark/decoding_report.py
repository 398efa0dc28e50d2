"""Beam search and short lists in tables."""

from collections.abc import Iterator

from tests.benchmark.findings import beam_findings, short_list_findings
from tests.benchmark.outcome import BeamSearch, Measured, ShortLists
from tests.benchmark.samples import Series
from tests.benchmark.tables import NAMES, agreement, cores, cost, rate, ratio, table


def beam_sections(outcome: BeamSearch) -> list[str]:
    """What a reader should know, then the tables."""
    beam = outcome.beam
    rates = ", ".join(f"{name} {rate:.1f}%" for name, rate in outcome.quality.items())
    return [
        f"### Beam search, {beam.size} hypotheses",
        (
            f"Length penalty {beam.length_penalty:g}; a search ends when {beam.size} hypotheses are finished, which is "
            f"CTranslate2's rule, but for the series with exact stopping. {outcome.steps:.1f} tokens an answer. "
            f"`batch` counts inputs in flight, `rows` is batch × {beam.size}."
        ),
        "\n".join(f"- {finding}" for finding in beam_findings(outcome)),
        *([f"Sequence error rates: {rates}."] if rates else []),
        "#### Throughput",
        _beam_throughput(outcome),
        "#### Where a step's time goes",
        _beam_costs(outcome),
        "#### Same inputs, same tokens",
        agreement(outcome.agreements),
    ]


def _beam_throughput(outcome: BeamSearch) -> str:
    rows = [
        [
            NAMES[series.system],
            str(batch),
            str(batch * outcome.beam.size),
            rate(series),
            ratio(series, outcome.at("engines", batch)),
            ratio(series, outcome.at("ctranslate2", batch)),
            cores(series.samples),
            cost(series.samples),
            series.setting,
        ]
        for batch, series in _series(outcome)
    ]
    header = ["", "batch", "rows", "tokens/s", "of engines", "of CTranslate2", "cores", "core-ms an answer", "setting"]
    return table(header, rows)


def _beam_costs(outcome: BeamSearch) -> str:
    """Of the graphs, of copying rows, and of deciding what follows."""
    rows = []
    for batch, series in _series(outcome):
        work = series.work
        if work is None:
            continue
        advance = f"{1e6 * work.advance_seconds / work.advances:.0f}" if work.advances else ""
        rows.append(
            [
                NAMES[series.system],
                str(batch),
                f"{work.row_steps / work.steps:.1f}",
                f"{1e3 * work.step_seconds / work.steps:.2f}",
                f"{work.branch_rows / work.steps:.1f}",
                f"{1e6 * work.branch_seconds / max(work.branch_rows, 1):.0f}",
                f"{work.branch_seconds / work.step_seconds:.1%}",
                advance,
            ]
        )
    header = ["", "batch", "rows a step", "step ms", "rows copied a step", "µs a copy", "copies, of step time"]
    return table([*header, "µs a request to choose"], rows)


def _series(outcome: Measured) -> Iterator[tuple[int, Series]]:
    """Every system's best at each load."""
    loads = sorted({series.in_flight for series in outcome.series if series.in_flight})
    for system in NAMES:
        for load in loads:
            if series := outcome.at(system, load):
                yield load, series


def short_list_sections(outcome: ShortLists) -> list[str]:
    """What a reader should know, then a table."""
    rows = []
    for load, series in _series(outcome):
        work = series.work
        assert work is not None
        step = f"{1e3 * work.step_seconds / work.steps:.2f}"
        rows.append([NAMES[series.system], str(load), rate(series), ratio(series, outcome.at("whole", load)), step])
    return [
        f"### Short list: {outcome.tokens:,} tokens of {outcome.vocabulary:,}",
        f"Greedy search by the engines in a loop ({outcome.series[0].setting}).",
        "\n".join(f"- {finding}" for finding in short_list_findings(outcome)),
        table(["", "rows", "tokens/s", "of the whole vocabulary", "step ms"], rows),
    ]
