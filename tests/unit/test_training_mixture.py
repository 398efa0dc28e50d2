"""Mixtures of corpora: how often an epoch has each pair, by weights and temperature."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dragoman_training.data.mixture import Mixture
from dragoman_training.data.prepare import prepare
from dragoman_training.errors import DataError, RecipeError, TrainingError
from dragoman_training.recipe import DataConfig, PairsFile, load_recipe
from tests.support.training import SMALL, TINY, run_training, small_recipe


def mixture(*entries: str, counts: list[int], temperature: float = 1) -> Mixture:
    """Returns a mixture of files written as weight, or as language:weight."""
    files = []
    for i, entry in enumerate(entries):
        language, _, weight = entry.rpartition(":")
        files.append(PairsFile(file=Path(f"{i}.tsv"), weight=float(weight), target_language=language or None))
    return Mixture(DataConfig(train=[*files], temperature=temperature), counts, seed=1)


def seen(mixed: Mixture, epochs: int) -> Counter[int]:
    return Counter(number for epoch in range(epochs) for number in mixed.epoch(epoch).tolist())


def test_without_weights_every_pair_is_in_each_epoch_once() -> None:
    mixed = mixture("1", "1", counts=[3, 4])
    assert mixed.even
    assert mixed.epoch(5).tolist() == list(range(7))
    assert mixed.describe() == []


def test_weights_that_leave_epochs_without_pairs_are_refused() -> None:
    with pytest.raises(DataError, match=r"data\.train: the weights are so small that epochs have no pairs"):
        mixture("1e-6", counts=[40])


def test_weights() -> None:
    mixed = mixture("3", "0.5", "1", counts=[4, 10, 5])
    drawn = seen(mixed, 1)
    assert [drawn[i] for i in range(4)] == [3] * 4
    assert sum(drawn[i] for i in range(4, 14)) == 5
    assert [drawn[i] for i in range(14, 19)] == [1] * 5
    assert seen(mixed, 2) == Counter({i: 6 if i < 4 else 1 if i < 14 else 2 for i in range(19)})
    assert mixed.describe() == [
        "an epoch has 22 pairs; how often it has each pair, by file: 0.tsv 3, 1.tsv 0.5, 2.tsv 1"
    ]


@pytest.mark.parametrize("weight", ["0.3", "0.77", "1.41", "2.5", "0.001"])
def test_over_epochs_all_pairs_are_seen_equally_often(weight: str) -> None:
    mixed = mixture(weight, "1", counts=[37, 5])
    for epochs in (1, 7, 40):
        counts = seen(mixed, epochs)
        often = [counts[i] for i in range(37)]
        assert max(often) - min(often) <= 1
        assert abs(sum(often) - epochs * float(weight) * 37) <= 1
    assert mixed.epoch(3).tolist() == mixed.epoch(3).tolist()
    assert mixed.epoch(0).dtype == np.uint32


def test_draws_differ_by_seed_and_file() -> None:
    config = DataConfig(train=[PairsFile(file=Path(name), weight=0.5) for name in "ab"])
    one, two = (Mixture(config, [40, 40], seed).epoch(0) for seed in (1, 2))
    assert one.tolist() != two.tolist()
    assert (one[:20]).tolist() != (one[20:] - 40).tolist()


@pytest.mark.parametrize(
    ("temperature", "shares"), [(1, [0.9, 0.09, 0.01]), (2, [0.7035, 0.2225, 0.0742]), (1e9, [1 / 3] * 3)]
)
def test_temperature_evens_out_languages(temperature: float, shares: list[float]) -> None:
    # The first language has two files, one of which has a weight.
    mixed = mixture("de:1", "de:2", "fr:1", "is:1", counts=[5000, 2000, 900, 100], temperature=temperature)
    sizes = [rate * count for rate, count in zip(mixed.rates, mixed.counts, strict=True)]
    assert sum(sizes) == pytest.approx(10_000)
    assert [size / 10_000 for size in (sizes[0] + sizes[1], *sizes[2:])] == pytest.approx(shares, abs=1e-3)
    assert mixed.rates[1] == pytest.approx(2 * mixed.rates[0])
    assert len(mixed.epoch(0)) == pytest.approx(10_000, abs=4)
    assert not mixed.even, "a file has a weight"


def test_temperature_of_files_and_a_file_that_is_empty() -> None:
    mixed = mixture("1", "1", "1", counts=[900, 0, 100], temperature=2)
    assert [round(rate * count) for rate, count in zip(mixed.rates, mixed.counts, strict=True)] == [750, 0, 250]
    assert len(mixed.epoch(0)) == 1000


def test_the_mixture_of_a_run(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.tsv").write_text("".join(f"{name} {n}\t{name} {n}\n" for n in range(50)))
    files = f"data.train=[{{file: {tmp_path / 'a.tsv'}, weight: 3}}, {tmp_path / 'b.tsv'}]"
    limits = "model.max_source_length=9", "model.max_target_length=9"
    recipe = load_recipe(TINY, [*SMALL, files, "data.dev_held_out_sources=0", *limits])
    shown: list[str] = []
    run = tmp_path / "run"
    run.mkdir()
    data = prepare(recipe, run, shown.append)
    pairs = data.epochs.block(0, 0)
    texts = Counter(data.tokenizers.source.decode(pairs[i].source)[0] for i in range(len(pairs)))
    assert texts == {"a": 150, "b": 50}
    assert shown[-1] == "an epoch has 200 pairs; how often it has each pair, by file: a.tsv 3, b.tsv 1"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.train=[{file: a, weight: 0}]", "data.train.0.weight: expected more than 0.0, but got 0"),
        ("data.train=[{source: a, target: b, weight: -1}]", "data.train.0.weight: expected more than 0.0, but got -1"),
        ("data.test=[{file: a, weight: 2}]", "data: test: a has a weight, which only files of train may have"),
        ("data.temperature=0.5", "data.temperature: expected at least 1.0, but got 0.5"),
    ],
)
def test_refused_mixtures(override: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(TINY, [override])
    assert message in str(error.value)


def test_weights_cannot_change_in_a_run(tmp_path: Path) -> None:
    file, run = small_recipe().data.train[0], tmp_path / "run"
    run_training(small_recipe("training.steps=3"), run)
    same = small_recipe("training.steps=3", f"data.train=[{{file: {file}}}]")
    assert run_training(same, run, resume=True)[0].finished
    with pytest.raises(TrainingError, match=r"data\.train\.weight was null and is \[2\.0\]; --resume can only"):
        run_training(small_recipe("training.steps=3", f"data.train=[{{file: {file}, weight: 2}}]"), run, resume=True)
