"""Corpora of odd characters and encodings: refused or skipped by file, line and the character's name, never learned."""

import unicodedata
from pathlib import Path
from typing import Literal

import pytest

from dragoman_training.data import characters
from dragoman_training.data.corpus import BadLines, read_pairs
from dragoman_training.errors import DataError
from dragoman_training.recipe import ParallelFiles

PAIRS = "".join(f"{n}\tnumber {n}\n" for n in range(400))


def refusal(*files: Path | ParallelFiles, policy: Literal["skip", "refuse"] = "refuse") -> str:
    with pytest.raises(DataError) as error:
        read_pairs(files, BadLines(policy))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_control_characters_have_the_names_that_unicode_gives_them() -> None:
    for code in (*range(0x20), *range(0x7F, 0xA0), 0xFEFF):
        written, _, name = characters.character_name(chr(code)).partition(" ")
        assert written == f"U+{code:04X}"
        assert unicodedata.lookup(name) == chr(code)
    assert characters.character_name("\u200b") == "U+200B ZERO WIDTH SPACE"
    assert characters.character_name("\uffff") == "U+FFFF (no character)"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a\0b", "U+0000 NULL"),
        ("a\x1bb", "U+001B ESCAPE"),
        ("a\rb", "U+000D CARRIAGE RETURN"),
        ("a\x85b", "U+0085 NEXT LINE"),
        ("a\x7fb", "U+007F DELETE"),
        ("a\ufeffb", "U+FEFF BYTE ORDER MARK"),
        ("a\ufffdb", "U+FFFD REPLACEMENT CHARACTER"),
        ("a\uffffb", "U+FFFF (no character)"),
    ],
)
def test_characters_of_no_text(text: str, name: str, tmp_path: Path) -> None:
    file, other = tmp_path / "a.tsv", tmp_path / "b.txt"
    file.write_bytes(f"good\tgood\n{text}\tgood\ngood\tgood\n".encode())
    skipping = BadLines("skip")
    assert [pair.line for pair in read_pairs([file], skipping)] == [1, 3]
    assert skipping.messages == [f"{file}:2: contains {name} at character 2 of the line"]
    assert skipping.counts == {"bad_character": 1}
    assert f"{file}:2: contains {name}" in refusal(file)
    other.write_bytes(f"good\n{text}\n".encode())
    sound = tmp_path / "sound.txt"
    sound.write_text("good\ngood\n")
    assert f"{other}:2: contains {name}" in refusal(ParallelFiles(source=sound, target=other))


def test_a_file_that_cat_made_of_two_with_marks(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes("\ufeffein\tone\n\ufeffzwei\ttwo\n".encode())
    assert f"{file}:2: contains U+FEFF BYTE ORDER MARK at character 1" in refusal(file)
    file.write_bytes("\ufeffein\tone\nzwei\ttwo\n".encode())
    assert [pair.source for pair in read_pairs([file], BadLines("refuse"))] == ["ein", "zwei"]


@pytest.mark.parametrize(
    "text", ["می‌خواهم", "क्‍ष", "👩‍👩‍👧", "שלום\u200f", "🏴\U000e0067\U000e0062\U000e007f", "a\u00adb c"]
)
def test_format_characters_that_scripts_need_stay(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(f"{text}\t{text}\n", encoding="utf-8")
    assert read_pairs([file], BadLines("refuse"))[0][:2] == (text, text)


@pytest.mark.parametrize("character", "\u200b\u00ad\u2060\u3164\u200d\u115f\ufe0f\u00a0\u2800\U000e0041")
def test_sides_in_which_nothing_can_be_seen(character: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(f"good\tgood\ngood\t{character * 3} \n", encoding="utf-8")
    bad = BadLines("skip")
    assert len(read_pairs([file], bad)) == 1
    assert bad.counts == {"empty_side": 1}
    assert f"{file}:2: the target is empty: it contains only " in bad.messages[0]
    assert f"U+{ord(character):04X} {unicodedata.name(character)}" in bad.messages[0]
    file.write_text(f"{character}\tgood\n", encoding="utf-8")
    assert "the source is empty: it contains only" in refusal(file)


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("content", [PAIRS, PAIRS.replace("number", "数")])
def test_files_of_wide_characters(encoding: str, mark: str, content: str, tmp_path: Path) -> None:
    """UTF-16 of ASCII text is valid UTF-8, with a NUL behind each letter."""
    file, sound = tmp_path / "a.tsv", tmp_path / "b.txt"
    file.write_bytes((mark + content).encode(encoding))
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    policies: tuple[Literal["refuse", "skip"], ...] = ("refuse", "skip")
    for policy in policies:
        said = f"{file}: looks like {name}, expected UTF-8; convert it with `iconv -f {name} -t UTF-8`"
        assert refusal(file, policy=policy) == said
    sound.write_text("good\n")
    assert "looks like" in refusal(ParallelFiles(source=sound, target=file))


@pytest.mark.parametrize("content", [PAIRS, "ein\tone\nzwei\ttwo\n"])
def test_lines_that_end_in_cr_alone(content: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(content.replace("\n", "\r").encode())
    policies: tuple[Literal["refuse", "skip"], ...] = ("refuse", "skip")
    for policy in policies:
        assert refusal(file, policy=policy).startswith(f"{file}: its lines end in CR alone, expected LF or CR LF")
    file.write_bytes(content.replace("\n", "\r\n").encode())
    assert len(read_pairs([file], BadLines("refuse"))) == content.count("\n")
