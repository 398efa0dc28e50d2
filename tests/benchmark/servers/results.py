"""What was measured, as it is written to disk after every piece of work and taken up again from there."""

from pathlib import Path
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, Field

from tests.benchmark.samples import Sample, percentile
from tests.benchmark.servers.settings import Setting

Kind = Literal["trial", "closed", "open"]


class Measurement(BaseModel):
    """One sample.

    Attributes:
        system, setting: who; the setting in words.
        kind: "trial" chose the setting, "closed" has callers who wait for their answers, "open" random arrivals.
        load: callers, or calls a second that were due.
        round: from 0.
        p50, p99: seconds of a call.
        server_cpu, load_cpu: processor seconds of the server's processes and of the load generator.
    """

    system: str
    setting: str
    kind: Kind
    load: float
    round: int
    seconds: float
    tokens: int
    calls: int
    failed: int
    p50: float
    p99: float
    server_cpu: float
    load_cpu: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


class Point(BaseModel):
    """All rounds of one system at one load, by their medians.

    Attributes:
        rate: tokens per second; `lowest` and `highest` are those of single rounds.
        calls: of all rounds, from which p50 and p99 (seconds) were taken round by round.
        failed: of them.
        cores: kept busy by the server; `load_cores` by the load generator.
    """

    system: str
    setting: str
    load: float
    rate: float
    lowest: float
    highest: float
    calls: int
    failed: int
    p50: float
    p99: float
    cores: float
    load_cores: float


class Answers(BaseModel):
    """How a system's answers compare to Dragoman's.

    Attributes:
        same: texts with exactly the same answer, of `asked`.
        undecided: of the others, those where two choices are so close that rounding decides; None where not all others
            were looked at.
    """

    same: int
    asked: int
    undecided: int | None = 0


class ModelResults(BaseModel):
    """On one model.

    Attributes:
        model, inputs: in words.
        machines: on which it was measured, one for each commit.
        kernels: variables with which CTranslate2 is fastest.
        chosen: settings of each system by the number of callers from which on it is used.
        answers: by system.
        texts: Dragoman's answers.
    """

    model: str
    inputs: str
    machines: list[dict[str, Any]] = Field(default_factory=list)
    kernels: dict[str, str] | None = None
    chosen: dict[str, dict[int, Setting]] = Field(default_factory=dict)
    answers: dict[str, Answers] = Field(default_factory=dict)
    texts: list[str | None] = Field(default_factory=list)
    measurements: list[Measurement] = Field(default_factory=list)

    def add(self, system: str, setting: str, kind: Kind, load: float, number: int, sample: Sample) -> None:
        """Keeps a sample."""
        self.measurements.append(
            Measurement(
                system=system,
                setting=setting,
                kind=kind,
                load=load,
                round=number,
                seconds=sample.seconds,
                tokens=sample.tokens,
                calls=sample.sequences + sample.failed,
                failed=sample.failed,
                p50=percentile(sample.latencies, 0.5),
                p99=percentile(sample.latencies, 0.99),
                server_cpu=sample.cpu_seconds["server"],
                load_cpu=sample.cpu_seconds["load"],
            )
        )

    def measured_on(self, machine: dict[str, Any]) -> None:
        """Keeps what it was measured on, unless that was told of the same commit before."""
        if machine["commit"] not in [known["commit"] for known in self.machines]:
            self.machines.append(machine)

    def has(self, system: str, setting: str, kind: Kind, number: int) -> bool:
        return any((m.system, m.setting, m.kind, m.round) == (system, setting, kind, number) for m in self.measurements)

    def points(self, system: str, kind: Kind) -> list[Point]:
        """By rising load; of several settings at a load the one with the most tokens."""
        groups: dict[tuple[float, str], list[Measurement]] = {}
        for measurement in self.measurements:
            if (measurement.system, measurement.kind) == (system, kind):
                groups.setdefault((measurement.load, measurement.setting), []).append(measurement)
        best: dict[float, Point] = {}
        for (load, _), group in sorted(groups.items()):
            point = _point(group)
            if load not in best or point.rate > best[load].rate:
                best[load] = point
        return list(best.values())


class Results(BaseModel):
    """Of all models, by their labels."""

    models: dict[str, ModelResults] = Field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _point(group: list[Measurement]) -> Point:
    rates = [m.rate for m in group]
    return Point(
        system=group[0].system,
        setting=group[0].setting,
        load=group[0].load,
        rate=median(rates),
        lowest=min(rates),
        highest=max(rates),
        calls=sum(m.calls for m in group),
        failed=sum(m.failed for m in group),
        p50=median(m.p50 for m in group),
        p99=median(m.p99 for m in group),
        cores=median(m.server_cpu / m.seconds for m in group),
        load_cores=median(m.load_cpu / m.seconds for m in group),
    )
