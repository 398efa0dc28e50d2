"""Compares answers of a server with those of transformers and CTranslate2 for one family."""

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from tests.parity.library import Answer, Library
from tests.parity.models import Question, Subject, make_questions, read_tokenizer
from tests.parity.serving import Task
from tests.parity.settings import Frame, all_settings, comparable_settings, greedy
from tests.parity.translators import KNOWN, Translator

FREQUENT = 4  # answers whose tokens become bad words
LEAST_NOISE = 2e-6  # of log-probabilities; transformers adds them up in single precision even in double
MOST_NOISE = 1e-3  # where rounding changes more, a difference proves nothing, so it is no tie either
SCORE_TOLERANCE = 1e-3  # of a score, relative; a wrong length or sum changes far more
OWN_ROUNDING = 4  # times as much as transformers' own single precision may differ from double, plus:
TOLERANCE = 1e-4  # of log-probabilities


@dataclass(frozen=True)
class Plan:
    """What to ask about a family, and what other programs answer.

    Attributes:
        tasks: What to ask the server. The first ones are compared with transformers, the others with CTranslate2.
        expected: Answers of transformers.
        second: Answers of CTranslate2; None where a rule that it lacks has a part in the answer.
    """

    subject: Subject
    tasks: Sequence[Task]
    expected: Sequence[Answer]
    second: Sequence[Answer | None]


@dataclass
class Findings:
    """The result of a comparison.

    Attributes:
        asked, equal: Numbers of answers, and of those with transformers' tokens.
        ties, faults: Descriptions of near ties and of other differences.
        second: Answers compared with CTranslate2.
        second_equal: Those with the same tokens.
        texts: Answers whose text is transformers' text of the same tokens.
        distinct: Different answers.
        length: Median of the number of tokens.
        settings: Number of different settings.
        log_probabilities: Log-probabilities compared.
        difference: Their largest difference from double precision.
        rounding: The largest difference of transformers' own from double precision, along the same answers.
        score: The largest relative difference of beam scores from transformers' own.
    """

    layout: str
    asked: int = 0
    equal: int = 0
    second: int = 0
    second_equal: int = 0
    texts: int = 0
    distinct: int = 0
    length: float = 0
    settings: int = 0
    log_probabilities: int = 0
    difference: float = 0.0
    rounding: float = 0.0
    score: float = 0.0
    ties: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def make_plan(subject: Subject, count: int, seed: int) -> Plan:
    """Draws texts, spreads them over all settings, and asks transformers and CTranslate2."""
    library = Library(subject.directory)
    tokenizer = read_tokenizer(subject.directory)
    questions = make_questions(subject, tokenizer, library.forced, count, seed)
    words = _frequent_words([library.answer(one, greedy(library.frame(one))) for one in questions[:FREQUENT]])
    tasks = []
    for index, question in enumerate(questions):
        settings = all_settings(Frame(question.forced is not None, library.forces_end, words))
        # Texts come in three kinds, and every setting gets all of them.
        setting = settings[(index + index // len(settings)) % len(settings)]
        tasks.append(Task(question, setting, detailed=index % 2 == 0))
    expected = [library.answer(task.question, task.setting) for task in tasks]
    more, second = _second_opinion(subject, library, questions)
    return Plan(subject, [*tasks, *more], expected, second)


def judge(plan: Plan, answers: Sequence[Answer]) -> Findings:
    """Compares the server's answers with the others'.

    Args:
        answers: To all tasks of the plan.
    """
    library, tokenizer = Library(plan.subject.directory), read_tokenizer(plan.subject.directory)
    found = Findings(plan.subject.layout, len(plan.expected))
    found.distinct = len({answer.ids for answer in answers[: found.asked]})
    found.length = median(len(answer.ids) for answer in answers[: found.asked])
    found.settings = len({task.setting.name for task in plan.tasks[: found.asked]})
    for task, ours, theirs in zip(plan.tasks, answers, plan.expected, strict=False):
        if ours.ids == theirs.ids:
            found.equal += 1
            _compare_scores(found, task, ours, theirs)
        else:
            _explain(found, library, task, ours, theirs, "transformers")
        _compare_steps(found, library, task, ours)
    for task, ours, other in zip(plan.tasks[found.asked :], answers[found.asked :], plan.second, strict=True):
        if other is not None:
            found.second += 1
            if ours.ids == other.ids:
                found.second_equal += 1
            else:
                _explain(found, library, task, ours, other, "CTranslate2")
    _compare_texts(found, tokenizer, answers)
    if found.difference > TOLERANCE + OWN_ROUNDING * found.rounding:
        found.faults.append(f"log-probabilities differ by up to {found.difference:.1e} from double precision")
    if found.score > SCORE_TOLERANCE:
        found.faults.append(f"scores differ by up to {found.score:.1e} from those of transformers, relatively")
    return found


def _second_opinion(
    subject: Subject, library: Library, questions: Sequence[Question]
) -> tuple[list[Task], list[Answer | None]]:
    """Returns tasks and CTranslate2's answers to them; none for a family that it cannot convert."""
    if subject.layout not in KNOWN:
        return [], []
    tasks, answers = [], []
    with tempfile.TemporaryDirectory() as scratch:
        translator = Translator(subject.directory, Path(scratch) / "converted")
        for index, question in enumerate(questions):
            settings = comparable_settings(library.frame(question))
            task = Task(question, settings[index % len(settings)], detailed=False)
            fits = library.comparable(question, task.setting, library.answer(question, task.setting))
            tasks.append(task)
            answers.append(Answer(translator.answer(question, task.setting)) if fits else None)
    return tasks, answers


def _frequent_words(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    """Returns the most frequent token of answers and their most frequent pairs of different other tokens."""
    tokens = Counter(chain.from_iterable(answer.ids for answer in answers))
    pairs = Counter(
        pair
        for answer in answers
        for pair in zip(answer.ids, answer.ids[1:], strict=False)
        if pair[0] != pair[1] and tokens.most_common(1)[0][0] not in pair
    )
    return [(token,) for token, _ in tokens.most_common(1)] + [pair for pair, _ in pairs.most_common(2)]


def _compare_scores(found: Findings, task: Task, ours: Answer, theirs: Answer) -> None:
    if task.detailed and ours.score is not None and theirs.score is not None:
        found.score = max(found.score, abs(ours.score - theirs.score) / max(1.0, abs(theirs.score)))


def _compare_texts(found: Findings, tokenizer: Any, answers: Sequence[Answer]) -> None:
    """Compares texts with those of transformers, but for what docs/import.md says about the end of a text."""
    for answer in answers:
        if answer.text is None:
            continue
        try:
            text = tokenizer.decode(list(answer.ids), skip_special_tokens=True)
        except IndexError:  # of Marian's class, for a row of the table that no token has
            continue
        if found.layout == "blenderbot-small":
            text = text.removesuffix("@@")
        if answer.text.rstrip() == text.rstrip():
            found.texts += 1
        else:
            found.faults.append(f"{found.layout}: the text of {list(answer.ids)} is {answer.text!r}, not {text!r}")


def _compare_steps(found: Findings, library: Library, task: Task, ours: Answer) -> None:
    """Compares log-probabilities of the chosen tokens and of the best others with those in double precision.

    In greedy search an excluded token raises the probabilities of the others, so such answers are left out.
    """
    if not task.detailed or not ours.ids or (task.setting.masks and (task.setting.beams == 1 or library.renormalizes)):
        return
    exact, single = (library.log_probabilities(task.question, ours.ids, exact=exact) for exact in (True, False))
    for position, step in enumerate(ours.steps):
        for token, value in step.items():
            right = exact[position, token].item()
            found.difference = max(found.difference, abs(value - right))
            found.rounding = max(found.rounding, abs(single[position, token].item() - right))
            found.log_probabilities += 1


def _explain(found: Findings, library: Library, task: Task, ours: Answer, theirs: Answer, program: str) -> None:
    """Records a difference, as a near tie only where rounding of the size of transformers' own can bring it about."""
    noise = max(LEAST_NOISE, library.rounding(task.question, [ours, theirs]))
    scores = [library.exact_score(task.question, task.setting, answer) for answer in (ours, theirs)]
    reached = library.reachable(task.question, task.setting, noise)
    tied = noise < MOST_NOISE and {ours.ids, theirs.ids} <= {*reached}
    exact = {ours.ids: "the server's", theirs.ids: f"{program}'s"}.get(reached[0], "another one")
    line = (
        f"{found.layout}, {task.setting.name}: {task.question.source.source!r}: the server's {list(ours.ids)} scores "
        f"{scores[0]:.7f}, {program}'s {list(theirs.ids)} {scores[1]:.7f}; double precision finds {exact}, and "
        f"{len(reached)} different ones with rounding of {noise:.1e}"
    )
    (found.ties if tied else found.faults).append(line)
