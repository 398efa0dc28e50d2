"""What a run writes down comes back as it was, or is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_training.data.pairs import Pair, read_pairs_file, write_pairs
from dragoman_training.errors import DataError
from dragoman_training.recipe import SHIPPED_RECIPES, load_recipe, save_recipe

texts = st.text(st.characters(exclude_categories=["Cs"])) | st.text("\\\t\n\rtnr\ufeff\u2028 ")


def test_pairs_of_any_text_come_back(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("run") / "dev.tsv"

    @given(st.lists(st.tuples(texts, texts)))
    def check(sides: list[tuple[str, str]]) -> None:
        write_pairs(file, [Pair(*pair, Path("a.tsv"), 1) for pair in sides])
        assert [pair[:2] for pair in read_pairs_file(file)] == sides

    check()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nc\n", ":2: expected source<TAB>target, found 1 field(s)"),
        (b"a\tb\tc\n", ":1: expected source<TAB>target, found 3 field(s)"),
        (b"a\tb\nc\td", ":2: the line has no end, so the file is truncated"),
        (b"a\tb\\x\n", r":1: \x is not an escape"),
        (b"a\tb\\\n", ":1: \\ is not an escape"),
        (b"\xff\tb\n", ": cannot be read"),
        (None, ": cannot be read"),
    ],
)
def test_damaged_files_are_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "dev.tsv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_pairs_file(file)
    assert f"{file}{message}" in str(error.value)


@pytest.mark.parametrize("name", ["1e3", "1.5e-4", "010", "yes", "null", "a: b", "ü\\t'\"", "2026-01-01", " a "])
def test_a_recipe_comes_back_whatever_its_files_are_called(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(SHIPPED_RECIPES / "tiny.yaml")
    named = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": [Path(name)]})})
    save_recipe(named, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml").data.train == [Path(name)]
