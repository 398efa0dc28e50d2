"""The serving marks: the goals for the server, mostly ratios within one run, and the measured values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmark.results import RESULTS, Imported, Served, imports, read, serving

SMALL, BASE = ("g2p-en int8", "g2p-en fp32"), ("base int8", "base fp32")
INT8, LABELS = (SMALL[0], BASE[0]), (*SMALL, *BASE)
GROUPS = {SMALL: "g2p-en", BASE: "base", INT8: "int8", LABELS: ""}
MARKED_ROWS = 32  # at which the loop is looked at


@dataclass(frozen=True)
class Measured:
    """All measurements that marks are computed from.

    Attributes:
        served, imports: Results by label, see results.serving and results.imports.
        loop, servers: Results of these benchmarks.
    """

    served: Mapping[str, Served]
    loop: Mapping[str, Any]
    servers: Mapping[str, Any]
    imports: Mapping[str, Imported] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path = RESULTS) -> "Measured":
        return cls(serving(folder), read("loop", folder), read("servers", folder), imports(folder))


Values = Callable[[Measured, str], list[float]]
"""Measured values of a mark, which must all reach it; empty if nothing was measured."""


@dataclass(frozen=True)
class Mark:
    """A goal for a measured number.

    Attributes:
        wanted: Goals by label; numbers without one are shown as well.
        at_most: Whether the goal is an upper bound.
        unit: Suffix of the number; shares are shown in per cent.
    """

    name: str
    values: Values
    wanted: Mapping[str, float] = field(default_factory=dict)
    at_most: bool = False
    unit: str = "×"

    def reached(self, measured: Measured, label: str) -> bool | None:
        """Whether the mark is reached; None without a goal or a measurement."""
        values, goal = self.values(measured, label), self.wanted.get(label)
        if goal is None or not values:
            return None
        return max(values) <= goal if self.at_most else min(values) >= goal

    def cell(self, measured: Measured, label: str) -> str:
        values = self.values(measured, label)
        if not values:
            return "–"
        ends = dict.fromkeys(map(self._number, (min(values), max(values))))
        return "–".join(ends) + self.unit + {None: "", True: " ✓", False: " ✗"}[self.reached(measured, label)]

    def goal(self) -> str:
        """The goal as text, by model if models differ."""
        goals: dict[float, list[str]] = {}
        for label, value in self.wanted.items():
            goals.setdefault(value, []).append(label)
        return ", ".join(self._goal(value, tuple(labels)) for value, labels in goals.items())

    def _goal(self, value: float, labels: tuple[str, ...]) -> str:
        group = GROUPS.get(labels, ", ".join(labels))
        return f"{'≤' if self.at_most else '≥'} {self._number(value)}{self.unit}" + (f" ({group})" if group else "")

    def _number(self, value: float) -> str:
        return f"{100 * value:.0f}" if self.unit == "%" else f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def of_served(value: Callable[[Any], float]) -> Values:
    """Reads a value from a Served; returns nothing if a part of it was not measured."""

    def values(measured: Measured, label: str) -> list[float]:
        served = measured.served.get(label)
        try:
            return [value(served)] if served else []
        except (AttributeError, KeyError, TypeError):  # of a row or a part that is not there
            return []

    return values


def over(system: str, load: int, other: str, other_load: int | None, *, beam: bool = False) -> Values:
    """Returns the ratio of tokens per second to another system's, per round."""

    def value(served: Served) -> float:
        one, two = served.at(system, load, beam=beam), served.at(other, other_load, beam=beam)
        if one is None or two is None:
            raise KeyError(system)
        return median(a / b for a, b in zip(one.rates, two.rates, strict=True))

    return of_served(value)


def beams(measured: Measured, label: str) -> list[float]:
    """Returns the values for batches of 2, 8 and 32 inputs."""
    loads = [over("batch", load, "ctranslate2", load, beam=True) for load in (2, 8, 32)]
    return [value for each in loads for value in each(measured, label)]


def loop_share(measured: Measured, label: str) -> list[float]:
    turns = measured.loop.get("turns", []) if label == SMALL[0] else []
    return [turn["share"] for turn in turns if turn["rows"] == MARKED_ROWS]


def tail_over(other: str) -> Values:
    """Returns the ratio of p99 latency to another server's at the same call rate."""

    def values(measured: Measured, label: str) -> list[float]:
        systems = measured.servers.get(label, {}).get("systems", {})
        ours, theirs = (systems.get(name, {}).get("open") for name in ("dragoman", other))
        return [ours["p99"] / theirs["p99"]] if ours and theirs and ours["calls"] == theirs["calls"] else []

    return values


def _all(labels: tuple[str, ...], goal: float) -> dict[str, float]:
    return dict.fromkeys(labels, goal)


FULL = {"base int8": 1.5, "base fp32": 1.3}  # with 64 inputs
MARKS = (
    Mark(
        "one call at a time: median latency over CTranslate2's",
        of_served(lambda s: s.at("unary", 1).p50 / s.at("ctranslate2", 1).p50),
        _all(SMALL, 1.5) | _all(BASE, 0.67),
        at_most=True,
    ),
    Mark("8 calls: tokens/s over CTranslate2's, 8 inputs", over("unary", 8, "ctranslate2", 8)),
    Mark("64 calls: tokens/s over CTranslate2's, 64 inputs", over("unary", 64, "ctranslate2", 64), FULL),
    Mark("a call of 64: tokens/s over CTranslate2's, 64 inputs", over("batch", 64, "ctranslate2", 64), FULL),
    Mark("a call of 64: tokens/s over CTranslate2's, all inputs, sorted", over("batch", 64, "ctranslate2", None)),
    Mark("8 calls: of the step loop's tokens/s, 8 rows", over("unary", 8, "raw", 8), unit="%"),
    Mark(
        "64 calls: of the step loop's tokens/s, 64 rows",
        over("unary", 64, "raw", 64),
        _all(SMALL, 0.75) | _all(BASE, 0.9),
        unit="%",
    ),
    Mark(
        "a call of 64: of the step loop's tokens/s, 64 rows",
        over("batch", 64, "raw", 64),
        _all(SMALL, 0.85) | _all(BASE, 0.9),
        unit="%",
    ),
    Mark(
        "64 items in flight in one call: of the step loop's tokens/s, 64 rows",
        over("many", 64, "raw", 64),
        _all(SMALL[:1], 0.75),
        unit="%",
    ),
    Mark(
        "64 calls: core time for each",
        of_served(lambda s: s.at("unary", 64).core_ms),
        _all(SMALL[:1], 0.42),
        True,
        " ms",
    ),
    Mark("beam of 4, calls of 2, 8, 32: tokens/s over CTranslate2's", beams, _all(SMALL, 1.0) | _all(BASE, 1.5)),
    Mark(
        "random arrivals, 70 % of the peak: p99 over the median",
        of_served(lambda s: s.arrivals.p99 / s.arrivals.p50),
        _all(LABELS, 2.0),
        at_most=True,
    ),
    Mark("random arrivals, as many on both: p99 over Triton's", tail_over("triton"), _all(INT8, 0.5), True),
    Mark("random arrivals, as many on both: p99 over asyncio's", tail_over("batching"), _all(INT8, 0.5), True),
    Mark("8 calls beside batches: p99 over that alone", of_served(lambda s: s.bulk.slower), _all(SMALL, 3.0), True),
    Mark("batches beside 8 calls: tokens/s kept", of_served(lambda s: s.bulk.kept), _all(SMALL, 0.6), unit="%"),
    Mark("an engine's time outside the graphs, 32 rows", loop_share, _all(SMALL[:1], 0.1), True, "%"),
    Mark(
        "most memory held, over CTranslate2's",
        of_served(lambda s: s.peak_mb["server"] / s.peak_mb["CTranslate2"]),
        _all(BASE[:1], 1.3),
        at_most=True,
    ),
    Mark("most memory held", of_served(lambda s: s.peak_mb["server"]), _all(SMALL[:1], 200), True, " MB"),
    Mark(
        "from the start of the process to ready",
        of_served(lambda s: s.start_seconds),
        _all(SMALL, 0.5) | _all(BASE, 1.5),
        at_most=True,
        unit=" s",
    ),
)
