"""A slice of `python -m tests.parity`: imported models, served, give the tokens of transformers and CTranslate2."""

from dataclasses import replace
from pathlib import Path

import pytest

from dragoman_export.bundle.options import ImportOptions
from dragoman_export.imports import read_import
from tests.benchmark.random_bundle import unchecked
from tests.parity import comparison
from tests.parity.comparison import Plan, judge, make_plan
from tests.parity.library import Answer, Library
from tests.parity.models import Subject, make_subject, write_subject
from tests.parity.report import markdown
from tests.parity.run import ask_server

pytestmark = pytest.mark.usefixtures("shared_graphs")

TEXTS = 48  # one for each setting
LAYOUT = "nllb"  # mixes languages, each with a forced first token


def export(directory: Path, bundle: Path) -> None:
    """Imports a directory without the checks of the command, which test_import_command.py runs."""
    original = read_import(ImportOptions("transformers", str(directory)), lambda _: None)
    unchecked(original, bundle.parent, directory.name, "fp32").rename(bundle)


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory, shared_graphs: None) -> tuple[Plan, list[Answer]]:
    directories, repository = tmp_path_factory.mktemp("directories"), tmp_path_factory.mktemp("models")
    plan = make_plan(make_subject(LAYOUT, directories, repository, export), TEXTS, seed=1)
    [answers] = ask_server(repository, [plan], seed=1)
    return plan, answers


def test_served_imports_answer_as_the_other_programs_do(answered: tuple[Plan, list[Answer]]) -> None:
    found = judge(*answered)
    assert found.faults == []
    assert found.equal + len(found.ties) == found.asked == TEXTS
    assert found.second_equal == found.second > TEXTS // 2
    assert found.texts == 2 * TEXTS
    assert found.distinct > TEXTS // 2
    assert found.log_probabilities > 500
    assert markdown([found]).splitlines()[-1].startswith("| NLLB-200 | ")


def test_wrong_answers_are_faults(answered: tuple[Plan, list[Answer]]) -> None:
    plan, answers = answered
    first = answers[0]
    wrong_token = replace(first, ids=(*first.ids[:-1], first.ids[-1] + 1), text=None)
    steps = [{token: value + 0.01 for token, value in step.items()} for step in first.steps]
    for wrong in (wrong_token, replace(first, ids=first.ids[:-1], text=None), replace(first, steps=steps)):
        [fault] = judge(plan, [wrong, *answers[1:]]).faults
        assert "double precision" in fault
    [fault] = judge(plan, [replace(first, text="another text"), *answers[1:]]).faults
    assert "the text of" in fault
    beam = next(index for index, task in enumerate(plan.tasks) if task.setting.beams > 1 and task.detailed)
    score = answers[beam].score
    assert score is not None
    [fault] = judge(
        plan, [*answers[:beam], replace(answers[beam], score=1.05 * score - 0.01), *answers[beam + 1 :]]
    ).faults
    assert "scores differ" in fault


def test_what_noise_can_lead_to_is_a_near_tie(
    answered: tuple[Plan, list[Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, answers = answered
    library = Library(plan.subject.directory)
    index = next(index for index, task in enumerate(plan.tasks) if task.setting.beams == 4)
    task, theirs = plan.tasks[index], plan.expected[index]
    own, other, *_ = library.reachable(task.question, task.setting, noise=1.0)
    assert own == theirs.ids
    changed = [*answers[:index], Answer(other), *answers[index + 1 :]]
    assert len(judge(plan, changed).faults) == 1
    monkeypatch.setattr(comparison, "LEAST_NOISE", 1.0)
    monkeypatch.setattr(comparison, "MOST_NOISE", 2.0)
    found = judge(plan, changed)
    assert (len(found.ties), found.faults) == (1, [])
    assert "double precision finds transformers's" in found.ties[0]


@pytest.mark.parametrize("layout", ["marian", "bart"])  # with renormalized probabilities, with forced tokens
def test_scores_in_double_precision_follow_the_rules_of_the_search(layout: str, tmp_path: Path) -> None:
    directory = write_subject(layout, tmp_path)
    library, plan = Library(directory), make_plan(Subject(layout, directory, tmp_path), TEXTS // 3, seed=1)
    beams = [pair for pair in zip(plan.tasks, plan.expected, strict=False) if pair[0].setting.beams > 1]
    for task, theirs in beams:
        assert library.exact_score(task.question, task.setting, theirs) == pytest.approx(theirs.score, rel=1e-4)
