"""What of the marks was reached, in numbers: of greedy and of beam search on one model."""

from statistics import median

from tests.benchmark.contenders import IN_FLIGHT
from tests.benchmark.marks import (
    BATCH_OVER_CTRANSLATE2,
    BEAM,
    LATENCY,
    OF_RAW,
    TAIL,
    TAIL_SHARE,
    UNARY_OVER_CTRANSLATE2,
    Mark,
)
from tests.benchmark.outcome import BeamSearch, Greedy, Outcome
from tests.benchmark.samples import Series, percentile, ratios

CALLS = {"batch": "GenerateBatch", "unary": "Generate"}
"""Of the systems that are served."""


def marks(outcome: Outcome) -> list[Mark]:
    """All of a model, as the summary has them."""
    found: list[Mark] = []
    if greedy := outcome.greedy:
        found += over_ctranslate2(greedy).values()
        found += equal_load(greedy).values()
        found += filter(None, [latency(greedy)])
        found += of_raw(greedy).values()
        found += filter(None, [tail(greedy)])
    if outcome.beam and (batches := beam_by_batch(outcome.beam)):
        values = [value for mark in batches.values() for value in mark.values]
        name = "beam of 4: tokens/s over CTranslate2's, at 2, 8 and 32 inputs in flight"
        found.append(Mark(name, values, BEAM))
    return found


def over_ctranslate2(outcome: Greedy) -> dict[str, Mark]:
    """By system: tokens a second over those of CTranslate2 in-process, at whatever load it has the most."""
    other = outcome.best("ctranslate2")
    pairs = {
        "batch": (outcome.best("batch"), "GenerateBatch", BATCH_OVER_CTRANSLATE2),
        "unary": (outcome.at("unary", max(IN_FLIGHT)), f"{max(IN_FLIGHT)} Generate calls", UNARY_OVER_CTRANSLATE2),
    }
    return {
        system: Mark(
            f"{name}: tokens/s over CTranslate2's best, in-process",
            [median(ratios(series, other))],
            wanted[outcome.kind],
        )
        for system, (series, name, wanted) in pairs.items()
        if series and other
    }


def equal_load(outcome: Greedy) -> dict[str, Mark]:
    """By system: the same with as many inputs in flight on both sides, for which no mark was set."""
    load = max(IN_FLIGHT)
    other = outcome.at("ctranslate2", load)
    names = {"batch": f"GenerateBatch of {load}", "unary": f"{load} Generate calls"}
    return {
        system: Mark(f"{name}: tokens/s over CTranslate2's with {load} inputs", [median(ratios(series, other))])
        for system, name in names.items()
        if other and (series := outcome.at(system, load))
    }


def of_raw(outcome: Greedy) -> dict[str, Mark]:
    """By system, with as many inputs in flight as were tried: of the tokens of the raw step loop."""
    raw = outcome.at("raw", max(IN_FLIGHT))
    found = {}
    for system, name in CALLS.items():
        series = most_loaded(outcome, system)
        if raw and series:
            share = median(ratios(series, raw))
            found[system] = Mark(f"{name}: of the bare step loop's tokens/s", [share], OF_RAW[outcome.kind], share=True)
    return found


def latency(outcome: Greedy) -> Mark | None:
    """Of one call at a time, over CTranslate2's in-process."""
    served, other = outcome.at("unary", 1), outcome.at("ctranslate2", 1)
    if not served or not other:
        return None
    value = served.latency(0.5) / other.latency(0.5)
    return Mark("one call at a time: median latency over CTranslate2's, in-process", [value], LATENCY, at_most=True)


def tail(outcome: Greedy) -> Mark | None:
    """p99 of random arrivals at a share of the peak, over the median of one call at a time."""
    alone, busiest = outcome.at("unary", 1), outcome.at("unary", max(IN_FLIGHT))
    if not alone or not busiest or not outcome.open_loop:
        return None
    peak = sum(s.sequences for s in busiest.samples) / sum(s.seconds for s in busiest.samples)
    _, sample = min(outcome.open_loop, key=lambda pair: abs(pair[0] / peak - TAIL_SHARE))
    value = percentile(sample.latencies, 0.99) / alone.latency(0.5)
    name = f"random arrivals at {TAIL_SHARE:.0%} of the peak: p99 over the unloaded median"
    return Mark(name, [value], TAIL, at_most=True)


def beam_by_batch(outcome: BeamSearch) -> dict[int, Mark]:
    """By inputs in flight: the better of both ways to call, over CTranslate2's in-process."""
    found = {}
    for batch in sorted({s.in_flight for s in outcome.series if s.in_flight}):
        served, other = best_served(outcome, batch), outcome.at("ctranslate2", batch)
        if served and other:
            found[batch] = Mark(f"beam search, batch {batch}", [median(ratios(served, other))], BEAM)
    return found


def best_served(outcome: BeamSearch, batch: int) -> Series | None:
    """With so many inputs in flight."""
    served = [series for system in CALLS if (series := outcome.at(system, batch))]
    return max(served, key=lambda series: series.rate, default=None)


def most_loaded(outcome: Greedy, system: str) -> Series | None:
    """With the most inputs in flight."""
    loads = [s.in_flight for s in outcome.series if s.system == system and s.in_flight]
    return outcome.at(system, max(loads)) if loads else None
