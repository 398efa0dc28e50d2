"""Sources for work on whole files: their layouts, bad lines and refusals."""

import gzip
import os
from pathlib import Path

import pytest

from dragoman.bulk import text_lines
from dragoman.bulk.errors import BulkError
from dragoman_server.offline.sources import Layout, find_sources


def read(path: Path, layout: Layout = "auto", columns: tuple[int, int] = (1, 2)) -> list[tuple[str, str | None, str]]:
    return [(line.source, line.reference, line.problem) for line in find_sources(path, layout, *columns).lines()]


def test_plain_text_and_its_bad_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_lines, "MAX_LINE", 16)
    content = b"\xef\xbb\xbfeins\r\n\n caf\xe9\n" + b"x" * 40 + b"\na\tb\nlast"
    expected = [
        ("eins", None, ""),
        ("", None, ""),
        ("", None, "is not valid UTF-8 at byte 5"),
        ("", None, "has more than 16 bytes"),
        ("a\tb", None, ""),
        ("last", None, ""),
    ]
    for name, written in (("a.txt", content), ("a.txt.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
        assert read(tmp_path / name) == expected
        [digest] = find_sources(tmp_path / name).digests(lambda: False)
        assert digest.lines == 6
    plain, zipped = (find_sources(tmp_path / name).digests(lambda: False)[0] for name in ("a.txt", "a.txt.gz"))
    assert plain.sha256 == zipped.sha256


def test_tab_separated_columns(tmp_path: Path) -> None:
    path = tmp_path / "pairs.train"  # recognized by its tabs
    path.write_text("Hund\tdog\tCC\nKatze\n")
    assert read(path) == [("Hund\tdog\tCC", None, ""), ("Katze", None, "")]  # not all lines have tabs
    assert read(path, "tsv") == [("Hund", "dog", ""), ("Katze", None, "")]
    assert read(path, "tsv", (2, 1)) == [("dog", "Hund", ""), ("", None, "has 1 column, so there is no column 2")]
    path.write_text("Hund\tdog\nKatze\tcat\n")
    assert read(path) == [("Hund", "dog", ""), ("Katze", "cat", "")]
    assert read(path, "text") == [("Hund\tdog", None, ""), ("Katze\tcat", None, "")]


def test_a_recipe_names_its_training_files(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("Hund\tdog\n")
    (tmp_path / "b.de").write_text("Katze\nMaus\n")
    (tmp_path / "b.en").write_text("cat\nmouse\n")
    recipe = tmp_path / "r.yaml"
    recipe.write_text("data:\n  train: [a.tsv, {source: b.de, target: b.en}]\n")
    assert read(recipe) == [("Hund", "dog", ""), ("Katze", "cat", ""), ("Maus", "mouse", "")]
    assert [digest.path.name for digest in find_sources(recipe).digests(lambda: False)] == ["a.tsv", "b.de", "b.en"]
    (tmp_path / "b.en").write_text("cat\n")
    with pytest.raises(BulkError, match=r"b.en has 1 lines, but .*b.de 2: parallel files need equally many"):
        find_sources(recipe).digests(lambda: False)
    with pytest.raises(BulkError, match=r"b.de or .*b.en has changed: one of them ends after 1 lines"):
        read(recipe)
    recipe.write_text("data:\n  train: [{file: a.tsv}]\n")
    assert read(recipe) == [("Hund", "dog", "")]
    for data in ("{train: [{file: a.tsv, columns: {source: 2, target: 1}}]}", "{train: [a.tsv], columns: {source: 2}}"):
        recipe.write_text(f"data: {data}\n")
        with pytest.raises(BulkError, match=r"data.columns of a recipe is not applied here; name the file"):
            read(recipe)
    recipe.write_text("data:\n  train: []\n")
    with pytest.raises(BulkError, match=r"expected a training recipe with the files of data.train"):
        read(recipe)
    recipe.write_text("data: [\n")
    with pytest.raises(BulkError, match="is not valid YAML"):
        read(recipe)
    recipe.write_text("[" * 5000)
    with pytest.raises(BulkError, match="its values are nested too deeply"):
        read(recipe)


def test_files_that_can_not_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(BulkError, match=r"nowhere.txt: there is no such file"):
        read(tmp_path / "nowhere.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    for path in (tmp_path, tmp_path / "pipe.txt"):
        with pytest.raises(BulkError, match=r"is not a regular file, so it can't be read again"):
            read(path)
    torn = tmp_path / "torn.txt.gz"
    torn.write_bytes(gzip.compress(bytes(range(256)) * 1000)[:-9])
    with pytest.raises(BulkError, match=r"torn.txt.gz: can't be read: Compressed file ended"):
        read(torn, "text")
