"""The measurements on one model, in pieces of some ten seconds, each of which is written down when it is done."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dragoman.local import LOOPBACK
from server.bundle.load import Bundle
from server.search.options import SearchOptions
from tests.benchmark.actor import Actor
from tests.benchmark.answers import MOST_JUDGED, UNDECIDED, margin
from tests.benchmark.effort import Notify
from tests.benchmark.servers.inputs import Inputs
from tests.benchmark.servers.load import ServerLoad
from tests.benchmark.servers.results import Answers, ModelResults
from tests.benchmark.servers.settings import Setting
from tests.benchmark.servers.systems import DEFAULTS, OURS, System
from tests.benchmark.servers.translation import TARGET_TOKENIZER

CALLERS = (1, 2, 4, 8, 16, 32, 64, 128)
TRIED = {1: (1, 2), 8: (4, 8, 16), 64: (32, 64, 128)}
"""Callers with which settings are tried, and the numbers of callers at which the best of them is then used."""
SHARES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Of the calls a second that 64 callers got: rates of the open loop."""
WARM_UP_SECONDS = 0.3


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        seconds: of a sample, about.
        open_seconds: of arrivals at each rate.
        rounds, open_rounds: samples of each point.
    """

    seconds: float
    open_seconds: float
    rounds: int
    open_rounds: int


@dataclass(frozen=True)
class Piece:
    """A piece of work."""

    what: str
    work: Callable[[], None]


class Campaign:
    """All that is to be measured on one model.

    Args:
        bundle: what is served.
        converted: the same as CTranslate2 loads it, its tokenizers beside it.
        results: what there is already is not measured again; the rest is added.
        notify: told what is going on.
    """

    def __init__(
        self,
        bundle: Bundle,
        converted: Path,
        inputs: Inputs,
        systems: Sequence[System],
        effort: Effort,
        results: ModelResults,
        notify: Notify,
    ) -> None:
        self.bundle, self.converted, self.inputs = bundle, converted, inputs
        self.systems, self.effort, self.results, self.notify = systems, effort, results, notify

    def pieces(self) -> Iterator[Piece]:
        """What is left to do, in turn; each must be done before the next is asked for."""
        for system in self.systems:
            for setting in system.settings:
                if not self.results.has(system.name, str(setting), "trial", 0):
                    yield Piece(f"trying {system.name}: {setting}", partial(self._try, system, setting))
            if system.settings and system.name not in self.results.chosen:
                self.results.chosen[system.name] = choose(self.results, system)
        for number in range(max(self.effort.rounds, self.effort.open_rounds)):
            # Every other round goes backwards, so that a machine that warms up or gets busy favours nobody.
            turn = self.systems if number % 2 == 0 else list(reversed(self.systems))
            for system in turn:
                for used, callers in self._settings(system):
                    name = _name(used)
                    if number < self.effort.rounds and not self.results.has(system.name, name, "closed", number):
                        what = f"round {number + 1}: {system.name}, {name}"
                        yield Piece(what, partial(self._closed, system, used, callers, number))
            for system in turn:
                busiest = self._settings(system)[-1][0]
                name = _name(busiest)
                if number < self.effort.open_rounds and not self.results.has(system.name, name, "open", number):
                    what = f"round {number + 1}, random arrivals: {system.name}, {name}"
                    yield Piece(what, partial(self._open, system, busiest, number))

    def _settings(self, system: System) -> list[tuple[Setting | None, list[int]]]:
        """Settings of a system and the numbers of callers at which each is used; the last is for the most."""
        if not system.settings:
            return [(None, list(CALLERS))]
        used: list[tuple[Setting | None, list[int]]] = []
        for tried, setting in sorted(self.results.chosen[system.name].items()):
            if used and used[-1][0] == setting:
                used[-1][1].extend(TRIED[tried])
            else:
                used.append((setting, list(TRIED[tried])))
        return used

    def _try(self, system: System, setting: Setting) -> None:
        with self._load(system, setting) as load:
            for callers in TRIED:
                sample = load.call("closed", callers, self.effort.seconds / 2)
                self.results.add(system.name, str(setting), "trial", callers, 0, sample)

    def _closed(self, system: System, setting: Setting | None, callers: list[int], number: int) -> None:
        with self._load(system, setting) as load:
            if number == 0 and system.name not in self.results.answers:
                self._compare(system, load.call("texts", 64))
            for count in callers:
                self.notify(f"{count} callers")
                sample = load.call("closed", count, self.effort.seconds)
                self.results.add(system.name, _name(setting), "closed", count, number, sample)

    def _open(self, system: System, setting: Setting | None, number: int) -> None:
        closed = [
            m
            for m in self.results.measurements
            if (m.system, m.kind, m.load, m.round) == (system.name, "closed", 64, 0)
        ]
        capacity = max(m.calls / m.seconds for m in closed)
        with self._load(system, setting) as load:
            for share in SHARES:
                rate = share * capacity
                self.notify(f"{rate:.0f} calls a second")
                sample = load.call("open", rate, self.effort.open_seconds, number)
                self.results.add(system.name, _name(setting), "open", rate, number, sample)

    @contextmanager
    def _load(self, system: System, setting: Setting | None) -> Iterator[Actor]:
        """A load generator on the system, started and warm."""
        with ExitStack() as stack:
            served = stack.enter_context(system.start(setting))
            workload = self.inputs.workload
            actor = Actor(
                ServerLoad,
                (LOOPBACK, served.port),
                served.process.pid,
                system.protocol,
                system.model,
                workload.texts,
                self.inputs.limits,
                self.converted / TARGET_TOKENIZER,
                self.inputs.ends,
            )
            stack.enter_context(closing(actor))
            actor.call("closed", 16, WARM_UP_SECONDS)
            yield actor

    def _compare(self, system: System, texts: list[str | None]) -> None:
        if system.name == OURS:
            self.results.texts = texts
        ours = self.results.texts
        if not ours:
            return
        differing = [i for i, (one, other) in enumerate(zip(ours, texts, strict=True)) if one != other]
        # Those of integers differ by more than rounding, of which the reference knows nothing.
        judged = differing[:MOST_JUDGED] if self.bundle.manifest.precision == "fp32" else []
        workload = self.inputs.workload
        close = sum(
            margin(self.bundle.path, tuple(workload.source_ids[i]), SearchOptions(self.inputs.limits[i])) < UNDECIDED
            for i in judged
        )
        self.results.answers[system.name] = Answers(
            same=len(texts) - len(differing),
            asked=len(texts),
            undecided=close if len(judged) == len(differing) else None,
        )


def choose(results: ModelResults, system: System) -> dict[int, Setting]:
    """The setting with the most tokens for each number of callers of the trials."""
    rates = {(m.setting, m.load): m.rate for m in results.measurements if (m.system, m.kind) == (system.name, "trial")}
    return {callers: max(system.settings, key=lambda s: rates[str(s), callers]) for callers in TRIED}


def _name(setting: Setting | None) -> str:
    return DEFAULTS if setting is None else str(setting)
