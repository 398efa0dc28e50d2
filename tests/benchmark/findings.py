"""What the numbers say, in sentences, with the marks that were missed."""

from collections.abc import Iterator
from statistics import median

from tests.benchmark.contenders import IN_FLIGHT
from tests.benchmark.outcome import Outcome
from tests.benchmark.samples import Series, percentile, ratios

WANTED_OF_RAW = 0.7
HEALTHY_P99 = 0.1  # seconds


def findings(outcome: Outcome) -> list[str]:
    """A sentence for each mark, then what else a reader should know."""
    return [
        *_against_raw(outcome),
        *_against_ctranslate2(outcome),
        *_alone(outcome),
        *_open(outcome),
        *_answers(outcome),
    ]


def _against_raw(outcome: Outcome) -> Iterator[str]:
    raw = outcome.at("raw", max(IN_FLIGHT))
    for system, name in (("batch", "GenerateBatch"), ("unary", "Generate")):
        series = _most_loaded(outcome, system)
        if raw and series:
            share = median(ratios(series, raw))
            yield (
                f"{_mark(share >= WANTED_OF_RAW)} {name} with {series.in_flight} inputs in flight serves {share:.0%} "
                f"of the raw step loop's tokens ({WANTED_OF_RAW:.0%} wanted){_load_share(series)}."
            )


def _against_ctranslate2(outcome: Outcome) -> Iterator[str]:
    other = outcome.best("ctranslate2")
    for system, name in (("batch", "GenerateBatch"), ("unary", "Generate")):
        series = outcome.best(system)
        if series and other:
            ratio = median(ratios(series, other))
            yield (
                f"{_mark(ratio > 1)} {name} at its best serves {ratio:.2f} times the tokens of CTranslate2 in-process "
                f"at its best ({other.setting}, {_inputs(other)}; more than 1 wanted)."
            )
    raw = outcome.best("raw")
    if raw and other:
        ratio = median(ratios(raw, other))
        yield f"The graphs alone, stepped without a server, give {ratio:.2f} times CTranslate2's tokens."


def _alone(outcome: Outcome) -> Iterator[str]:
    served, raw, other = (outcome.at(system, 1) for system in ("unary", "raw", "ctranslate2"))
    if served and raw:
        added = served.latency(0.5) - raw.latency(0.5)
        sentence = (
            f"A call alone takes {1000 * served.latency(0.5):.2f} ms, {1000 * added:.2f} ms of it around the decoding"
        )
        if other:
            sentence += f"; CTranslate2 in-process takes {1000 * other.latency(0.5):.2f} ms"
        yield sentence + "."


def _open(outcome: Outcome) -> Iterator[str]:
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


def _answers(outcome: Outcome) -> Iterator[str]:
    for agreement in outcome.agreements:
        if agreement.same < agreement.inputs:
            yield (
                f"{agreement.one} and {agreement.other} differ in {agreement.inputs - agreement.same} of "
                f"{agreement.inputs} answers: where two tokens are almost equally likely, rounding decides."
            )
    if outcome.agreements and all(a.same == a.inputs for a in outcome.agreements):
        yield f"All contenders gave the same tokens on all {outcome.agreements[0].inputs} inputs."


def _most_loaded(outcome: Outcome, system: str) -> Series | None:
    loads = [s.in_flight for s in outcome.series if s.system == system and s.in_flight]
    return outcome.at(system, max(loads)) if loads else None


def _load_share(series: Series) -> str:
    """How much of the machine the load generator took away from the server."""
    used = {who: sum(s.cpu_seconds[who] for s in series.samples) for who in ("server", "load")}
    return f"; the load generator took {used['load'] / sum(used.values()):.0%} of the processor time" if used else ""


def _inputs(series: Series) -> str:
    return f"{series.in_flight} inputs at a call" if series.in_flight else "all inputs in one call"


def _mark(reached: bool) -> str:
    return "Reached:" if reached else "**Missed:**"
