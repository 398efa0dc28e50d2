"""The comparison with other servers as a page."""

from collections.abc import Iterator, Mapping

from tests.benchmark.marks import Mark
from tests.benchmark.report import headings
from tests.benchmark.servers.equal_latency import bounds, rate_within
from tests.benchmark.servers.results import Kind, ModelResults, Point, Results
from tests.benchmark.servers.systems import NAMES, OURS
from tests.benchmark.tables import table

WANTED = 2.0  # times Triton's tokens at equal p99
ARRIVALS: dict[Kind, str] = {"closed": "callers who wait for their answers", "open": "random arrivals"}


def markdown(results: Results, pictures: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        pictures: file names by the label of the model.
    """
    parts = ["# Beside other servers", _reading_help()]
    for label, found in results.models.items():
        parts += [f"## {found.model}", *headings(found.machines), f"Inputs: {found.inputs}."]
        parts += ["\n".join(f"- {s}" for s in findings(found))]
        parts += [f"![p99 over throughput]({pictures[label]})", "### Throughput and latency", throughput(found)]
        for kind, words in ARRIVALS.items():
            if any(m.kind == kind for m in found.measurements):
                parts += [f"### Tokens/s at equal p99, {words}", equal_latency(found, kind)]
        if any(m.kind == "open" for m in found.measurements):
            parts += ["### Random arrivals", arrivals(found)]
        parts += ["### Settings that were tried", trials(found)]
    return "\n\n".join(parts) + "\n"


def _reading_help() -> str:
    return (
        "All servers get the same texts over gRPC on the loopback interface, from the same load generator, a process "
        "that shares the machine's cores with them; they tokenize, generate greedily and join the text themselves. The "
        "asyncio servers speak Dragoman's protocol; Triton runs CTranslate2 in its Python backend, one process an "
        "instance, with dynamic batching over whole generations, no metrics and no HTTP. All use CTranslate2 with its "
        "fastest kernels, in the settings that gave the most tokens in a trial, chosen anew for few, some and many "
        "callers. Dragoman runs with its defaults, except that it logs failed requests only, as the others do. Tokens "
        "are those that were decoded, an end token included. Numbers are medians over rounds in which all took their "
        "turn, in parentheses the lowest and the highest; p50 and p99 are of a call. `cores` are kept busy by server + "
        "load generator. Tokens/s at equal p99: for a bound on the p99, of 1, 2, 5, 10 ... ms, each server is given as "
        "many callers as keep it within the bound; where the p99 passes the bound between two numbers of callers, "
        "tokens/s and p99 are taken to change together in a straight line between the two. Bounds count where "
        "Dragoman and Triton both have a measured load on either side."
    )


def findings(found: ModelResults) -> list[str]:
    """What the numbers say, in sentences."""
    return [*_equal(found), *_peaks(found), *_losses(found), *_answers(found)]


def equal_ratios(found: ModelResults, kind: Kind) -> dict[float, float]:
    """Dragoman's tokens over Triton's by the bound on the p99, in seconds, that both keep to."""
    ours, theirs = found.points(OURS, kind), found.points("triton", kind)
    ratios = {}
    for bound in bounds([ours, theirs]) if ours and theirs else []:
        mine, other = rate_within(ours, bound), rate_within(theirs, bound)
        if mine is not None and other is not None:
            ratios[bound] = mine / other
    return ratios


def marks(found: ModelResults) -> list[Mark]:
    """For the summary."""
    return [
        Mark(f"tokens/s over Triton's at equal p99, {words}", list(ratios.values()), WANTED)
        for kind, words in ARRIVALS.items()
        if (ratios := equal_ratios(found, kind))
    ]


def _equal(found: ModelResults) -> Iterator[str]:
    for mark, kind in zip(marks(found), (kind for kind in ARRIVALS if equal_ratios(found, kind)), strict=True):
        ratios = equal_ratios(found, kind)
        least, most = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        span = f"{ratios[least]:.2f} times (within {_time(least)})"
        if most != least:
            span += f" to {ratios[most]:.2f} times (within {_time(most)})"
        yield (
            f"{mark.label} with {ARRIVALS[kind]}, Dragoman gives {span} Triton's tokens at equal p99 ({mark.goal} "
            "wanted, at every bound)."
        )


def _peaks(found: ModelResults) -> Iterator[str]:
    ours = max(found.points(OURS, "closed"), key=lambda p: p.rate, default=None)
    for system in NAMES:
        other = max(found.points(system, "closed"), key=lambda p: p.rate, default=None)
        if ours and other and system not in (OURS, "dragoman-infer"):
            yield (
                f"At its best Dragoman gives {ours.rate:,.0f} tokens/s ({ours.load:.0f} callers), {NAMES[system]} "
                f"{other.rate:,.0f} ({other.load:.0f} callers; {other.setting}): {ours.rate / other.rate:.2f} times."
            )


def _losses(found: ModelResults) -> Iterator[str]:
    """Loads at which another server gives more tokens, or answers sooner."""
    ours = {point.load: point for point in found.points(OURS, "closed")}
    behind = False
    for system in NAMES:
        if system in (OURS, "dragoman-infer"):
            continue
        pairs = [(point, ours[point.load]) for point in found.points(system, "closed") if point.load in ours]
        lost = {
            "gives more tokens/s": [f"{point.load:.0f}" for point, mine in pairs if point.rate > mine.rate],
            "has a lower p99": [f"{point.load:.0f}" for point, mine in pairs if point.p99 < mine.p99],
        }
        told = [f"{what} with {', '.join(loads)} callers" for what, loads in lost.items() if loads]
        if told:
            behind = True
            yield f"**Behind:** {NAMES[system]} {' and '.join(told)}."
    if ours and not behind:
        yield "No other server gave more tokens/s or a lower p99 at any number of callers."


def _answers(found: ModelResults) -> Iterator[str]:
    for system, answers in found.answers.items():
        differing = answers.asked - answers.same
        if system != OURS and differing:
            why = "rounding decides where two tokens are almost equally likely"
            if answers.undecided is not None:
                why = f"two choices are almost equally likely in {answers.undecided} of them, where rounding decides"
            wrong = "**Wrong:** " if answers.undecided is not None and answers.undecided < differing else ""
            yield f"{wrong}{NAMES[system]} differs in {differing} of {answers.asked} answers: {why}."
    compared = [a for system, a in found.answers.items() if system != OURS]
    if compared and all(a.same == a.asked for a in compared):
        yield f"All servers gave the same {compared[0].asked} answers."


def throughput(found: ModelResults) -> str:
    """Every system at every number of callers."""
    ours = {point.load: point for point in found.points(OURS, "closed")}
    rows = []
    for system, name in NAMES.items():
        for point in found.points(system, "closed"):
            mine = ours.get(point.load)
            rows.append(
                [
                    name,
                    f"{point.load:.0f}",
                    f"{point.rate:,.0f} ({point.lowest:,.0f}–{point.highest:,.0f})",
                    f"{mine.rate / point.rate:.2f}" if mine else "",
                    *_latencies(point),
                    point.setting,
                ]
            )
    header = ["", "callers", "tokens/s", "Dragoman's over it", "p50 ms", "p99 ms", "failed", "cores", "setting"]
    return table(header, rows)


def arrivals(found: ModelResults) -> str:
    """Every system at rates up to nine tenths of what 64 callers got from it."""
    rows = [
        [name, f"{point.load:,.0f}", f"{point.rate:,.0f}", *_latencies(point), point.setting]
        for system, name in NAMES.items()
        for point in found.points(system, "open")
    ]
    return table(["", "calls/s due", "tokens/s", "p50 ms", "p99 ms", "failed", "cores", "setting"], rows)


def equal_latency(found: ModelResults, kind: Kind) -> str:
    """Tokens per second of each system within the same p99, and Dragoman's as a multiple of Triton's."""
    curves = {system: points for system in NAMES if (points := found.points(system, kind))}
    against = [curves[system] for system in (OURS, "triton") if system in curves]
    rows = []
    for bound in bounds(against):
        rates = {system: rate_within(points, bound) for system, points in curves.items()}
        ours, theirs = rates.get(OURS), rates.get("triton")
        ratio = f"{ours / theirs:.2f}" if ours is not None and theirs is not None else ""
        rows.append([_time(bound), *("–" if r is None else f"{r:,.0f}" for r in rates.values()), ratio])
    return table(["p99 within", *(NAMES[system] for system in curves), "Dragoman's over Triton's"], rows)


def trials(found: ModelResults) -> str:
    """Tokens per second of each setting that was tried, those that were chosen in bold."""
    rows = []
    for system, name in NAMES.items():
        measured = [m for m in found.measurements if (m.system, m.kind) == (system, "trial")]
        loads = sorted({m.load for m in measured})
        chosen = {(load, str(setting)) for load, setting in found.chosen.get(system, {}).items()}
        for setting in dict.fromkeys(m.setting for m in measured):
            rates = {m.load: m.rate for m in measured if m.setting == setting}
            cells = [f"**{rates[x]:,.0f}**" if (x, setting) in chosen else f"{rates[x]:,.0f}" for x in loads]
            rows.append([name, setting, *cells])
    loads = sorted({m.load for m in found.measurements if m.kind == "trial"})
    return table(["", "setting", *(f"tokens/s, {load:.0f} callers" for load in loads)], rows)


def _latencies(point: Point) -> list[str]:
    return [
        f"{1000 * point.p50:.1f}",
        f"{1000 * point.p99:.1f}",
        f"{point.failed}",
        f"{point.cores:.2f} + {point.load_cores:.2f}",
    ]


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
