"""The archive of Tatoeba's sentences: its forms, its split, and the generated sentences with numbers."""

import gzip
import re
import zipfile
from pathlib import Path

import pytest

from dragoman_training.data import tatoeba
from dragoman_training.data.number_sentences import TEMPLATES, number_sentences

LINES = [f"Sentence {n // 2}.\tSatz {n}." for n in range(10_000)]


def archives(folder: Path) -> list[Path]:
    """The same pairs as plain text, gzip, and a zip of today's form, with authors in a third column."""
    plain, compressed, zipped = folder / "deu.txt", folder / "deu.txt.gz", folder / "deu-eng.zip"
    text = "".join(f"{line}\n" for line in LINES)
    plain.write_text(text, encoding="utf-8")
    compressed.write_bytes(gzip.compress(text.encode()))
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("_about.txt", "about")
        archive.writestr("deu.txt", "".join(f"{line}\tCC-BY 2.0 (France) Attribution\n" for line in LINES))
    return [plain, compressed, zipped]


def test_all_forms_of_the_archive_give_the_same_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written = []
    for i, archive in enumerate(archives(tmp_path)):
        assert tatoeba.main([str(tmp_path / str(i)), "--archive", str(archive)]) == 0
        written.append({path.name: path.read_bytes() for path in (tmp_path / str(i)).iterdir()})
    assert written[0] == written[1] == written[2]
    assert "test.tsv  2,000 pairs" in capsys.readouterr().out
    train, dev, test = (
        [line.split("\t") for line in written[0][f"{name}.tsv"].decode().splitlines()]
        for name in ("train", "dev", "test")
    )
    assert (len(train), len(dev), len(test)) == (2000, 2000, 2000)  # both translations of the 1,000 sentences left
    english = [{pair[1] for pair in pairs} for pairs in (train, dev, test)]
    assert not english[0] & english[1]
    assert not english[0] & english[2]
    assert not english[1] & english[2]


def test_another_edition_moves_few_sentences() -> None:
    pairs = [(german, english) for english, german in (line.split("\t") for line in LINES)]
    more = [*pairs, *((f"Neu {n}.", f"New {n}.") for n in range(50))]
    assert len(set(tatoeba.split(pairs)["test"]) & set(tatoeba.split(more)["test"])) >= 1950


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("deu.txt", b"one\tzwei\tdrei\tvier\n", r"deu.txt:1: expected English<TAB>German, found 4 field\(s\)"),
        ("deu.txt", b"one\teins\n", "there are 1 distinct English sentences; expected more than 4,000"),
        ("deu.zip", b"no zip", "deu.zip: cannot be read as an archive of sentence pairs"),
        ("deu.txt.gz", b"no gzip", "deu.txt.gz: cannot be read as an archive of sentence pairs"),
        (
            "deu.txt.gz",
            b"\x1f\x8b\x08\0\0\0\0\0\0\x03" + 20 * b"\xff",
            "deu.txt.gz: cannot be read as an archive of sentence pairs",
        ),
        ("deu.txt", b"\xff\tx\n", "deu.txt: cannot be read as an archive of sentence pairs"),
    ],
)
def test_damage_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert tatoeba.main([str(tmp_path / "out"), "--archive", str(tmp_path / name)]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "out").exists()


def test_a_failed_download_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tatoeba, "ARCHIVE", "http://127.0.0.1:9/deu-eng.zip")
    assert tatoeba.main([str(tmp_path)]) == 1
    assert "download it in a browser and name it with --archive" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_both_languages_write_the_same_numbers() -> None:
    pairs = number_sentences(3000, seed=1)
    assert pairs == number_sentences(3000, seed=1)
    for german, english in pairs:
        assert sorted(re.findall(r"\d", german)) == sorted(re.findall(r"\d", english)), (german, english)
        assert "{" not in german + english
    assert len(set(pairs)) > 2900


def test_templates_have_the_same_slots_on_both_sides() -> None:
    for line in TEMPLATES.read_text(encoding="utf-8").splitlines():
        german, english = line.split("\t")
        assert sorted(re.findall(r"\{.*?\}", german)) == sorted(re.findall(r"\{.*?\}", english)), line
