"""What the numbers say, in sentences, with the marks that were missed."""

from collections.abc import Iterator
from statistics import median

from tests.benchmark.marks import COUNTING, Mark
from tests.benchmark.outcome import BeamSearch, Greedy, Measured, ShortLists
from tests.benchmark.reached import (
    CALLS,
    beam_by_batch,
    best_served,
    latency,
    most_loaded,
    of_raw,
    over_ctranslate2,
    tail,
)
from tests.benchmark.samples import Series, percentile, ratios
from tests.benchmark.tables import NAMES

HEALTHY_P99 = 0.1  # seconds


def greedy_findings(outcome: Greedy) -> list[str]:
    """A sentence for each mark, then what else a reader should know."""
    return [
        *_against_raw(outcome),
        *_against_ctranslate2(outcome),
        *_alone(outcome),
        *_tail(outcome),
        *_open(outcome),
        *_counting(outcome),
        *_answers(outcome),
    ]


def beam_findings(outcome: BeamSearch) -> list[str]:
    """A sentence for each mark, then what else a reader should know."""
    return [*_beam_against_ctranslate2(outcome), *_beam_costs(outcome), *_answers(outcome)]


def short_list_findings(outcome: ShortLists) -> list[str]:
    """What a short list saves."""
    loads = sorted({series.in_flight for series in outcome.series if series.in_flight})
    sentences = []
    for load in loads:
        whole, shared, own = (outcome.at(system, load) for system in ("whole", "shared", "own"))
        if whole and shared and own:
            sentences.append(
                f"At {load} rows a list that all share gives {median(ratios(shared, whole)):.2f} times the tokens of "
                f"the whole vocabulary, a random one for each {median(ratios(own, whole)):.2f} times."
            )
    return sentences


def _against_raw(outcome: Greedy) -> Iterator[str]:
    for system, mark in of_raw(outcome).items():
        series = most_loaded(outcome, system)
        assert series is not None
        yield (
            f"{mark.label} {CALLS[system]} with {series.in_flight} inputs in flight serves {mark.outcome} of the raw "
            f"step loop's tokens ({mark.goal} wanted){_load_share(series)}."
        )


def _against_ctranslate2(outcome: Greedy) -> Iterator[str]:
    other = outcome.best("ctranslate2")
    if other is None:
        return
    for mark in over_ctranslate2(outcome).values():
        wanted = f"{mark.goal} wanted" if mark.goal else "no mark was set"
        yield f"{mark.label} {mark.name}: {mark.outcome} ({other.setting}, {_inputs(other)}; {wanted}).".lstrip()
    raw = outcome.best("raw")
    if raw:
        ratio = median(ratios(raw, other))
        yield f"The graphs alone, stepped without a server, give {ratio:.2f} times CTranslate2's tokens."


def _alone(outcome: Greedy) -> Iterator[str]:
    served, raw, other = (outcome.at(system, 1) for system in ("unary", "raw", "ctranslate2"))
    if served is None:
        return
    sentence = f"A call alone takes {1000 * served.latency(0.5):.2f} ms"
    if raw:
        added = served.latency(0.5) - raw.latency(0.5)
        sentence += f", {1000 * added:.2f} ms of it around the decoding" if added > 0 else ", all of it decoding"
    mark = latency(outcome)
    if other and mark:
        sentence = (
            f"{mark.label} {sentence}; CTranslate2 in-process takes {1000 * other.latency(0.5):.2f} ms, so it takes "
            f"{mark.outcome} as long ({mark.goal} wanted)"
        )
    yield sentence + "."


def _tail(outcome: Greedy) -> Iterator[str]:
    mark = tail(outcome)
    if mark:
        yield f"{mark.label} {mark.name}: {mark.outcome} ({mark.goal} wanted)."


def _open(outcome: Greedy) -> Iterator[str]:
    healthy = [
        (rate, sample)
        for rate, sample in outcome.open_loop
        if not sample.failed and percentile(sample.latencies, 0.99) <= HEALTHY_P99
    ]
    if healthy:
        rate, sample = healthy[-1]
        p99 = percentile(sample.latencies, 0.99)
        yield f"With random arrivals, {rate:,.0f} calls a second are answered with a p99 of {1000 * p99:.0f} ms."
    elif outcome.open_loop:
        yield f"At none of the rates of the open loop did the p99 stay below {1000 * HEALTHY_P99:.0f} ms."


def _counting(outcome: Greedy) -> Iterator[str]:
    """The share of a step that its metrics take, at the loads where it is least and most."""
    costs = outcome.metrics
    if costs is None:
        return
    shares = [
        costs.share(series.work, sum(sample.sequences for sample in series.samples))
        for series in outcome.series
        if series.system in ("batch", "unary") and series.work
    ]
    if shares:
        mark = Mark("counting", shares, COUNTING, at_most=True, share=True)
        yield (
            f"{mark.label} Counting for the metrics adds {1e6 * costs.step:.1f} µs to a step "
            f"and {1e6 * costs.request:.1f} µs to a request, {min(shares):.2%} to {max(shares):.2%} of the time of the "
            f"served steps (at most {COUNTING:.0%} wanted); whoever asks for /metrics gets it after "
            f"{1000 * costs.page:.1f} ms, and the live page's points take {costs.point_share:.3%} of a core."
        )


def _beam_against_ctranslate2(outcome: BeamSearch) -> Iterator[str]:
    for batch, mark in beam_by_batch(outcome).items():
        served, other = best_served(outcome, batch), outcome.at("ctranslate2", batch)
        assert served is not None
        assert other is not None
        yield (
            f"{mark.label} {NAMES[served.system]}, with batch {batch} ({batch * outcome.beam.size} rows), gives "
            f"{mark.outcome} the tokens of CTranslate2 in-process ({other.setting}; {mark.goal} wanted)."
        )


def _beam_costs(outcome: BeamSearch) -> Iterator[str]:
    shares = [
        series.work.branch_seconds / series.work.step_seconds
        for series in outcome.series
        if series.system in ("batch", "unary") and series.work
    ]
    if shares:
        yield f"Copying rows where hypotheses branch takes {min(shares):.1%} to {max(shares):.1%} of the step time."
    exact = outcome.best("engines exact")
    early = exact and outcome.at("engines", exact.in_flight)
    if exact and early:
        share = median(ratios(exact, early))
        yield f"The exact stopping rule, which is the default, gives {share:.2f} times the tokens of early stopping."


def _answers(outcome: Measured) -> Iterator[str]:
    for agreement in outcome.agreements:
        differing = agreement.inputs - agreement.same
        if not differing:
            continue
        if agreement.undecided is None:
            why = "where two tokens are almost equally likely, rounding decides"
        else:
            why = f"rounding decides in {agreement.undecided} of them, where two choices are almost equally likely"
        mark = "**Wrong:** " if agreement.undecided is not None and agreement.undecided < differing else ""
        yield f"{mark}{agreement.one} and {agreement.other} differ in {differing} of {agreement.inputs} answers: {why}."
    if outcome.agreements and all(a.same == a.inputs for a in outcome.agreements):
        yield f"All contenders gave the same tokens on all {outcome.agreements[0].inputs} inputs."


def _load_share(series: Series) -> str:
    """How much of the machine the load generator took away from the server."""
    used = {who: sum(s.cpu_seconds[who] for s in series.samples) for who in ("server", "load")}
    return f"; the load generator took {used['load'] / sum(used.values()):.0%} of the processor time" if used else ""


def _inputs(series: Series) -> str:
    return f"{series.in_flight} inputs at a call" if series.in_flight else "all inputs in one call"
