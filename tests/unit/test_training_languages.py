"""Corpora of several target languages: their tokens in sources, tokenizers and changed pairs."""

from pathlib import Path

import pytest

from dragoman_training.data.bad_lines import BadLines
from dragoman_training.data.corpus import read_pairs
from dragoman_training.data.languages import named_languages, split_language, with_language
from dragoman_training.data.prepare import TrainingData, prepare
from dragoman_training.errors import DataError, RecipeError
from dragoman_training.recipe import DataFile, PairsFile, ParallelFiles, Recipe, load_recipe
from tests.support.training import TINY

SUBWORDS = "{joint: true, source: {kind: bpe, vocabulary: 400, bpe_dropout: 0.3, byte_dropout: 0.3}}"


def multilingual(folder: Path, tokenizers: str, *overrides: str) -> Recipe:
    """Numbers and their words in two languages."""
    entries = []
    for code, word in (("de", "Nummer"), ("en", "number")):
        file = folder / f"{code}.tsv"
        file.write_text("".join(f"No {n:03}\t{word} {n:03}\n" for n in range(200)))
        entries.append(f"{{file: {file}, target_language: {code}}}")
    data = f"data={{train: [{', '.join(entries)}], dev_held_out_sources: 20}}"
    limits = "model.max_source_length=40", "model.max_target_length=40"
    return load_recipe(TINY, [data, f"tokenizers={tokenizers}", *limits, *overrides])


def prepared(recipe: Recipe, run: Path) -> TrainingData:
    run.mkdir()
    return prepare(recipe, run, lambda line: None)


@pytest.mark.parametrize(
    "tokenizers",
    [
        "{source: {kind: characters}, target: {kind: symbols}}",
        "{source: {kind: symbols, invisible: keep}}",
        SUBWORDS,
        "{source: {kind: unigram, vocabulary: 400}}",
    ],
)
def test_a_source_starts_with_the_token_of_its_language(tokenizers: str, tmp_path: Path) -> None:
    data = prepared(multilingual(tmp_path, tokenizers), tmp_path / "run")
    tokenizer = data.tokenizers.source
    assert {pair.source.partition(" ")[0] for pair in data.dev_pairs} == {"<2de>", "<2en>"}
    for code in ("de", "en"):
        token = tokenizer.token_to_id(f"<2{code}>")
        assert tokenizer.encode(f"<2{code}> No 007").ids == [token, *tokenizer.encode("No 007").ids]
        assert any(pair.source[0] == token for pair in data.train)
    # The tokens leave nothing else in the vocabulary.
    assert not [piece for piece in tokenizer.get_vocab() if "<2" in piece and piece not in ("<2de>", "<2en>")]


def test_changed_pairs_keep_their_language(tmp_path: Path) -> None:
    recipe = multilingual(tmp_path, SUBWORDS, "augmentation.inserts=0.5", "augmentation.uppercase=0.5")
    data = prepared(recipe, tmp_path / "run")
    block = data.epochs.block(0, 0)
    changed = [block[i] for i in range(len(block))]
    assert sum(pair != plain for pair, plain in zip(changed, data.train, strict=True)) > 200
    tokens = {data.tokenizers.source.token_to_id(f"<2{code}>") for code in ("de", "en")}
    for pair, plain in zip(changed, data.train, strict=True):
        assert pair.source[0] == plain.source[0]
        assert not tokens & {*pair.source[1:], *pair.target}
    with pytest.raises(RecipeError, match=r"augmentation\.concatenated would mix the languages of data"):
        multilingual(tmp_path, SUBWORDS, "augmentation.concatenated=0.1")


def test_the_token_counts_once_for_the_limit(tmp_path: Path) -> None:
    """No 007 has six characters, and the end token one more."""
    tokenizers = "{source: {kind: characters}, target: {kind: symbols}}"
    data = prepared(multilingual(tmp_path, tokenizers, "model.max_source_length=8"), tmp_path / "run")
    assert len(data.train) == 380
    with pytest.raises(DataError, match=r"the source has 8 tokens, model\.max_source_length is 7"):
        prepared(multilingual(tmp_path, tokenizers, "model.max_source_length=7"), tmp_path / "short")


def test_tokens_of_languages_are_reserved(tmp_path: Path) -> None:
    file, other = tmp_path / "a.tsv", tmp_path / "b"
    file.write_text("eins\tone\nzwei\t<2en> two\n<2fr> drei\tthree\n")
    other.write_text("x\ny\nz\n")
    bad = BadLines("skip")
    entries: list[DataFile] = [
        PairsFile(file=file, target_language="en"),
        ParallelFiles(source=other, target=other, target_language="de"),
    ]
    sources = [pair.source for pair in read_pairs(entries, bad)]
    assert sources == ["<2en> eins", "<2en> <2fr> drei", "<2de> x", "<2de> y", "<2de> z"]
    assert [str(line) for line in bad.lines] == [f"{file}:2: the target contains the reserved token <2en>"]


def test_only_languages_of_the_data_are_split_off() -> None:
    assert split_language(with_language("eins", "de"), ["de"]) == ("<2de> ", "eins")
    assert split_language("<2fr> eins", ["de"]) == ("", "<2fr> eins")
    assert split_language("<2de> eins", []) == ("", "<2de> eins")
    assert with_language("eins", None) == "eins"
    both = with_language("eins", "de", "en")
    assert split_language(both, ["de", "en"]) == ("<1en> <2de> ", "eins")
    assert named_languages("<1en> <2de> ") == ("en", "de")
    assert split_language(both, ["de"]) == ("", both)
    assert split_language(with_language("eins", None, "en"), ["en"]) == ("<1en> ", "eins")
    assert named_languages("<1en> ") == ("en", None)


def test_only_imported_models_have_source_languages() -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(TINY, ["data.train=[{file: x.tsv, source_language: en}]", "data.test=null"])
    assert "source_language is only for imported models; tokenizers.source.kind is not imported" in str(error.value)
    with pytest.raises(RecipeError) as error:
        load_recipe(TINY, ["data.train=[{file: x.tsv, source_language: en}, y.tsv]"])
    assert "train: y.tsv has no source_language; all files need one if one of train has" in str(error.value)
