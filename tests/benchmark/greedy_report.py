"""Greedy search in tables."""

from tests.benchmark.contenders import BATCHES_AT_ONCE, IN_FLIGHT
from tests.benchmark.findings import greedy_findings
from tests.benchmark.outcome import Greedy
from tests.benchmark.samples import percentile
from tests.benchmark.tables import NAMES, agreement, cores, cost, rate, ratio, table


def greedy_sections(outcome: Greedy) -> list[str]:
    """What a reader should know, then the tables."""
    sections = [
        "### Greedy search",
        (
            f"{outcome.steps:.1f} tokens an answer. The server was ready after {outcome.start_seconds:.1f} s and held "
            f"{outcome.resident_megabytes:.0f} MB after all the load."
        ),
        "\n".join(f"- {finding}" for finding in greedy_findings(outcome)),
        "#### Throughput",
        throughput(outcome),
        "#### Latency of a call, in flight one at a time",
        latency(outcome),
    ]
    if outcome.open_loop:
        sections += ["#### Open loop: Generate, Poisson arrivals", open_loop(outcome)]
    if outcome.peak_megabytes:
        sections += ["#### Quality and memory", quality(outcome)]
    return [*sections, "#### Same inputs, same tokens", agreement(outcome.agreements)]


def quality(outcome: Greedy) -> str:
    """How good the answers of each contender are, and the most that its process ever held, Python and all."""
    rows = []
    for name, peak in outcome.peak_megabytes.items():
        rate = outcome.quality.get(name)
        rows.append([name, "" if rate is None else f"{rate:.1f}%", f"{peak:,.0f}"])
    return table(["", "sequence error rate", "peak memory, MB"], rows)


def throughput(outcome: Greedy) -> str:
    """Tokens per second of each system's best setting at each load, and ratios to the raw loop and CTranslate2."""
    rows = []
    for system, name in NAMES.items():
        for in_flight in (*IN_FLIGHT, BATCHES_AT_ONCE * max(IN_FLIGHT), None):
            series = outcome.at(system, in_flight)
            if series:
                raw = outcome.at("raw", min(in_flight or max(IN_FLIGHT), max(IN_FLIGHT)))
                other = outcome.at("ctranslate2", in_flight) or outcome.best("ctranslate2")
                rows.append(
                    [
                        name,
                        str(in_flight or "all"),
                        rate(series),
                        ratio(series, raw),
                        ratio(series, other),
                        cores(series.samples),
                        cost(series.samples),
                        series.setting,
                    ]
                )
    header = ["", "in flight", "tokens/s", "of raw", "of CTranslate2", "cores", "core-ms an answer", "setting"]
    return table(header, rows)


def latency(outcome: Greedy) -> str:
    """Milliseconds of one call alone."""
    rows = []
    for system in ("raw", "unary", "ctranslate2"):
        series = outcome.at(system, 1)
        if series:
            tail = "" if system == "raw" else f"{1000 * series.latency(0.99):.2f}"
            rows.append([NAMES[system], f"{1000 * series.latency(0.5):.2f}", tail, series.setting])
    return table(["", "p50 ms", "p99 ms", "setting"], rows)


def open_loop(outcome: Greedy) -> str:
    """What callers see who do not wait for each other, as the rate rises."""
    rows = []
    for due, sample in outcome.open_loop:
        quantiles = [1000 * percentile(sample.latencies, q) for q in (0.5, 0.99)]
        rows.append(
            [
                f"{due:,.0f}",
                f"{sample.sequences / sample.seconds:,.0f}",
                *(f"{value:.1f}" for value in quantiles),
                f"{sample.failed}",
                cores([sample]),
                cost([sample]),
            ]
        )
    return table(["calls/s due", "answered/s", "p50 ms", "p99 ms", "failed", "cores", "core-ms an answer"], rows)
