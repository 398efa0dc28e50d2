"""Reads sources, asks the teachers, chooses, and writes what the trainer reads."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.bulk.errors import BulkError, StoppedError
from dragoman.bulk.output import Output, check_input
from dragoman.bulk.progress import Meter
from dragoman.v1 import generation_pb2 as pb
from dragoman_server.config import ServerConfig
from dragoman_server.distill.choose import Candidate, closeness, merge
from dragoman_server.distill.lines import unfit
from dragoman_server.distill.options import DistillOptions
from dragoman_server.distill.teacher import Teacher
from dragoman_server.messages.languages import FIELDS
from dragoman_server.offline.pipeline import run_pipeline
from dragoman_server.offline.scored import Ids
from dragoman_server.offline.sources import SourceLine, find_sources
from dragoman_server.offline.tickets import Answer, Ticket

UNSCORED = "no answer can be scored by every teacher"


@dataclass(slots=True)
class Counts:
    """What became of the input lines.

    Attributes:
        lines: Input lines that are done.
        written: Output lines.
        bad: Input lines that can't be used.
        left_out: Input lines without a usable answer, by reason.
    """

    lines: int = 0
    written: int = 0
    bad: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def summary(self, out: Path) -> str:
        """Returns one sentence for the user."""
        text = f"{out}: {self.written:,} lines from {self.lines:,}"
        left_out = sum(self.left_out.values())
        if not self.bad and not left_out:
            return text
        reasons = [f"{count:,} because {reason}" for reason, count in self.left_out.most_common()]
        parts = [f"{self.bad:,} bad sources"] if self.bad else []
        return f"{text}; without {', '.join([*parts, *reasons])} (listed in {out}.bad_lines.txt)"

    def document(self) -> dict[str, Any]:
        return {"lines": self.lines, "written": self.written, "bad": self.bad, "left_out": dict(self.left_out)}

    @classmethod
    def read(cls, document: dict[str, Any]) -> "Counts":
        if not document:
            return cls()
        return cls(document["lines"], document["written"], document["bad"], Counter(document["left_out"]))


@dataclass(slots=True)
class Window:
    """Some consecutive input lines.

    Attributes:
        lines: The lines.
        problems: Why each can't be used; empty where it can.
        places: Index of each usable line's source among the distinct ones; -1 for the others.
        ids: Ids of the distinct sources for each teacher.
    """

    lines: list[SourceLine]
    problems: list[str]
    places: list[int]
    ids: list[list[Ids]]


@dataclass(slots=True)
class Asked:
    """What the teachers said to the sources of a window.

    Attributes:
        answers: Answers of each teacher.
        ranked: Candidates of each source by the mean of all teachers' scores, if that is how to choose.
    """

    answers: list[list[Answer]]
    ranked: list[list[Candidate] | str] | None = None


class Distillation:
    """The stages of the work.

    Args:
        options: The command line.
        teachers: The loaded teachers.
        lines: Input lines, from the first one that is not done.
        output: Where to write.
        should_stop: Whether the work should stop.

    Attributes:
        counts: What became of the lines so far.
    """

    def __init__(
        self,
        options: DistillOptions,
        teachers: Sequence[Teacher],
        lines: Iterator[SourceLine],
        output: Output,
        should_stop: Callable[[], bool],
    ) -> None:
        self._options, self._teachers, self._lines = options, teachers, lines
        self._output, self._should_stop = output, should_stop
        self._tag = f"{options.tag} " if options.tag else ""
        self._close = None if options.choose == "score" else closeness(options.choose)
        self.counts = Counts.read(output.state)
        self._begun_lines = self._expected = 0  # lines of the windows that have begun, and answers to come

    def windows(self) -> Iterator[Window]:
        """Yields windows, their sources as the ids of every teacher."""
        while lines := list(islice(self._lines, self._options.window)):
            yield self._window(lines)

    def begin(self, window: Window) -> list[Ticket]:
        """Asks the first teacher before the window is due. Several take turns, so that each has all cores."""
        self._begun_lines += len(window.lines)
        self._expected += sum(map(len, window.ids))
        return [self._teachers[0].begin(window.ids[0])] if len(self._teachers) == 1 else []

    def ask(self, window: Window, tickets: list[Ticket]) -> Asked:
        """Returns the answers of all teachers; several score each other's candidates if those are to win.

        Raises:
            StoppedError: The work should stop.
            BulkError: An engine has failed.
        """
        if self._should_stop():
            raise StoppedError
        asked = Asked([])
        for index, (teacher, ids) in enumerate(zip(self._teachers, window.ids, strict=True)):
            ticket = tickets[index] if tickets else teacher.begin(ids)
            asked.answers.append(teacher.answers(ids, ticket, self._should_stop))
        if len(self._teachers) > 1 and self._close is None:
            asked.ranked = self._ranked(window, self._of_teachers(window, asked.answers))
        return asked

    def measure(self) -> tuple[int, int]:
        """Returns the lines that the teachers have answered, estimated by their answers, and the tokens of those."""
        engines = [teacher.model.engines for teacher in self._teachers]
        part = sum(each.answered for each in engines) / max(self._expected, 1)
        return int(self._begun_lines * min(part, 1.0)), sum(each.tokens for each in engines)

    def save(self, window: Window, asked: Asked) -> None:
        """Chooses for every line of a window, and writes it.

        Raises:
            BulkError: The output can't be written.
        """
        output, bad, counts = [], [], self.counts
        candidates = asked.ranked
        if candidates is None:
            candidates = [_merged(found) for found in self._of_teachers(window, asked.answers)]
        for line, problem, place in zip(window.lines, window.problems, window.places, strict=True):
            counts.lines += 1
            found = problem or candidates[place]
            if isinstance(found, str):
                counts.bad += 1
                bad.append(_listed(line, f"the source {found}"))
                continue
            chosen = self._choose(found, line)
            if not chosen:
                reason = found[0].fault
                counts.left_out[reason] += 1
                bad.append(_listed(line, reason))
            output += [self._pair(line.source, one.text) for one in chosen]
            counts.written += len(chosen)
        bad_lines = "".join(bad).encode(errors="backslashreplace")
        self._output.commit(counts.lines, "".join(output).encode(), bad_lines, counts.document())

    def _window(self, lines: list[SourceLine]) -> Window:
        problems = [line.problem or unfit(line.source) for line in lines]
        if self._close is not None:
            for index, line in enumerate(lines):
                problems[index] = problems[index] or ("" if line.reference else "has no reference beside it")
        texts = {line.source: 0 for line, problem in zip(lines, problems, strict=True) if not problem}
        encoded = [teacher.model.encode(list(texts)) for teacher in self._teachers]
        refused: dict[str, str] = {}
        ids: list[list[Ids]] = [[] for _ in self._teachers]
        for text, *found in zip(list(texts), *encoded, strict=True):
            problem = next((one for one in found if isinstance(one, str)), "")
            if problem:
                refused[text] = problem
                continue
            texts[text] = len(ids[0])
            for own, one in zip(ids, found, strict=True):
                assert not isinstance(one, str)
                own.append(one)
        problems = [problem or refused.get(line.source, "") for line, problem in zip(lines, problems, strict=True)]
        places = [-1 if problem else texts[line.source] for line, problem in zip(lines, problems, strict=True)]
        return Window(lines, problems, places, ids)

    def _of_teachers(self, window: Window, answers: Sequence[list[Answer]]) -> list[tuple[list[Candidate] | str, ...]]:
        """Returns the candidates of each teacher, or why there are none, for each source."""
        of_teachers = [
            teacher.candidates(ids, found)
            for teacher, ids, found in zip(self._teachers, window.ids, answers, strict=True)
        ]
        return list(zip(*of_teachers, strict=True))

    def _ranked(
        self, window: Window, of_teachers: Sequence[tuple[list[Candidate] | str, ...]]
    ) -> list[list[Candidate] | str]:
        """Returns the usable candidates of each source by the mean of the teachers' scores, the best first."""
        candidates = [_merged(found) for found in of_teachers]
        usable = [
            (place, one)
            for place, found in enumerate(candidates)
            if not isinstance(found, str)
            for one in found
            if not one.fault
        ]
        texts = [one.text for _, one in usable]
        scores = []
        for index, (teacher, ids) in enumerate(zip(self._teachers, window.ids, strict=True)):
            own = {
                (place, one.text): one.found
                for place, found in enumerate(of_teachers)
                for one in found[index]
                if isinstance(one, Candidate)
            }
            found_out = [own.get((place, one.text)) for place, one in usable]
            sources = [ids[place] for place, _ in usable]
            scores.append(teacher.model.score(sources, texts, self._should_stop, found_out))
        means: dict[tuple[int, str], float] = {}
        for (place, one), *given in zip(usable, *scores, strict=True):
            known = [score for score in given if score is not None]
            if len(known) == len(given):
                means[place, one.text] = sum(known) / len(known)
        ranked: list[list[Candidate] | str] = []
        for place, found in enumerate(candidates):
            if isinstance(found, str):
                ranked.append(found)
                continue
            scored = [one for one in found if (place, one.text) in means]
            scored.sort(key=lambda one: -means[place, one.text])  # stable: of equal ones the earlier comes first
            ranked.append(scored or [replace(one, fault=one.fault or UNSCORED) for one in found])
        return ranked

    def _choose(self, found: list[Candidate], line: SourceLine) -> list[Candidate]:
        """Returns the candidates to write, none if all have faults."""
        usable = [one for one in found if not one.fault]
        if self._close is not None:
            close = {one.text: self._close(one.text, line.reference or "") for one in usable}
            usable.sort(key=lambda one: -close[one.text])
        return usable[: self._options.keep]

    def _pair(self, source: str, target: str) -> str:
        first, second = (target, source) if self._options.swap else (source, target)
        return f"{self._tag}{first}\t{second}\n"


def _merged(found: Sequence[list[Candidate] | str]) -> list[Candidate] | str:
    """Returns the candidates of all teachers for one source, or why there are none."""
    problem = next((one for one in found if isinstance(one, str)), None)
    return problem or merge(one for one in found if not isinstance(one, str))


def _listed(line: SourceLine, problem: str) -> str:
    return f"{line.file}:{line.line}: {problem}\n"


def distill(options: DistillOptions, config: ServerConfig, should_stop: Callable[[], bool]) -> Counts:
    """Distills a file. What an earlier, stopped or killed call with the same options has done is not done again.

    Args:
        options: The command line.
        config: The server's options, for the engines of each teacher.
        should_stop: Whether the work should stop.

    Returns:
        What became of all lines.

    Raises:
        BulkError: The options, a file or a teacher can't be used.
        StoppedError: `should_stop` returned True; what has been saved stays.
    """
    sources = find_sources(options.sources, options.layout, options.source_column, options.reference_column)
    for path in (options.sources, *sources.paths):
        if options.out.exists() and path.exists() and path.samefile(options.out):
            raise BulkError(f"{options.out} is one of the sources; name another file to write")
        check_input(path, options.out)
    digests = sources.digests(should_stop)
    first = {file.path for file in sources.files}  # of parallel files only the sources count
    total = sum(digest.lines for digest in digests if digest.path in first)
    output = Output(options.out, options.configuration(digests), options.restart)
    with ExitStack() as stack:
        stack.callback(output.close)
        if output.finished:
            return Counts.read(output.state)
        languages = pb.Input(source_language=options.source_language, target_language=options.target_language)
        teachers: list[Teacher] = []
        for path in options.teachers:
            teachers.append(Teacher(path, config, languages, options.search))
            stack.callback(teachers[-1].model.close)
        for name in FIELDS.values():
            if languages.HasField(name) and not any(teacher.model.languages.HasField(name) for teacher in teachers):
                flag, side = f"--{name.replace('_', '-')}", name.removesuffix("_language")
                raise BulkError(f"{flag} is set, but no teacher has a choice of {side} languages")
        lines = islice(sources.lines(), output.lines, None)
        work = Distillation(options, teachers, lines, output, should_stop)
        with Meter(total, output.lines, work.measure):
            run_pipeline(work.windows(), work.begin, work.ask, work.save)
        output.finish()
    return work.counts
