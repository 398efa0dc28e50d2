"""What a corpus's lines that are left out shape, which is nothing, and what is said of them."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from dragoman_training.data.pairs import read_pairs_file
from dragoman_training.data.prepare import TrainingData, prepare
from dragoman_training.data.tokenizers import MAX_PIECE_LENGTH, load_tokenizer, train_tokenizer
from dragoman_training.errors import DataError, RecipeError
from dragoman_training.recipe import SHIPPED_RECIPES, ParallelFiles, Recipe, TokenizerConfig, load_recipe

KINDS = ["characters", "symbols", "bpe", "unigram"]


def recipe(train: Path, *overrides: str, kind: str = "characters", vocabulary: int = 400) -> Recipe:
    tokenizers = f"tokenizers={{source: {{kind: {kind}, vocabulary: {vocabulary}}}}}"
    changes = [f"data.train=[{train}]", "data.dev_held_out_sources=5", "data.test=null", "data.on_bad_line=skip"]
    return load_recipe(SHIPPED_RECIPES / "tiny.yaml", [*changes, tokenizers, *overrides])


def prepared(folder: Path, name: str, lines: list[str], *overrides: str, kind: str) -> TrainingData:
    file, run = folder / f"{name}.tsv", folder / name
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run.mkdir()
    return prepare(recipe(file, *overrides, kind=kind), run, lambda line: None)


def vocabularies(data: TrainingData) -> list[set[str]]:
    def known(tokenizer: Tokenizer) -> set[str]:
        return set(tokenizer.get_vocab())

    return [known(data.source_tokenizer), known(data.target_tokenizer)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_that_is_left_out_shapes_nothing(kind: str, tmp_path: Path) -> None:
    draw = random.Random(1)
    sound = [f"{n}\tthe {n % 7} cats" for n in range(60)]
    # Far beyond the limits, and within what no rule from before the tokenizers can tell.
    wide = "".join(draw.choice("αβγδεζηθικλμ ") for _ in range(200_000)) + " and"
    short = " ".join(draw.choice("άέήίόύώ") * 2 for _ in range(15))
    odd = [f"{wide}\tthe cat", f"1\t{wide}", f"{short}\tthe cat", f"2\t{short} {short}"]
    limits = "model.max_source_length=14", "model.max_target_length=24"
    clean = prepared(tmp_path, "clean", sound, *limits, kind=kind)
    mixed = prepared(tmp_path, "mixed", odd[:2] + sound + odd[2:], *limits, kind=kind)
    assert (tmp_path / "mixed" / "bad_lines.txt").read_text().count("model.max_") == len(odd)
    assert [pair[:2] for pair in mixed.dev_pairs] == [pair[:2] for pair in clean.dev_pairs]
    assert vocabularies(mixed) == vocabularies(clean)
    assert len(mixed.train) == len(clean.train)


def test_no_piece_is_longer_than_the_limits_count_with() -> None:
    texts = ["donaudampfschifffahrtsgesellschaftskapitän", "bundesverfassungsgerichtsentscheidung"] * 50
    for kind in ("bpe", "unigram"):
        tokenizer = train_tokenizer(TokenizerConfig.model_validate({"kind": kind}), texts)
        assert max(len(piece) for piece in tokenizer.get_vocab()) <= MAX_PIECE_LENGTH


def test_a_word_without_end_does_not_kill_the_learning() -> None:
    """In a process of its own: `tokenizers` overflowed its stack, which no exception tells."""
    learn = (
        "import random; from dragoman_training.data.tokenizers import train_tokenizer\n"
        "from dragoman_training.recipe import *\n"
        "word = ''.join(chr(0x4e00 + random.randrange(3000)) for _ in range(100_000))\n"
        "train_tokenizer(TokenizerConfig(kind='unigram'), [word, 'a b c'])"
    )
    done = subprocess.run([sys.executable, "-c", learn], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("joint", [False, True])
def test_a_unigram_vocabulary_below_the_alphabet_is_told_the_least_that_works(joint: bool, tmp_path: Path) -> None:
    characters = [chr(0x4E00 + n) for n in range(300)]
    file, run = tmp_path / "han.tsv", tmp_path / "run"
    file.write_text("".join(f"{n}\t{''.join(characters[n : n + 3])}\n" for n in range(298)), encoding="utf-8")
    run.mkdir()
    side = "source" if joint else "target"
    tokenizers = (
        "{joint: true, source: {kind: unigram, vocabulary: %d}}"
        if joint
        else "{source: {kind: characters}, target: {kind: unigram, vocabulary: %d}}"
    )
    longer, longest = "model.max_source_length=40", "model.max_target_length=40"

    def attempt(vocabulary: int) -> TrainingData:
        overrides = f"tokenizers={tokenizers % vocabulary}", "data.dev_held_out_sources=0", longer, longest
        return prepare(recipe(file, *overrides), run, lambda line: None)

    with pytest.raises(DataError, match=rf"tokenizers\.{side}\.vocabulary \(400\) is too small for unigram") as error:
        attempt(400)
    least = int(str(error.value).rpartition(" ")[2])
    assert not list(run.iterdir())
    with pytest.raises(DataError, match=f"at least {least}$"):
        attempt(least - 1)
    attempt(least)
    assert load_tokenizer(run / "target_tokenizer.json").get_vocab_size() >= least


def test_what_tokenizers_raises_is_a_sentence() -> None:
    """Here a TypeError, "must be real number, not NoneType"."""
    with pytest.raises(
        DataError, match=r"tokenizers\.target: no unigram tokenizer can be trained on the training data"
    ):
        train_tokenizer(TokenizerConfig(kind="unigram"), [""], "tokenizers.target")


def test_a_vocabulary_that_no_memory_holds(tmp_path: Path) -> None:
    """`tokenizers` sets its room aside at once, and panics."""
    with pytest.raises(RecipeError, match=r"tokenizers\.source\.vocabulary: expected at most 1000000"):
        recipe(tmp_path / "a.tsv", kind="bpe", vocabulary=10**9)


def test_where_nothing_is_left_the_reason_is_said_and_written_down(tmp_path: Path) -> None:
    file, good, run = tmp_path / "a.tsv", tmp_path / "good.tsv", tmp_path / "run"
    file.write_text("\t1\n" + "no tab\n" * 30 + "\t1\n")
    good.write_text("".join(f"{n}\tnumber\n" for n in range(9)))
    run.mkdir()
    account = (
        f"32 line(s) of {file} are skipped (wrong_fields 30, empty_side 2); the first wrong_fields is "
        "line 2: expected source<TAB>target, found 1 field(s)"
    )
    listed = run / "bad_lines.txt"
    for name, overrides in {
        "train": [],
        "dev": [f"data.train=[{good}]", f"data.dev=[{file}]", "data.dev_held_out_sources=0"],
        "test": [f"data.train=[{good}]", f"data.test=[{file}]"],
    }.items():
        said: list[str] = []
        with pytest.raises(DataError) as error:
            prepare(recipe(file, *overrides), run, said.append)
        assert str(error.value) == f"data.{name}: no pair is left: {account}"
        assert len(listed.read_text().splitlines()) == 32
        assert f"skipped 32 bad lines (wrong_fields 30, empty_side 2); all are listed in {listed}" in said
        listed.unlink()

    both = f"data.train=[{good}, {file}]"
    with pytest.raises(DataError) as error:
        prepare(recipe(file, both, "data.dev_held_out_sources=9"), run, lambda line: None)
    assert str(error.value) == (
        f"{account}; data.dev_held_out_sources (9) leaves no training data: there are 9 distinct sources; set it lower"
    )
    good.write_text("")
    with pytest.raises(DataError, match=r"data\.train: no pair is left: its files are empty"):
        prepare(recipe(good), run, lambda line: None)


def test_a_file_that_is_skipped_as_a_whole_beside_a_good_one_is_said(tmp_path: Path) -> None:
    file, good, run = tmp_path / "a.tsv", tmp_path / "good.tsv", tmp_path / "run"
    file.write_text("no tab\n" * 3)
    good.write_text("no tab\n" + "".join(f"{n}\tnumber\n" for n in range(9)))
    run.mkdir()
    said: list[str] = []
    prepare(recipe(file, f"data.train=[{good}, {file}]"), run, said.append)
    assert [line for line in said if line.startswith("warning")] == [f"warning: every line of {file} is skipped"]


@pytest.mark.parametrize(
    ("kind", "said"),
    [("characters", "has 15 tokens"), ("bpe", r"has \d+ tokens"), ("unigram", r"has \d+ tokens")],
)
def test_a_set_that_is_too_long_as_a_whole(kind: str, said: str, tmp_path: Path) -> None:
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefgh", k=14)) for _ in range(200)]
    options = "model.max_source_length=3", "model.max_target_length=40", "data.dev_held_out_sources=0"
    with pytest.raises(
        DataError, match=rf"data\.train: no pair is left: 200 line.*\(too_long 200\).*the source {said}"
    ):
        prepared(tmp_path, "run", [f"{word}\tword" for word in words], *options, kind=kind)


def test_dev_comes_back_with_its_tabs(tmp_path: Path) -> None:
    source, target, run = tmp_path / "a.src", tmp_path / "a.trg", tmp_path / "run"
    source.write_text("".join(f"{n}\n" for n in range(60)))
    target.write_text("".join(f"the\tnumber \\t{n}\n" for n in range(60)))
    run.mkdir()
    whole = recipe(source)
    files = whole.data.model_copy(update={"train": [ParallelFiles(source=source, target=target)]})
    data = prepare(whole.model_copy(update={"data": files}), run, lambda line: None)
    assert len(data.dev_pairs) == 5
    assert [pair[:2] for pair in read_pairs_file(run / "dev.tsv")] == [pair[:2] for pair in data.dev_pairs]
