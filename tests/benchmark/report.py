"""The results as Markdown for people and as JSON for machines."""

import math
from collections.abc import Sequence
from typing import Any

from tests.benchmark.decoding_report import beam_sections, short_list_sections
from tests.benchmark.findings import beam_findings, greedy_findings, short_list_findings
from tests.benchmark.greedy_report import greedy_sections
from tests.benchmark.machine import QUIET_CORES
from tests.benchmark.operators_report import operator_sections
from tests.benchmark.outcome import Measured, Outcome
from tests.benchmark.reached import marks
from tests.benchmark.samples import Sample, percentile


def markdown(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> str:
    """The whole report."""
    parts = ["# Benchmark", *heading(machine), _reading_help()]
    for outcome in outcomes:
        parts += [f"## {outcome.model}", f"Inputs: {outcome.inputs}."]
        if outcome.greedy:
            parts += greedy_sections(outcome.greedy)
        if outcome.beam:
            parts += beam_sections(outcome.beam)
        if outcome.short_lists:
            parts += short_list_sections(outcome.short_lists)
        if outcome.operators:
            parts += operator_sections(outcome.operators)
    return "\n\n".join(parts) + "\n"


def heading(machine: dict[str, Any]) -> list[str]:
    """What was measured on and when, of what, and by which command, with a warning where others used the machine."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    busy = machine["busy_cores_before"]
    described = (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, of the cores {busy:g} busy with "
        f"other things before the start; Python {machine['python']}, {packages}; commit {machine['commit']}; "
        f"{machine['date']}; `{machine['command']}`."
    )
    warning = f"**Other processes kept {busy:g} cores busy before the start: take no timing from this run.**"
    return [described, warning] if busy > QUIET_CORES else [described]


def headings(machines: Sequence[dict[str, Any]]) -> list[str]:
    """The heading of what was measured in pieces: of the first, and what differs in those that were added later."""
    lines = heading(machines[0])
    told = [machines[0]["commit"]]
    for machine in machines[1:]:
        described, *warning = heading(machine)
        if machine["commit"] not in told:
            told.append(machine["commit"])
            lines.append(f"Added later: {described}")
        lines += [line for line in warning if line not in lines]
    return lines


def _reading_help() -> str:
    return (
        "Tokens are generated tokens of the best hypothesis, an end token that the model produced included: the decode "
        "steps that somebody needed. Every contender runs in its own process and is measured in turn, several rounds; "
        "numbers are medians over rounds, in parentheses the lowest and the highest, and ratios are taken within each "
        "round. The load generator runs on the same cores as the server and takes its share of them, while the raw "
        "loop, the engines in a loop and CTranslate2 have the machine to themselves and get their inputs tokenized. "
        "`in flight` counts inputs; `cores` is how many were kept busy and `core-ms an answer` what one cost, both as "
        "server + load generator where there are the two. Processor time suffers less from what else runs on the "
        "machine than tokens/s do. Random arrivals come at shares of the peak, which is as many calls a second as 64 "
        "callers get who wait for their answers."
    )


def document(outcomes: Sequence[Outcome], machine: dict[str, Any]) -> dict[str, Any]:
    """Everything measured, for the JSON file; latencies as quantiles."""
    return {"machine": machine, "models": [_outcome(outcome) for outcome in outcomes]}


def _outcome(outcome: Outcome) -> dict[str, Any]:
    document: dict[str, Any] = {
        "model": outcome.model,
        "inputs": outcome.inputs,
        "kind": outcome.kind,
        "marks": [mark.document() for mark in marks(outcome)],
    }
    if greedy := outcome.greedy:
        document["greedy"] = {
            **_measured(greedy, greedy_findings(greedy)),
            "server": {"start_seconds": greedy.start_seconds, "resident_megabytes": greedy.resident_megabytes},
            "peak_megabytes": greedy.peak_megabytes,
            "metrics": None if greedy.metrics is None else {f"{n}_seconds": v for n, v in vars(greedy.metrics).items()},
            "open_loop": [{"calls_per_second": rate, **_sample(sample)} for rate, sample in greedy.open_loop],
        }
    if beam := outcome.beam:
        document["beam"] = {**_measured(beam, beam_findings(beam)), "options": vars(beam.beam)}
    if lists := outcome.short_lists:
        document["short_lists"] = {
            **_measured(lists, short_list_findings(lists)),
            "tokens": lists.tokens,
            "vocabulary": lists.vocabulary,
        }
    if outcome.operators:
        document["operators"] = [
            {**vars(each), "other_than_products": each.other_than_products} for each in outcome.operators
        ]
    return document


def _measured(measured: Measured, findings: list[str]) -> dict[str, Any]:
    return {
        "tokens_per_answer": measured.steps,
        "findings": findings,
        "sequence_error_rates": measured.quality,
        "series": [
            {
                "system": series.system,
                "in_flight": series.in_flight,
                "setting": series.setting,
                "tokens_per_second": series.rate,
                "samples": [_sample(sample) for sample in series.samples],
            }
            for series in measured.series
        ],
        "agreement": [vars(agreement) for agreement in measured.agreements],
    }


def _sample(sample: Sample) -> dict[str, Any]:
    quantiles = {f"p{round(100 * q)}_seconds": percentile(sample.latencies, q) for q in (0.5, 0.9, 0.99)}
    work = {"engines": sample.work._asdict()} if sample.work else {}
    return {
        "seconds": sample.seconds,
        "tokens": sample.tokens,
        "sequences": sample.sequences,
        "failed": sample.failed,
        "cpu_seconds": sample.cpu_seconds,
        **{name: value for name, value in quantiles.items() if not math.isnan(value)},
        **work,
    }
