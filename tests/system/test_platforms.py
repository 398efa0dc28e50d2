"""The same answers on processors that this machine is not, emulated: `python -m tests.platforms` shows them."""

from pathlib import Path

import pytest

from dragoman import Client
from tests.platforms.answers import Answer, Answers, Place, ask, compare
from tests.platforms.models import MODELS, SHIPPED, Model, make_repository
from tests.platforms.processors import PROCESSORS, missing, serving

Platform = dict[str, Answers]

emulated = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def repository(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tiny_run, tmp_path_factory.mktemp("platforms") / "models")


def answers_of(repository: Path, processor: str | None) -> Platform:
    with serving(repository, processor) as server, Client(server.address) as client:
        return {model.name: ask(client, model) for model in MODELS}


@pytest.fixture(scope="module")
def here(repository: Path) -> Platform:
    """This machine's own answers."""
    return answers_of(repository, None)


def test_answers_do_not_depend_on_the_batch_here(here: Platform) -> None:
    assert [name for name, answers in here.items() if not answers.lone] == []


@emulated
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processor", PROCESSORS)
def test_answers_are_the_same_on_another_processor(processor: str, repository: Path, here: Platform) -> None:
    there = answers_of(repository, processor)
    results = [compare(model, here[model.name], there[model.name]) for model in MODELS]
    wrong = [result for result in results if not result.holds]
    assert not wrong, [(each.model.name, each.different, each.ties, each.lone) for each in wrong]


def test_a_tie_is_told_from_another_answer() -> None:
    def greedy(*places: Place) -> Answers:
        return Answers([Answer(" ".join(str(place.token) for place in places), places)], [], lone=True)

    first = Place(7, {7: -0.1, 8: -3.0})
    model, exact = Model("blockwise", ["x"], blockwise=True), Model(SHIPPED.name, ["x"])
    here, there = greedy(first, Place(4, {4: -0.70, 5: -0.71})), greedy(first, Place(5, {5: -0.69, 4: -0.71}))
    assert compare(model, here, there).ties == ["x"]
    assert compare(model, here, there).holds
    assert not compare(exact, here, there).holds, "where activations are not rounded there are no ties to settle"
    other = greedy(first, Place(5, {5: -0.2, 4: -1.9}))
    assert compare(model, here, other).different == ["x"]
    assert not compare(model, here, other).holds
    assert not compare(model, here, greedy(first)).holds, "an answer that ends early"
    same = compare(exact, here, greedy(Place(7, {7: -0.125}), Place(4, {4: -0.70})))
    assert same.holds
    assert same.largest == pytest.approx(0.025)
