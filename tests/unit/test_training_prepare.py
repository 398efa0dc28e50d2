"""Preparing data: splits by source, length limits, skipped lines that affect nothing, and errors that explain."""

import json
import random
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from dragoman_training.data.bad_lines import BadLines
from dragoman_training.data.pairs import Pair, read_pairs_file, references
from dragoman_training.data.prepare import TrainingData, prepare
from dragoman_training.data.reading import PairReader
from dragoman_training.data.splits import read_splits, training_pairs
from dragoman_training.data.tokenizers import empty_tokenizer, load_tokenizer
from dragoman_training.errors import DataError
from dragoman_training.recipe import ParallelFiles, Recipe, TokenizerConfig, load_recipe
from tests.support.training import TINY


def prepared(recipe: Recipe, run: Path) -> tuple[TrainingData, list[str]]:
    """Returns the data and the lines that were shown."""
    run.mkdir(exist_ok=True)
    shown: list[str] = []
    return prepare(recipe, run, shown.append), shown


def refusal(recipe: Recipe, run: Path) -> str:
    with pytest.raises(DataError) as error:
        prepared(recipe, run)
    return str(error.value)


def write_lines(file: Path, lines: list[str]) -> Path:
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


# Splits


def numbers_recipe(folder: Path, *overrides: str) -> Recipe:
    """Fifty sources with two targets each, ten of them held out."""
    train = write_lines(folder / "train.tsv", [line for n in range(50) for line in (f"{n}\tn {n % 3}", f"{n}\tnumber")])
    return load_recipe(TINY, [f"data.train=[{train}]", "data.dev_held_out_sources=10", "data.test=null", *overrides])


class Divided(NamedTuple):
    train: list[Pair]
    dev: list[Pair]
    overlapping_targets: dict[str, int]


def split(recipe: Recipe) -> Divided:
    with tempfile.TemporaryDirectory() as folder:
        splits = read_splits(PairReader(recipe), Path(folder), BadLines("refuse"))
        parts = zip(splits.shards, splits.parts(splits.train), strict=True)
        train = [pair for shard, mask in parts for pair in shard.pairs(recipe.data.train, mask)]
    return Divided(train, splits.dev, splits.overlapping_targets)


def by_source(pairs: list[Pair]) -> dict[str, list[str]]:
    tokenizer = empty_tokenizer(TokenizerConfig(kind="symbols"))
    return references(pairs, tokenizer, tokenizer)


def test_dev_is_drawn_by_source_and_seed(tmp_path: Path) -> None:
    splits = split(numbers_recipe(tmp_path))
    dev, train = by_source(splits.dev), by_source(splits.train)
    assert (len(dev), len(train)) == (10, 40)
    assert not dev.keys() & train.keys()
    assert all(len(targets) == 2 for targets in dev.values())
    assert split(numbers_recipe(tmp_path)) == splits
    assert by_source(split(numbers_recipe(tmp_path, "seed=2")).dev) != dev
    with pytest.raises(DataError, match=r"dev_held_out_sources \(50\) leaves no training data"):
        split(numbers_recipe(tmp_path, "data.dev_held_out_sources=50"))


def test_some_training_pairs_are_evenly_spaced(tmp_path: Path) -> None:
    recipe = numbers_recipe(tmp_path, "data.dev_held_out_sources=0")
    everything, some = (training_pairs(PairReader(recipe), tmp_path, most) for most in (100, 7))
    assert everything == split(recipe).train
    assert some == [everything[i * 100 // 7] for i in range(7)]


def test_all_spellings_of_a_source_are_held_out_together(tmp_path: Path) -> None:
    spellings = ["caf\u00e9 {}", "cafe\u0301 {}", "CAF\u00c9 {}", " caf\u00e9  {}", "ca\u00adf\u00e9\u00a0{}"]
    recipe = numbers_recipe(tmp_path, "tokenizers.source.lowercase=true")
    write_lines(tmp_path / "train.tsv", [f"{s.format(n)}\tnumber" for n in range(50) for s in spellings])
    splits = split(recipe)
    numbers = [{pair.source[-2:] for pair in pairs} for pairs in (splits.dev, splits.train)]
    assert not numbers[0] & numbers[1]
    assert [len(splits.dev), len(splits.train)] == [50, 200]


@pytest.mark.parametrize(("policy", "pairs", "notice"), [("drop", 94, "left out"), ("keep", 100, "are trained on")])
def test_overlap_with_dev_and_test(policy: str, pairs: int, notice: str, tmp_path: Path) -> None:
    dev = write_lines(tmp_path / "dev.tsv", ["7 \tnumber", "100\tnumber"])
    test = write_lines(tmp_path / "test.tsv", ["\u200b8\ta number", "9\tnumber", "9\ttwo"])
    splits = f"data.dev=[{dev}]", f"data.test=[{test}]", "data.dev_held_out_sources=0"
    data, shown = prepared(numbers_recipe(tmp_path, *splits, f"data.overlap={policy}"), tmp_path / "run")
    assert len(data.train) == pairs
    assert json.loads((tmp_path / "run" / "data.json").read_text())["overlap"] == {"dev": 1, "test": 2}
    assert [notice in line for line in shown if "of data.test are in data.train too" in line] == [True]


@pytest.mark.parametrize(("policy", "pairs"), [("drop", 31), ("keep", 47)])
def test_overlap_by_target(policy: str, pairs: int, tmp_path: Path) -> None:
    dev = write_lines(tmp_path / "dev.tsv", ["777\tn 1 "])
    train = write_lines(tmp_path / "train.tsv", [f"{n}\tn {n % 3}" for n in range(47)])
    options = f"data.train=[{train}]", f"data.dev=[{dev}]", "data.dev_held_out_sources=0", "data.overlap_by=either"
    recipe = load_recipe(TINY, [*options, "data.test=null", f"data.overlap={policy}"])
    data, shown = prepared(recipe, tmp_path / "run")
    assert len(data.train) == pairs
    recorded = json.loads((tmp_path / "run" / "data.json").read_text())
    assert (recorded["overlap"], recorded["overlapping_targets"]) == ({"dev": 0, "test": 0}, {"dev": 1, "test": 0})
    assert any(
        line.startswith(("1 ", "warning: 1 ")) and "distinct targets of data.dev are in" in line for line in shown
    )


def test_targets_of_a_drawn_dev_set_leave_training(tmp_path: Path) -> None:
    train = write_lines(tmp_path / "train.tsv", [f"{n}\tn {n // 2}" for n in range(100)])
    options = f"data.train=[{train}]", "data.dev_held_out_sources=9", "data.test=null", "data.overlap_by=either"
    splits = split(load_recipe(TINY, options))
    assert not {pair.target for pair in splits.dev} & {pair.target for pair in splits.train}
    assert splits.overlapping_targets["dev"] > 0
    assert len(splits.train) == 100 - 9 - splits.overlapping_targets["dev"]


def test_filters_count_what_they_leave_out(tmp_path: Path) -> None:
    lines = ["one two\tzwei", "one  two\tzwei ", "one two\tdrei", "a\tbbbb", "a\tbbbbb", "ccccc\td", "e\tf", "e\tf"]
    train = write_lines(tmp_path / "train.tsv", lines)
    options = f"data.train=[{train}]", "data.dev_held_out_sources=0", "data.test=null"
    filters = "data.duplicates=drop", "data.max_length_ratio=4"
    data, shown = prepared(load_recipe(TINY, [*options, *filters, "training.patience=null"]), tmp_path / "run")
    assert len(data.train) == 4
    assert "left out 2 pairs with one side more than 4 times as long as the other (data.max_length_ratio)" in shown
    assert "left out 2 pairs that are in train already (data.duplicates: drop)" in shown
    recorded = json.loads((tmp_path / "run" / "data.json").read_text())
    assert recorded["filtered"] == {"length_ratio": 2, "duplicates": 2}
    write_lines(train, ["a\tbbbbb"])
    message = refusal(load_recipe(TINY, [*options, *filters]), tmp_path / "other")
    assert message == "data.train: no pair is left: data.max_length_ratio (4) leaves out all 1"


def test_test_set_equal_to_train_leaves_nothing(tmp_path: Path) -> None:
    recipe = numbers_recipe(tmp_path, f"data.test=[{tmp_path / 'train.tsv'}]", "data.dev_held_out_sources=0")
    with pytest.raises(DataError, match=r"every source is also in dev or test; set data\.overlap: keep"):
        split(recipe)


def test_a_run_cannot_resume_with_other_data(tmp_path: Path) -> None:
    recipe = numbers_recipe(tmp_path)
    prepared(recipe, tmp_path / "run")
    prepared(recipe, tmp_path / "run")
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("100\tnumber\n")
    assert "the training data differs from what the run was started with" in refusal(recipe, tmp_path / "run")


def test_a_run_cannot_resume_with_another_dev_set(tmp_path: Path) -> None:
    """Its metrics would be compared with those of the old one, to choose checkpoints and to end the run."""
    dev, test = tmp_path / "dev.tsv", tmp_path / "test.tsv"
    options = "data.dev_held_out_sources=0", f"data.dev=[{dev}]", f"data.test=[{test}]"
    for file in (dev, test):
        write_lines(file, ["777\tseven"])
    recipe, run = numbers_recipe(tmp_path, *options), tmp_path / "run"
    prepared(recipe, run)
    write_lines(test, ["778\tseven"])
    prepared(recipe, run)
    write_lines(dev, ["779\tseven"])
    assert "the dev data differs from what the run was started with" in refusal(recipe, run)


def test_dev_round_trips_with_tabs(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.src", [str(n) for n in range(60)])
    target = write_lines(tmp_path / "a.trg", [f"the\tnumber \\t{n}" for n in range(60)])
    recipe = numbers_recipe(tmp_path)
    files = recipe.data.model_copy(update={"train": [ParallelFiles(source=source, target=target)]})
    data, _ = prepared(recipe.model_copy(update={"data": files}), tmp_path / "run")
    assert len(data.dev_pairs) == 10
    assert [pair[:2] for pair in read_pairs_file(tmp_path / "run" / "dev.tsv")] == [pair[:2] for pair in data.dev_pairs]


# Skipped lines


def skipping_recipe(train: Path, *overrides: str, kind: str = "characters") -> Recipe:
    tokenizers = f"tokenizers={{source: {{kind: {kind}, vocabulary: 400}}}}"
    options = [f"data.train=[{train}]", "data.dev_held_out_sources=5", "data.test=null", "data.on_bad_line=skip"]
    return load_recipe(TINY, [*options, tokenizers, *overrides])


def test_overlong_pairs_are_skipped_and_listed(tmp_path: Path) -> None:
    limits = "model.max_source_length=3", "model.max_target_length=2"
    recipe = numbers_recipe(tmp_path, "data.on_bad_line=skip", *limits)
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("100\tnumber\n7\tone two three\n")
    data, shown = prepared(recipe, tmp_path / "run")
    assert all(len(pair.source) <= 3 and len(pair.target) <= 3 for pair in data.train)
    listed = (tmp_path / "run" / "bad_lines.txt").read_text()
    assert "train.tsv:101: the source has 4 tokens, model.max_source_length is 3" in listed
    assert "train.tsv:102: the target has 3 tokens, model.max_target_length is 2" in listed
    assert any("skipped 2 bad lines (too_long 2)" in line for line in shown)
    refusing = recipe.model_copy(update={"data": recipe.data.model_copy(update={"on_bad_line": "refuse"})})
    assert "train.tsv:101: the source has 4 tokens" in refusal(refusing, tmp_path / "run")


def prepare_with_and_without(bad: list[str], folder: Path, *overrides: str, kind: str) -> list[TrainingData]:
    """Returns the data prepared from good lines alone, and from good and bad lines, all of which must be skipped."""
    good = [f"{n}\tthe {n % 7} cats" for n in range(60)]
    limits = "model.max_source_length=14", "model.max_target_length=24"
    prepared_data = []
    for name, lines in (("clean", good), ("mixed", bad[:2] + good + bad[2:])):
        train = write_lines(folder / f"{name}.tsv", lines)
        data, _ = prepared(skipping_recipe(train, *limits, *overrides, kind=kind), folder / name)
        prepared_data.append(data)
    assert (folder / "mixed" / "bad_lines.txt").read_text().count("model.max_") == len(bad)
    return prepared_data


def assert_same_data(one: TrainingData, two: TrainingData) -> None:
    assert [pair[:2] for pair in one.dev_pairs] == [pair[:2] for pair in two.dev_pairs]
    assert one.tokenizers.source.get_vocab().keys() == two.tokenizers.source.get_vocab().keys()
    assert one.tokenizers.target.get_vocab().keys() == two.tokenizers.target.get_vocab().keys()
    assert len(one.train) == len(two.train)


@pytest.mark.parametrize("kind", ["characters", "symbols", "bpe", "unigram"])
def test_skipped_lines_affect_nothing(kind: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    huge = "".join(rng.choice("αβγδεζηθικλμ ") for _ in range(200_000)) + " and"
    long = " ".join(rng.choice("άέήίόύώ") * 2 for _ in range(15))
    bad = [f"{huge}\tthe cat", f"1\t{huge}", f"{long}\tthe cat", f"2\t{long} {long}"]
    assert_same_data(*prepare_with_and_without(bad, tmp_path, kind=kind))


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_pairs_too_long_for_trained_tokenizers_do_not_shape_them(kind: str, tmp_path: Path) -> None:
    """The tokenizers are trained again without these pairs; their length is not known before."""
    rng = random.Random(1)
    alphabet = "άέήίόύώαβγδεζηθικλμνξοπρστυφχψωбвгджзийлмнптфцчшщ"
    bad = [" ".join("".join(rng.choices(alphabet, k=14)) for _ in range(3)) + "\tthe cat" for _ in range(20)]
    assert_same_data(*prepare_with_and_without(bad, tmp_path, "data.dev_held_out_sources=0", kind=kind))


@pytest.mark.parametrize(
    ("kind", "tokens"), [("characters", "has 15 tokens"), ("bpe", r"has \d+ tokens"), ("unigram", r"has \d+ tokens")]
)
def test_a_split_that_is_too_long(kind: str, tokens: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefgh", k=14)) for _ in range(200)]
    train = write_lines(tmp_path / "a.tsv", [f"{word}\tword" for word in words])
    options = "model.max_source_length=3", "model.max_target_length=40", "data.dev_held_out_sources=0"
    message = rf"data\.train: no pair is left: 200 line.*\(too_long 200\).*the source {tokens}"
    with pytest.raises(DataError, match=message):
        prepared(skipping_recipe(train, *options, kind=kind), tmp_path / "run")


@pytest.mark.parametrize("name", ["train", "dev", "test"])
def test_a_split_without_good_lines(name: str, tmp_path: Path) -> None:
    bad, run = write_lines(tmp_path / "a.tsv", ["\t1", *["no tab"] * 30, "\t1"]), tmp_path / "run"
    good = write_lines(tmp_path / "good.tsv", [f"{n}\tnumber" for n in range(9)])
    overrides = {
        "train": [],
        "dev": [f"data.dev=[{bad}]", "data.dev_held_out_sources=0"],
        "test": [f"data.test=[{bad}]"],
    }
    recipe = skipping_recipe(bad if name == "train" else good, *overrides[name])
    run.mkdir()
    shown: list[str] = []
    with pytest.raises(DataError) as error:
        prepare(recipe, run, shown.append)
    assert str(error.value) == (
        f"data.{name}: no pair is left: 32 line(s) of {bad} are skipped (wrong_fields 30, empty_side 2); "
        "the first wrong_fields is line 2: expected source<TAB>target, found 1 field(s)"
    )
    assert len((run / "bad_lines.txt").read_text().splitlines()) == 32
    listed = run / "bad_lines.txt"
    assert f"skipped 32 bad lines (wrong_fields 30, empty_side 2); all are listed in {listed}" in shown


def test_held_out_sources_and_skipped_lines_leave_nothing(tmp_path: Path) -> None:
    good = write_lines(tmp_path / "good.tsv", [f"{n}\tnumber" for n in range(9)])
    bad = write_lines(tmp_path / "a.tsv", ["no tab"] * 3)
    both = f"data.train=[{good}, {bad}]"
    assert refusal(skipping_recipe(good, both, "data.dev_held_out_sources=9"), tmp_path / "run") == (
        f"3 line(s) of {bad} are skipped (wrong_fields 3); the first wrong_fields is line 1: expected "
        "source<TAB>target, found 1 field(s); data.dev_held_out_sources (9) leaves no training data: "
        "there are 9 distinct sources; set it lower"
    )
    # With a good file beside it, a file without good lines is a warning.
    write_lines(good, ["no tab", *(f"{n}\tnumber" for n in range(9))])
    _, shown = prepared(skipping_recipe(good, both), tmp_path / "run")
    assert [line for line in shown if line.startswith("warning")] == [f"warning: every line of {bad} is skipped"]
    write_lines(good, [])
    assert refusal(skipping_recipe(good), tmp_path / "empty") == "data.train: no pair is left: its files are empty"


# Vocabularies


@pytest.mark.parametrize(
    ("side", "tokenizers"),
    [
        ("source", "{joint: true, source: {kind: unigram, vocabulary: %d}}"),
        ("target", "{source: {kind: characters}, target: {kind: unigram, vocabulary: %d}}"),
    ],
)
def test_minimum_vocabulary_of_unigram(side: str, tokenizers: str, tmp_path: Path) -> None:
    characters = [chr(0x4E00 + n) for n in range(300)]
    train = write_lines(tmp_path / "han.tsv", [f"{n}\t{''.join(characters[n : n + 3])}" for n in range(298)])
    lengths = "model.max_source_length=40", "model.max_target_length=40", "data.dev_held_out_sources=0"
    run = tmp_path / "run"

    def recipe(vocabulary: int) -> Recipe:
        return skipping_recipe(train, f"tokenizers={tokenizers % vocabulary}", *lengths)

    message = refusal(recipe(400), run)
    assert f"tokenizers.{side}.vocabulary (400) is too small for unigram" in message
    minimum = int(message.rpartition(" ")[2])
    assert not list(run.iterdir())
    assert refusal(recipe(minimum - 1), run).endswith(f"at least {minimum}")
    prepared(recipe(minimum), run)
    assert load_tokenizer(run / "target_tokenizer.json").get_vocab_size() >= minimum
