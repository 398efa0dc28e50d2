"""Emulated processors give the same answers as this machine; `python -m tests.platforms` prints a comparison."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman import Client
from tests.platforms import arm64
from tests.platforms.answers import Answer, Answers, Position, ask, compare, greedy_answers
from tests.platforms.models import MODELS, SHIPPED, Model, make_repository
from tests.platforms.processors import HASWELL, PROCESSORS, command, features, missing, others, serving, unknown

Platform = dict[str, Answers]
GRAVITON = "neoverse-n1"  # of Graviton 2 and Ampere Altra
# Emulated, the shipped model takes as long for a word as the small ones for ten. `python -m tests.platforms` asks all.
# More inputs than the 16 rows of an engine, so that some start in rows that others leave; the beams fill them, too.
FEWER = [
    replace(model, inputs=model.inputs[:18], lone=4, beams=5)
    if model == SHIPPED
    else replace(model, inputs=model.inputs[:24], lone=6, beams=6)
    for model in MODELS
]
AGAIN = 6  # words that the shipped model is asked again, in a smaller batch


@pytest.fixture(scope="module")
def repository(tiny_run: Path, tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tiny_run, tiny_bundle, tmp_path_factory.mktemp("platforms") / "models")


def server_answers(
    repository: Path, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Platform:
    """Returns the answers of a server, of which it repeats some of the shipped model's to the last bit of a score."""
    with serving(repository, command, environment) as server, Client(server.address) as client:
        found = {model.name: ask(client, model) for model in FEWER}
        again = greedy_answers(client, SHIPPED.name, SHIPPED.inputs[:AGAIN])
    assert again == found[SHIPPED.name].greedy[:AGAIN]
    return found


@pytest.fixture(scope="module")
def here(repository: Path) -> Platform:
    """The answers of this machine."""
    return server_answers(repository)


def test_answers_do_not_depend_on_the_batch(here: Platform) -> None:
    assert [name for name, answers in here.items() if not answers.batch_invariant] == []


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processor", others(features()))
def test_another_processor_gives_the_same_answers(processor: str, repository: Path, here: Platform) -> None:
    there = server_answers(repository, command(processor))
    results = [compare(model, here[model.name], there[model.name], exact=not model.blockwise) for model in FEWER]
    assert not [str(result) for result in results if not result.passed]


@pytest.mark.skipif(arm64.missing() is not None, reason=str(arm64.missing()))
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_arm64_gives_the_same_answers_except_for_ties(repository: Path, here: Platform) -> None:
    try:
        machine = arm64.prepare(arm64.ROOT / "build" / "arm64")
    except arm64.NoMachineError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    there = server_answers(repository, machine.command(GRAVITON), machine.environment())
    results = [compare(model, here[model.name], there[model.name], exact=False) for model in FEWER]
    assert not [str(result) for result in results if not result.passed]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_processors_unknown_to_the_emulator_are_reported() -> None:
    assert unknown([*PROCESSORS, "Haswell,-fma"]) is None
    assert str(unknown(["Haswell", "Hasbeen"])).startswith("qemu-x86_64 knows no Hasbeen; ")


def test_a_processor_like_this_one_is_not_emulated() -> None:
    assert others({"sse4_2", "avx2", "fma"}) == ["Nehalem"]
    for newer in ("avx_vnni", "avx512f", "avx512_vnni", "amx_int8"):
        assert HASWELL in others({"sse4_2", "avx2", "fma", newer})
    assert others({"sse4_2"}) == [*PROCESSORS]


def greedy(*positions: Position) -> Answers:
    return Answers(
        [Answer(" ".join(str(position.token) for position in positions), positions)] * 100, [], batch_invariant=True
    )


def test_ties_are_distinguished_from_different_answers() -> None:
    first = Position(7, {7: -0.1, 8: -3.0})
    model = Model("some", ["x"] * 100)
    here, there = greedy(first, Position(4, {4: -0.70, 5: -0.71})), greedy(first, Position(5, {5: -0.69, 4: -0.71}))
    one_differs = Answers([*there.greedy[:1], *here.greedy[1:]], [], batch_invariant=True)
    tied = compare(model, here, one_differs, exact=False)
    assert (tied.ties, tied.different, tied.passed) == (["x"], [], True)
    assert str(tied) == "some: 99 of 100 answers equal, scores within 0.0e+00; equally likely answers to 'x'"
    assert not compare(model, here, one_differs, exact=True).passed, "the exact comparison allows no ties"
    assert not compare(model, here, there, exact=False).passed, "too many ties for chance"
    other = Answers(
        [*greedy(first, Position(5, {5: -0.2, 4: -1.9})).greedy[:1], *here.greedy[1:]], [], batch_invariant=True
    )
    result = compare(model, here, other, exact=False)
    assert (result.ties, result.different, result.passed) == ([], ["x"], False)
    ended = Answers([*greedy(first).greedy[:1], *here.greedy[1:]], [], batch_invariant=True)
    assert not compare(model, here, ended, exact=False).passed, "an answer that ends early"
    same = compare(model, here, greedy(Position(7, {7: -0.125}), Position(4, {4: -0.70})), exact=True)
    assert same.passed
    assert same.max_difference == pytest.approx(0.025)
    assert not compare(model, here, Answers(here.greedy, [], batch_invariant=False), exact=False).passed
