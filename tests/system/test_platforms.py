"""The same answers on processors that this machine is not, emulated: `python -m tests.platforms` shows them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dragoman import Client
from tests.platforms import arm64
from tests.platforms.answers import Answer, Answers, Position, ask, compare
from tests.platforms.models import MODELS, SHIPPED, Model, make_repository
from tests.platforms.processors import PROCESSORS, command, missing, serving, unknown

Platform = dict[str, Answers]
GRAVITON = "neoverse-n1"  # the second; Ampere's Altra has the same cores
PASSES = 3


@pytest.fixture(scope="module")
def repository(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tiny_run, tmp_path_factory.mktemp("platforms") / "models")


def answers_of(
    repository: Path, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> list[Platform]:
    """What a server answers, the shipped model several times."""
    with serving(repository, command, environment) as server, Client(server.address) as client:
        first = {model.name: ask(client, model) for model in MODELS}
        return [first, *({SHIPPED.name: ask(client, SHIPPED)} for _ in range(PASSES - 1))]


@pytest.fixture(scope="module")
def here(repository: Path) -> Platform:
    """This machine's own answers."""
    return answers_of(repository)[0]


def test_answers_do_not_depend_on_the_batch_here(here: Platform) -> None:
    assert [name for name, answers in here.items() if not answers.batch_invariant] == []


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_answers_are_the_same_on_another_processor(processor: str, repository: Path, here: Platform) -> None:
    there = answers_of(repository, command(processor))
    results = [compare(model, here[model.name], there[0][model.name], exact=not model.blockwise) for model in MODELS]
    assert not [str(result) for result in results if not result.passed]
    assert all(again[SHIPPED.name] == there[0][SHIPPED.name] for again in there)


@pytest.mark.skipif(arm64.missing() is not None, reason=str(arm64.missing()))
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_answers_are_those_of_arm64_but_for_ties(repository: Path, here: Platform) -> None:
    try:
        machine = arm64.prepare(arm64.ROOT / "build" / "arm64")
    except arm64.NoMachineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    there = answers_of(repository, machine.command(GRAVITON), machine.environment())
    results = [compare(model, here[model.name], there[0][model.name], exact=False) for model in MODELS]
    assert not [str(result) for result in results if not result.passed]
    assert all(again[SHIPPED.name] == there[0][SHIPPED.name] for again in there), "to the last bit of a score"


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_processors_that_the_emulator_does_not_know_are_told() -> None:
    assert unknown([*PROCESSORS, "Haswell,-fma"]) is None
    assert str(unknown(["Haswell", "Hasbeen"])).startswith("qemu-x86_64 knows no Hasbeen; ")


def greedy(*positions: Position) -> Answers:
    return Answers(
        [Answer(" ".join(str(position.token) for position in positions), positions)] * 100, [], batch_invariant=True
    )


def test_a_tie_is_told_from_another_answer() -> None:
    first = Position(7, {7: -0.1, 8: -3.0})
    model = Model("some", ["x"] * 100)
    here, there = greedy(first, Position(4, {4: -0.70, 5: -0.71})), greedy(first, Position(5, {5: -0.69, 4: -0.71}))
    one = Answers([*there.greedy[:1], *here.greedy[1:]], [], batch_invariant=True)
    tied = compare(model, here, one, exact=False)
    assert (tied.ties, tied.different, tied.passed) == (["x"], [], True)
    assert str(tied) == "some: 99 of 100 answers equal, scores within 0.0e+00; equally likely answers to 'x'"
    assert not compare(model, here, one, exact=True).passed, "where only sums are ordered otherwise nothing is settled"
    assert not compare(model, here, there, exact=False).passed, "too many for chance"
    other = Answers(
        [*greedy(first, Position(5, {5: -0.2, 4: -1.9})).greedy[:1], *here.greedy[1:]], [], batch_invariant=True
    )
    told = compare(model, here, other, exact=False)
    assert (told.ties, told.different, told.passed) == ([], ["x"], False)
    ended = Answers([*greedy(first).greedy[:1], *here.greedy[1:]], [], batch_invariant=True)
    assert not compare(model, here, ended, exact=False).passed, "an answer that ends early"
    same = compare(model, here, greedy(Position(7, {7: -0.125}), Position(4, {4: -0.70})), exact=True)
    assert same.passed
    assert same.max_difference == pytest.approx(0.025)
    assert not compare(model, here, Answers(here.greedy, [], batch_invariant=False), exact=False).passed
