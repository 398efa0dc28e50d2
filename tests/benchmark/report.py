"""The results as a table for people and as JSON for machines."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tests.benchmark.contenders import BATCHES_AT_ONCE, IN_FLIGHT
from tests.benchmark.findings import findings
from tests.benchmark.outcome import Outcome
from tests.benchmark.samples import Sample, Series, percentile, ratios

NAMES = {
    "raw": "raw step loop",
    "unary": "server, Generate",
    "batch": "server, GenerateBatch",
    "ctranslate2": "CTranslate2 in-process",
    "ctranslate2 int8": "CTranslate2 int8 (for information)",
}

BUSY = 0.5  # load average by core from which on others disturb


def markdown(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> str:
    """The whole report."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    parts = [
        "# Benchmark",
        (
            f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, load average "
            f"{machine['load_average_before']} before the start; Python {machine['python']}, {packages}; "
            f"commit {machine['commit']}; `{machine['command']}`."
        ),
        *_busy(machine),
        _reading_help(),
    ]
    for outcome in outcomes:
        parts += [
            f"## {outcome.model}",
            (
                f"Inputs: {outcome.inputs}; {outcome.steps:.1f} tokens an answer. The server was ready after "
                f"{outcome.start_seconds:.1f} s and held {outcome.resident_megabytes:.0f} MB after all the load."
            ),
            "### What this shows",
            "\n".join(f"- {finding}" for finding in findings(outcome)),
            "### Throughput",
            throughput(outcome),
            "### Latency of a call, in flight one at a time",
            latency(outcome),
        ]
        if outcome.open_loop:
            parts += ["### Open loop: Generate, Poisson arrivals", open_loop(outcome)]
        parts += ["### Same inputs, same tokens", agreement(outcome)]
    return "\n\n".join(parts) + "\n"


def _busy(machine: dict[str, Any]) -> list[str]:
    load, cores = machine["load_average_before"], machine["cores"]
    if load < BUSY * cores:
        return []
    return [f"**The machine was busy before the start (load average {load}): take no timing from this run.**"]


def _reading_help() -> str:
    return (
        "Tokens are generated tokens, an end token that the model produced included: the decode steps that somebody "
        "needed. Every contender runs in its own process and is measured in turn, several rounds; numbers are medians "
        "over rounds, in parentheses the lowest and the highest, and ratios are taken within each round. The load "
        "generator runs on the same cores as the server and takes its share of them, while the raw loop and "
        "CTranslate2 have the machine to themselves and get their inputs tokenized. `in flight` counts inputs; `cores` "
        "is how many were kept busy and `core-ms an answer` what one cost, both as server + load generator where there "
        "are the two. Processor time suffers less from what else runs on the machine than tokens/s do."
    )


def throughput(outcome: Outcome) -> str:
    """Tokens per second of each system's best setting at each load, and ratios to the raw loop and CTranslate2."""
    rows = []
    for system in NAMES:
        for in_flight in (*IN_FLIGHT, BATCHES_AT_ONCE * max(IN_FLIGHT), None):
            series = outcome.at(system, in_flight)
            if series:
                raw = outcome.at("raw", min(in_flight or max(IN_FLIGHT), max(IN_FLIGHT)))
                other = outcome.at("ctranslate2", in_flight) or outcome.best("ctranslate2")
                rows.append(
                    [
                        NAMES[system],
                        str(in_flight or "all"),
                        f"{series.rate:,.0f} ({min(series.rates):,.0f}–{max(series.rates):,.0f})",
                        _ratio(series, raw),
                        _ratio(series, other),
                        _cores(series.samples),
                        _cost(series.samples),
                        series.setting,
                    ]
                )
    header = ["", "in flight", "tokens/s", "of raw", "of CTranslate2", "cores", "core-ms an answer", "setting"]
    return table(header, rows)


def latency(outcome: Outcome) -> str:
    """Milliseconds of one call alone."""
    rows = []
    for system in ("raw", "unary", "ctranslate2"):
        series = outcome.at(system, 1)
        if series:
            tail = "" if system == "raw" else f"{1000 * series.latency(0.99):.2f}"
            rows.append([NAMES[system], f"{1000 * series.latency(0.5):.2f}", tail, series.setting])
    return table(["", "p50 ms", "p99 ms", "setting"], rows)


def open_loop(outcome: Outcome) -> str:
    """What callers see who do not wait for each other, as the rate rises."""
    rows = []
    for rate, sample in outcome.open_loop:
        quantiles = [1000 * percentile(sample.latencies, q) for q in (0.5, 0.99)]
        rows.append(
            [
                f"{rate:,.0f}",
                f"{sample.sequences / sample.seconds:,.0f}",
                *(f"{value:.1f}" for value in quantiles),
                f"{sample.failed}",
                _cores([sample]),
                _cost([sample]),
            ]
        )
    return table(["calls/s due", "answered/s", "p50 ms", "p99 ms", "failed", "cores", "core-ms an answer"], rows)


def agreement(outcome: Outcome) -> str:
    """Who gave the same tokens as whom."""
    return table(
        ["", "identical answers"],
        [[f"{a.one} and {a.other}", f"{a.same:,} of {a.inputs:,}"] for a in outcome.agreements],
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table that is as readable as text: columns of even width."""
    lines = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    padded = ([cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in padded)


def _ratio(series: Series, other: Series | None) -> str:
    if other is None or other is series:
        return "" if other is None else "1"
    values = sorted(ratios(series, other))
    middle = values[len(values) // 2] if len(values) % 2 else sum(values[len(values) // 2 - 1 :][:2]) / 2
    return f"{middle:.2f} ({values[0]:.2f}–{values[-1]:.2f})"


def _cores(samples: Sequence[Sample]) -> str:
    """Cores kept busy, by process."""
    seconds = sum(sample.seconds for sample in samples)
    return " + ".join(f"{cpu / seconds:.2f}" for cpu in _cpu(samples))


def _cost(samples: Sequence[Sample]) -> str:
    """Milliseconds of a core that an answer took, by process."""
    sequences = sum(sample.sequences for sample in samples)
    return " + ".join(f"{1000 * cpu / sequences:.2f}" for cpu in _cpu(samples)) if sequences else ""


def _cpu(samples: Sequence[Sample]) -> list[float]:
    return [sum(sample.cpu_seconds[who] for sample in samples) for who in samples[0].cpu_seconds]


def document(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> dict[str, Any]:
    """Everything measured, for the JSON file; latencies as quantiles."""
    return {"machine": machine, "models": [_outcome(outcome) for outcome in outcomes]}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "model": outcome.model,
        "inputs": outcome.inputs,
        "tokens_per_answer": outcome.steps,
        "server": {"start_seconds": outcome.start_seconds, "resident_megabytes": outcome.resident_megabytes},
        "findings": findings(outcome),
        "series": [
            {
                "system": series.system,
                "in_flight": series.in_flight,
                "setting": series.setting,
                "tokens_per_second": series.rate,
                "samples": [_sample(sample) for sample in series.samples],
            }
            for series in outcome.series
        ],
        "open_loop": [{"calls_per_second": rate, **_sample(sample)} for rate, sample in outcome.open_loop],
        "agreement": [vars(agreement) for agreement in outcome.agreements],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    quantiles = {f"p{round(100 * q)}_seconds": percentile(sample.latencies, q) for q in (0.5, 0.9, 0.99)}
    return {
        "seconds": sample.seconds,
        "tokens": sample.tokens,
        "sequences": sample.sequences,
        "failed": sample.failed,
        "cpu_seconds": sample.cpu_seconds,
        **{name: value for name, value in quantiles.items() if not math.isnan(value)},
    }
