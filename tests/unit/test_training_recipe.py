"""Recipes: mistakes and their messages, overrides, where recipes and data are found, and saving."""

from itertools import pairwise
from pathlib import Path

import pytest

from dragoman_training.errors import RecipeError
from dragoman_training.recipe import SHIPPED_RECIPES, find_recipe, load_recipe, save_recipe

TINY = SHIPPED_RECIPES / "tiny.yaml"


@pytest.mark.parametrize("path", sorted(SHIPPED_RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_recipes_round_trip(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml") == recipe


@pytest.mark.parametrize("name", ["1e3", "1.5e-4", "010", "yes", "null", "a: b", "ü\\t'\"", "2026-01-01", " a "])
def test_any_file_name_round_trips(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(TINY)
    named = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": [Path(name)]})})
    save_recipe(named, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml").data.train == [Path(name)]


def test_the_manual_explains_every_key() -> None:
    """In g2p-en.yaml each key is below a comment; `dev`, which excludes its neighbour, is inside one."""
    lines = (SHIPPED_RECIPES / "g2p-en.yaml").read_text().splitlines()
    explained = {
        line.split(":")[0].strip() for above, line in pairwise(lines) if above.lstrip().startswith("#") and ":" in line
    }
    recipe = load_recipe(SHIPPED_RECIPES / "g2p-en.yaml")
    for section in (recipe.data, recipe.tokenizers, recipe.tokenizers.source, recipe.model, recipe.training):
        assert set(type(section).model_fields) - explained <= {"dev"}
    assert set(type(recipe.evaluation).model_fields) <= explained


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model.share_embeddings=inputs", "model.share_embeddings: inputs needs tokenizers.joint: true"),
        ("model.norm_epsilon=.inf", "model.norm_epsilon: expected"),
        ("training.stpes=3", "unknown key training.stpes (did you mean steps?)"),
        (
            "colour=red",
            "unknown key colour (known keys: seed, data, augmentation, tokenizers, model, training, evaluation)",
        ),
        ("training.steps=abc", "training.steps: expected a whole number, but got 'abc'"),
        ("training.steps=true", "training.steps: expected a whole number, but got True"),
        ("training.steps='3'", "training.steps: expected a whole number, but got '3'"),
        ("training.steps=null", "training.steps: expected a whole number, but got None"),
        ("training.steps=0", "training.steps: expected at least 1, but got 0"),
        ("training.learning_rate=.inf", "training.learning_rate: expected a finite number, but got inf"),
        ("training.betas=[1]", "training.betas.1 is missing"),
        ("training.schedule=linear", "training.schedule: expected 'inverse_square_root', 'noam', 'cosine' or"),
        ("training.decay_steps=9", "training: decay_steps has no effect with schedule: cosine; remove it"),
        ("training.average_last=9", "training: average_last (9) must not be larger than keep_checkpoints (3)"),
        ("training.warmup_steps=500", "training: warmup_steps (500) must be smaller than steps (500)"),
        ("training.average_best=2", "training: average_best and average_last are mutually exclusive"),
        ("model.heads=7", "model: d_model (64) must be divisible by heads (7)"),
        ("model.dropout=1", "model.dropout: expected less than 1.0, but got 1"),
        ("model.share_embeddings=all", "model.share_embeddings: all needs tokenizers.joint: true"),
        ("model=3", "model: expected a mapping of keys, but got 3"),
        ("tokenizers.joint=true", "tokenizers: joint: true uses one tokenizer for both sides"),
        ("tokenizers.target_bpe_dropout=0", "tokenizers: target_bpe_dropout has no effect beside target"),
        (
            "tokenizers={target_bpe_dropout: 0.1, source: {kind: characters}}",
            "tokenizers: target_bpe_dropout needs kind: bpe, not characters",
        ),
        ("tokenizers.source.vocabulary=10", "tokenizers.source.vocabulary: expected at least 400, but got 10"),
        # `tokenizers` would allocate the memory at once and abort.
        ("tokenizers.source.vocabulary=1000000000", "tokenizers.source.vocabulary: expected at most 1000000"),
        ("data.train=words.tsv", "data.train: expected a list, but got 'words.tsv'"),
        ("data.train=[3]", "data.train.0: expected a path, but got 3"),
        ("data.train=[{source: a}]", "the key data.train.0.target is missing"),
        ("data.train=[{source: a, target: b, traget: c}]", "unknown key data.train.0.traget (did you mean target?)"),
        ("data.train=[{file: a, colums: 1}]", "unknown key data.train.0.colums (did you mean columns?)"),
        ("data.train=[{file: 1}]", "data.train.0.file: expected a path, but got 1"),
        ("data.columns={source: 0, target: 1}", "data.columns.source: expected at least 1, but got 0"),
        ("data.columns={source: [], target: 1}", "data.columns.source: expected a whole number, but got []"),
        ("data.columns={source: '', target: en}", "data.columns.source: expected a name, but got ''"),
        ("data.columns={source: 2, target: 2}", "data.columns: source and target are the same column, 2"),
        (
            "data.columns={source: 2, target: en}",
            "data.columns: source and target must both be numbers or both be names",
        ),
        (
            "data.train=[{file: a, target_language: <de>}]",
            "data.train.0.target_language: expected the code of a language, letters, digits and _ such as de, but got",
        ),
        (
            "data.train=[{file: a, target_language: de}, b]",
            "data: train: b has no target_language; all files need one if one of train has",
        ),
        (
            "data={train: [{file: a, target_language: de}], dev: [{file: b, target_language: fr}]}",
            "data: dev: the target_language of b is fr, which no file of train has",
        ),
        ("data.max_length_ratio=1", "data.max_length_ratio: expected more than 1.0, but got 1"),
        ("data.dev=[a.tsv]", "data: dev and dev_held_out_sources are mutually exclusive"),
        ("data.dev_held_out_sources=null", "data.dev_held_out_sources: expected a whole number, but got None"),
        ("model.encoder_layers=100000000000", "model.encoder_layers: expected at most 1000, but got 100000000000"),
        ("model.d_model=10000000", "model.d_model: expected at most 1048576, but got 10000000"),
        ("training.accumulate=100000000000", "training.accumulate: expected at most 1000000, but got"),
        ("evaluation.length_penalty=1000", "evaluation.length_penalty: expected at most 10.0, but got 1000"),
        ("model.max_source_length=1e30", "model.max_source_length: expected a whole number"),
        (f"model.max_target_length={10**20}", "model.max_target_length: expected at most 1048576, but got 1000"),
        ("evaluation.choose_by=bleu", "evaluation: choose_by (bleu) must be loss or one of metrics"),
        (
            "evaluation.metrics=[token_error_rate]",
            "evaluation.metrics: token_error_rate was renamed",
        ),
        (
            "evaluation.choose_by=token_error_rate",
            "evaluation.choose_by: token_error_rate was renamed",
        ),
        ("training.steps", "--set training.steps: expected key=value, for example training.steps=1000"),
        ("seed.value=3", "--set seed.value=3: seed is a value, not a section"),
        ("seed=[", "--set seed=[ is not valid YAML: line 1, column 2: "),
    ],
)
def test_mistakes_are_explained(override: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(TINY, [override])
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_warmup_and_decay_fit_into_the_steps() -> None:
    assert load_recipe(TINY, ["training.schedule=warmup_stable_decay"]).training.decay_start == 400
    overrides = ["training.schedule=warmup_stable_decay", "training.decay_steps=451"]
    message = r"warmup_steps \(50\) and decay_steps \(451\) together must not be more than steps \(500\)"
    with pytest.raises(RecipeError, match=message):
        load_recipe(TINY, overrides)


def test_patience_needs_a_dev_set() -> None:
    with pytest.raises(RecipeError, match=r"training\.patience needs a dev set"):
        load_recipe(TINY, ["data.dev_held_out_sources=0", "training.patience=2"])


def test_r_drop_needs_dropout() -> None:
    with pytest.raises(RecipeError, match=r"training\.r_drop has no effect without dropout; set model\.dropout"):
        load_recipe(TINY, ["model.dropout=0", "training.r_drop=5"])


def test_overrides_in_order_and_yaml_numbers() -> None:
    recipe = load_recipe(
        TINY, ["training.steps=100", "training.steps=200", "training.learning_rate=1e-3", "evaluation.metrics=[bleu]"]
    )
    assert recipe.training.steps == 200
    assert recipe.training.learning_rate == 0.001
    assert recipe.evaluation.metrics == ["bleu"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seed: 1\nseed: 2\n", "line 2: the key seed is duplicated"),
        ("- 1\n", "expected a mapping with the keys seed, data"),
        ("", "expected a mapping with the keys seed, data"),
        ("seed: [", "is not valid YAML: line 1, column 8: expected the node content, but found '<stream end>'"),
        ("seed: 1\n  data: 2\n", "is not valid YAML: line 2, column 7: mapping values are not allowed here"),
        ("seed: 1\n", "the key data is missing"),
        ("2020-01-01: 3\n", "expected keys and values as in a shipped recipe (keys must be str"),
        ("seed: &a [*a]\n", "expected keys and values as in a shipped recipe (Circular reference"),
        ("seed: " + 2000 * "[", "is not valid YAML: it is nested too deeply"),
    ],
)
def test_files_that_are_not_recipes(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        load_recipe(path)
    assert sentence in str(error.value)


def test_find_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe(Path("tiny")) == TINY
    assert find_recipe(Path("tiny.yaml")) == TINY
    (tmp_path / "tiny.yaml").touch()
    assert find_recipe(Path("tiny.yaml")) == Path("tiny.yaml")
    with pytest.raises(
        RecipeError, match=r"other: no such recipe; .*g2p-en-quick, multi30k-en-de, tatoeba-de-en, tiny"
    ):
        find_recipe(Path("other"))


def test_data_paths_are_resolved_here_then_beside_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").mkdir()
    recipe = tmp_path / "recipes" / "mine.yaml"
    recipe.write_text(TINY.read_text())
    (tmp_path / "recipes" / "numbers.train.tsv").touch()
    (tmp_path / "recipes" / "numbers.test.tsv").touch()
    (tmp_path / "numbers.test.tsv").touch()
    monkeypatch.chdir(tmp_path)
    data = load_recipe(recipe).data
    assert data.train == [tmp_path / "recipes" / "numbers.train.tsv"]
    assert data.test == [Path("numbers.test.tsv")]
