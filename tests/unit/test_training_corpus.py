"""Reading pairs: every kind of bad line, with file and line number."""

import gzip
import json
from pathlib import Path

import pytest

from dragoman_training.data.corpus import BadLines, read_pairs
from dragoman_training.data.pairs import Pair, references
from dragoman_training.data.prepare import prepare, read_splits
from dragoman_training.data.tokenizers import empty_tokenizer
from dragoman_training.errors import DataError
from dragoman_training.recipe import SHIPPED_RECIPES, ParallelFiles, Recipe, TokenizerConfig, load_recipe


def sides(file: Path | ParallelFiles, bad: BadLines | None = None) -> list[tuple[str, str]]:
    return [pair[:2] for pair in read_pairs([file], bad or BadLines("refuse"))]


def test_tab_separated_and_gzip(tmp_path: Path) -> None:
    content = "\ufeffein\tone\r\nzwei Wörter\ttwo words\n  drei\tthree".encode()
    plain, packed = tmp_path / "a.tsv", tmp_path / "a.tsv.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    expected = [("ein", "one"), ("zwei Wörter", "two words"), ("  drei", "three")]
    assert sides(plain) == sides(packed) == expected
    assert read_pairs([plain], BadLines("refuse"))[1].line == 2


def test_parallel_files(tmp_path: Path) -> None:
    source, target = tmp_path / "a.de.gz", tmp_path / "a.en"
    source.write_bytes(gzip.compress(b"ein\nzwei\n"))
    target.write_text("one\ttab stays\ntwo\n")
    assert sides(ParallelFiles(source=source, target=target)) == [("ein", "one\ttab stays"), ("zwei", "two")]
    target.write_text("one\n")
    with pytest.raises(DataError, match=r"a\.en ends after 1 lines but .*a\.de\.gz goes on"):
        sides(ParallelFiles(source=source, target=target))


BAD = [
    (b"no tab", "wrong_fields", "expected source<TAB>target, found 1 field(s)"),
    (b"a\tb\tc", "wrong_fields", "expected source<TAB>target, found 3 field(s)"),
    (b"", "wrong_fields", "found 1 field(s)"),
    (b"\tb", "empty_side", "the source is empty"),
    (b"a\t \xe2\x80\x83", "empty_side", "the target is empty"),
    (b"ab\xff\tb", "bad_utf8", "not valid UTF-8 at byte 3 of the line"),
    (b"a\tb </s>", "reserved_token", "the target contains the reserved token </s>"),
]


@pytest.mark.parametrize(("line", "kind", "message"), BAD)
def test_bad_lines(line: bytes, kind: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(b"good\tgood\n" + line + b"\ngood\tgood\n")
    skipping = BadLines("skip")
    assert sides(file, skipping) == [("good", "good")] * 2
    assert skipping.counts == {kind: 1}
    assert skipping.messages[0].startswith(f"{file}:2: ")
    assert message in skipping.messages[0]
    with pytest.raises(DataError) as error:
        sides(file)
    assert f"{file}:2: " in str(error.value)
    assert message in str(error.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.tsv: no such data file"):
        sides(tmp_path / "none.tsv")
    with pytest.raises(DataError, match="cannot be read"):
        sides(tmp_path)
    cut = tmp_path / "cut.tsv.gz"
    cut.write_bytes(gzip.compress(b"a\tb\n" * 1000)[:-9])
    with pytest.raises(DataError, match=r"cut\.tsv\.gz: cannot be read"):
        sides(cut)
    cut.write_text("not packed")
    with pytest.raises(DataError, match=r"cut\.tsv\.gz: cannot be read"):
        sides(cut)


def small_recipe(folder: Path, *overrides: str) -> Recipe:
    (folder / "train.tsv").write_text("".join(f"{n}\tnumber {n % 3}\n{n}\tnumber\n" for n in range(50)))
    changes = [f"data.train=[{folder / 'train.tsv'}]", "data.dev_held_out_sources=10", "data.test=null", *overrides]
    return load_recipe(SHIPPED_RECIPES / "tiny.yaml", changes)


def targets(pairs: list[Pair]) -> dict[str, list[str]]:
    reader = empty_tokenizer(TokenizerConfig(kind="symbols"))
    return references(pairs, reader, reader)


def test_dev_is_held_out_by_source_and_seed(tmp_path: Path) -> None:
    splits = read_splits(small_recipe(tmp_path), BadLines("refuse"))
    dev, train = targets(splits.dev), targets(splits.train)
    assert len(dev) == 10
    assert len(train) == 40
    assert not dev.keys() & train.keys()
    assert all(len(targets) == 2 for targets in dev.values())
    again = read_splits(small_recipe(tmp_path), BadLines("refuse"))
    assert again == splits
    assert targets(read_splits(small_recipe(tmp_path, "seed=2"), BadLines("refuse")).dev) != dev


def test_held_out_set_must_leave_something(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"dev_held_out_sources \(50\) leaves no training data"):
        read_splits(small_recipe(tmp_path, "data.dev_held_out_sources=50"), BadLines("refuse"))


TWINS = ["caf\u00e9 {}", "cafe\u0301 {}", "CAF\u00c9 {}", " caf\u00e9  {}", "ca\u00adf\u00e9\u00a0{}"]


def test_all_spellings_of_a_source_are_held_out_together(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, "tokenizers.source.lowercase=true")
    (tmp_path / "train.tsv").write_text("".join(f"{twin.format(n)}\tnumber\n" for n in range(50) for twin in TWINS))
    splits = read_splits(recipe, BadLines("refuse"))
    numbers = [{pair.source[-2:] for pair in pairs} for pairs in (splits.dev, splits.train)]
    assert not numbers[0] & numbers[1]
    assert [len(splits.dev), len(splits.train)] == [50, 200]


@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_sources_of_dev_and_test_are_left_out_of_training(policy: str, tmp_path: Path) -> None:
    for name, text in (("dev", "7 \tnumber\n100\tnumber\n"), ("test", "\u200b8\ta number\n9\tnumber\n9\ttwo\n")):
        (tmp_path / f"{name}.tsv").write_text(text)
    sets = [f"data.dev=[{tmp_path / 'dev.tsv'}]", f"data.test=[{tmp_path / 'test.tsv'}]"]
    recipe = small_recipe(tmp_path, "data.dev_held_out_sources=0", *sets, f"data.overlap={policy}")
    run = tmp_path / "run"
    run.mkdir()
    said: list[str] = []
    data = prepare(recipe, run, said.append)
    assert len(data.train) == (100 if policy == "keep" else 94)
    assert json.loads((run / "data.json").read_text())["overlap"] == {"dev": 1, "test": 2}
    told = "left out of training" if policy == "drop" else "are trained on"
    assert [told in line for line in said if "of data.test are in data.train too" in line] == [True]


def test_a_test_set_that_is_the_training_set_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"every source is in dev or test too; set data\.overlap: keep"):
        read_splits(
            small_recipe(tmp_path, f"data.test=[{tmp_path / 'train.tsv'}]", "data.dev_held_out_sources=0"),
            BadLines("refuse"),
        )


def test_over_long_pairs_are_skipped_and_listed(tmp_path: Path) -> None:
    recipe = small_recipe(tmp_path, "data.on_bad_line=skip", "model.max_source_length=3", "model.max_target_length=2")
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("100\tnumber\n7\tone two three\n")
    run = tmp_path / "run"
    run.mkdir()
    said: list[str] = []
    data = prepare(recipe, run, said.append)
    assert all(len(pair.source) <= 3 and len(pair.target) <= 3 for pair in data.train)
    listed = (run / "bad_lines.txt").read_text()
    assert "train.tsv:101: the source has 4 tokens, model.max_source_length is 3" in listed
    assert "train.tsv:102: the target has 3 tokens, model.max_target_length is 2" in listed
    assert any("skipped 2 bad lines (too_long 2)" in line for line in said)
    with pytest.raises(DataError, match=r"train\.tsv:101: the source has 4 tokens"):
        prepare(
            recipe.model_copy(update={"data": recipe.data.model_copy(update={"on_bad_line": "refuse"})}), run, print
        )


def test_a_run_keeps_to_its_data(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    recipe = small_recipe(tmp_path)
    prepare(recipe, run, print)
    prepare(recipe, run, print)
    with (tmp_path / "train.tsv").open("a") as file:
        file.write("100\tnumber\n")
    with pytest.raises(DataError, match="differs from what the run was started with"):
        prepare(recipe, run, print)


def test_the_tiny_corpus_is_right() -> None:
    names = dict(read[:2] for read in read_pairs([SHIPPED_RECIPES / "numbers.train.tsv"], BadLines("refuse")))
    tests = dict(read[:2] for read in read_pairs([SHIPPED_RECIPES / "numbers.test.tsv"], BadLines("refuse")))
    assert not names.keys() & tests.keys()
    for number, name in {**names, **tests}.items():
        thousands, rest = divmod(int(number), 1000)
        if thousands:
            assert name == names[str(thousands)] + " thousand" + (f" {named(rest, names)}" if rest else "")
        else:
            assert name == named(rest, names)


def named(number: int, names: dict[str, str]) -> str:
    """Below a thousand, from the names below a hundred, which the training data holds all."""
    hundreds, rest = divmod(number, 100)
    if not hundreds:
        return names[str(rest)]
    return names[str(hundreds)] + " hundred" + (f" {names[str(rest)]}" if rest else "")
