"""Formats of bulk work: what is read of a row, what is written for it, and which rows are bad."""

import gzip
import json
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dragoman.bulk.errors import BulkError
from dragoman.bulk.folders import Shard, find_work, read_shard
from dragoman.bulk.formats import format_of, renamed
from dragoman.bulk.work import BulkWork
from tests.support.shouting import Shouting


def answered(source: Path, out: Path, window: int = 3, **options: Any) -> tuple[bytes, list[str]]:
    """Works on a file, and returns the output, decompressed, and its bad lines."""
    BulkWork(find_work(source, out, **options), {}, window).run(Shouting())
    listed = Path(f"{out}.bad_lines.txt")
    bad = listed.read_text().replace(f"{source}:", "").splitlines() if listed.exists() else []
    content = out.read_bytes()
    return gzip.decompress(content) if out.suffix == ".gz" else content, bad


OBJECTS = """\
{"text": "eins", "answer": "EINS"}
{"text": null, "answer": null}
{"text": "drei\\t3", "answer": null}
{"text": null, "answer": null}
{"text": "fünf-", "answer": "FÜNF-"}
{"text": "end", "answer": "END"}
"""
LINES = "eins\n\ndrei\t3\r\n \nfünf-\nend"


@pytest.mark.parametrize("zipped", ["", ".gz"])
def test_text_to_every_format_of_lines(tmp_path: Path, zipped: str) -> None:
    source = tmp_path / f"in.txt{zipped}"
    source.write_bytes(gzip.compress(LINES.encode()) if zipped else LINES.encode())
    bad = ["2: the source is empty", "3: the source has a digit", "4: the source is blank", "5: the answer was cut"]
    for name, expected in (
        ("out.txt", "EINS\n\n\n\nFÜNF-\nEND\n"),
        ("out.tsv", "eins\tEINS\n\t\ndrei\\t3\t\n\t\nfünf-\tFÜNF-\nend\tEND\n"),
        ("out.jsonl", OBJECTS),
    ):
        assert answered(source, tmp_path / f"{name}{zipped}") == (expected.encode(), bad)


def test_columns_stay_beside_the_answer(tmp_path: Path) -> None:
    source = tmp_path / "in.tsv"
    source.write_bytes(b"1\thund\n2\n3\tkatze\textra\n\xff\tmaus\n")
    bad = [
        "2: the source has 1 column, so there is no column 2",
        "4: the source is not valid UTF-8 at byte 1",
    ]
    expected = b"1\thund\tHUND\n2\t\n3\tkatze\textra\tKATZE\n\xff\tmaus\t\n"
    assert answered(source, tmp_path / "out.tsv", column="2") == (expected, bad)
    assert answered(source, tmp_path / "out.txt", column="2") == (b"HUND\n\nKATZE\n\n", bad)
    content, _ = answered(source, tmp_path / "out.jsonl", column="2")
    assert json.loads(content.splitlines()[0]) == {"text": "hund", "answer": "HUND"}
    for column in ("0", "name", "-1", "²"):
        with pytest.raises(BulkError, match=r"--column: expected the number of a column of a .tsv file"):
            find_work(source, tmp_path / "other.tsv", column=column)


def test_objects_keep_their_fields_as_they_are(tmp_path: Path) -> None:
    lines = [
        ('{"id": 1.0,  "text": "hund"}', '{"id": 1.0,  "text": "hund", "answer": "HUND"}'),
        ('  {"text": "a\\nb" } ', '  {"text": "a\\nb", "answer": "A\\nB"}'),
        ("{}", '{"answer": null}'),
        ('{"text": 7}', '{"text": 7, "answer": null}'),
        ('{"text": null}', '{"text": null, "answer": null}'),
        ('["text"]', '{"answer": null}'),
        ("{", '{"answer": null}'),
        ('{"text": "\\ud800"}', '{"text": "\\ud800", "answer": null}'),
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f"{line}\n" for line, _ in lines))
    content, bad = answered(source, tmp_path / "out.jsonl")
    assert content.decode().splitlines() == [line for _, line in lines]
    assert all(map(json.loads, content.splitlines()))
    assert bad == [
        '3: the source has no field "text"',
        '4: the source has a number as "text", not a string',
        '5: the source has null as "text", not a string',
        "6: the source is an array, not a JSON object",
        "7: the source is not valid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "8: the source '\\ud800' has the lone surrogate U+D800 at position 0 and cannot be sent",
    ]
    text, _ = answered(source, tmp_path / "out.txt")
    assert text == b"HUND\nA\\nB\n\n\n\n\n\n\n"
    source.write_text('{"text": "a"}\n{"text": "b", "answer": 1}\n')
    with pytest.raises(BulkError, match=re.escape('in.jsonl:2 has a field "answer" already; name another --answer-')):
        answered(source, tmp_path / "other.jsonl")
    content, _ = answered(source, tmp_path / "renamed.jsonl", answer_column="loud")
    assert [json.loads(line)["loud"] for line in content.splitlines()] == ["A", "B"]


def test_only_columns_that_stand_beside_the_answers_need_other_names(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    source.write_text('{"": 1, "answer": 2, "text": "a"}\n')
    assert answered(source, tmp_path / "out.txt") == (b"A\n", [])
    answered(source, out)
    assert parquet.read_table(out).to_pylist() == [{"text": "a", "answer": "A"}]
    for name in ("other.tsv", "other.parquet", "other.txt"):
        answered(source, tmp_path / name)
    (tmp_path / "in.txt").write_text("a\n")
    for name in ("in.txt", "other.tsv", "other.parquet"):
        with pytest.raises(BulkError, match=r'the sources of .*other\.jsonl are called "text"; name another --answer-'):
            find_work(tmp_path / name, tmp_path / "other.jsonl", answer_column="text")


TABLE = {"id": [*range(9)], "word": ["a", None, "b2", "", *"defgh"], "list": [[n] * n for n in range(9)]}


def test_parquet_columns_keep_their_types(tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    table = pa.table({**TABLE, "kind": pa.array(["x"] * 9).dictionary_encode()})
    parquet.write_table(table, source, row_group_size=4)
    _, bad = answered(source, out, window=2, column="word", answer_column="loud")
    assert bad == ["2: the source is null", "3: the source has a digit", "4: the source is empty"]
    found = parquet.read_table(out)
    assert found.drop_columns("loud") == table
    assert found.column("loud").to_pylist() == ["A", None, None, None, *"DEFGH"]
    assert parquet.ParquetFile(out).num_row_groups == 1
    text, _ = answered(source, tmp_path / "out.txt", column="word")
    assert text.decode().splitlines() == ["A", "", "", "", *"DEFGH"]
    answered(tmp_path / "out.txt", tmp_path / "again.parquet", window=2)
    assert parquet.read_table(tmp_path / "again.parquet").column_names == ["text", "answer"]


def test_parquet_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    source, out = tmp_path / "in.parquet", tmp_path / "out.parquet"
    parquet.write_table(pa.table(TABLE), source)
    for options, sentence in (
        ({}, 'in.parquet has no column "text", but id, word, list; see --column'),
        ({"column": "id"}, 'the column "id" has values of type int64, not text'),
        ({"column": "word", "answer_column": "id"}, 'has a column "id" already; name another --answer-column'),
        ({"column": "word", "answer_column": "word"}, 'has a column "word" already; name another --answer-column'),
    ):
        with pytest.raises(BulkError, match=re.escape(sentence)):
            find_work(source, out, **options)  # type: ignore[arg-type]
    parquet.write_table(pa.Table.from_arrays(2 * [pa.array(["a"])], ["text", "text"]), source)
    with pytest.raises(BulkError, match=r'in.parquet has several columns "text"; see --column'):
        find_work(source, out)
    source.write_bytes(source.read_bytes()[:-7])
    with pytest.raises(BulkError, match=r"in.parquet can't be read as a Parquet file: "):
        find_work(source, out, column="word")
    with pytest.raises(BulkError, match=r"Parquet files have a compression of their own; leave out .gz"):
        find_work(source, tmp_path / "out.parquet.gz")


def test_what_parquet_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    sentence = "Parquet files need the package pyarrow; `pip install '.[parquet]'` in a clone of Dragoman installs it"
    for source, out in (("in.txt", "out.parquet"), ("in.parquet", "out.txt")):
        (tmp_path / "in.parquet").write_bytes(b"")
        with pytest.raises(BulkError, match=re.escape(sentence)):
            find_work(tmp_path / source, tmp_path / out)


@pytest.mark.parametrize("name", ["e.txt", "e.tsv.gz", "e.jsonl", "e.parquet"])
def test_empty_inputs_have_empty_outputs(tmp_path: Path, name: str) -> None:
    source = tmp_path / "in.txt"
    source.write_bytes(b"")
    content, bad = answered(source, tmp_path / name)
    assert bad == []
    if name.endswith(".parquet"):
        assert parquet.read_table(tmp_path / name).num_rows == 0
    else:
        assert content == b""


def test_formats_go_by_the_names_unless_they_are_chosen(tmp_path: Path) -> None:
    kinds = {
        name: format_of(Path(name)).kind for name in ("a", "a.train", "a.tsv.gz", "b.ndjson", "c.jsonl", "d.parquet")
    }
    assert [*kinds.values()] == ["text", "text", "tsv", "jsonl", "jsonl", "parquet"]
    assert renamed("a.tsv.gz", "jsonl") == "a.jsonl.gz"
    assert renamed("a.v1.txt", "parquet") == "a.v1.parquet"
    assert renamed("part-0", "text") == "part-0.txt"
    source = tmp_path / "pairs.train"
    source.write_text("a\tb\n")
    assert answered(source, tmp_path / "out.train", input_format="tsv", output_format="tsv")[0] == b"a\tb\tA\n"


def test_a_folder_is_answered_file_by_file_and_shared_out(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    texts = {
        f"part-{number}.txt": "".join(f"{letter}\n" for letter in letters)
        for number, letters in enumerate(("ab", "", "cde", "f"))
    }
    for name, text in texts.items():
        (source / name).write_text(text)
    (source / "_SUCCESS").write_text("")
    backend = Shouting()
    counts = BulkWork(find_work(source, out), {}, 2).run(backend)
    assert (counts.lines, counts.answered, counts.listed) == (6, 6, 0)
    assert backend.windows == [["a", "b"], ["c", "d"], ["e"], ["f"]]
    whole = {path.name: path.read_text() for path in out.glob("*.txt")}
    assert whole == {name: text.upper() for name, text in texts.items()}
    parts = {}
    for index in range(3):
        BulkWork(find_work(source, tmp_path / "shards", shard=Shard(index, 3), output_format="jsonl"), {}, 2).run(
            Shouting()
        )
        parts[index] = sorted(path.name for path in (tmp_path / "shards").glob("*.jsonl"))
    assert parts[0] == ["part-0.jsonl", "part-3.jsonl"]
    assert parts[2] == [f"part-{number}.jsonl" for number in range(4)]
    assert find_work(source, out, shard=Shard(5, 6)) == []
    assert [work.source.path.name for work in find_work(out, tmp_path / "twice")] == sorted(texts)
    [work, *_] = find_work(source, tmp_path / "columns", input_format="tsv")
    BulkWork([work], {}).run(Shouting())
    assert (tmp_path / "columns" / "part-0.txt").read_text() == "a\tA\nb\tB\n"
    (source / "part-0.tsv").write_text("x\n")
    with pytest.raises(BulkError, match=r"the answers to .*part-0.tsv and .*part-0.txt would both be"):
        find_work(source, out, output_format="text")
    for text in ("3/3", "1", "a/b", "1/0", "-1/2"):
        with pytest.raises(ValueError, match="--shard: expected I/N"):
            read_shard(text)


def test_file_names_need_not_be_utf_8(tmp_path: Path) -> None:
    source = Path(os.fsdecode(os.fsencode(tmp_path) + b"/donn\xe9es.txt"))
    source.write_text("a\n\n")
    for _ in range(2):
        assert answered(source, tmp_path / "out.txt") == (
            b"A\n\n",
            [rf"{tmp_path}/donn\udce9es.txt:2: the source is empty"],
        )


@pytest.mark.parametrize("name", ["out", "answers/today"])
def test_the_same_command_continues_in_a_folder_inside_the_input(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    for _ in range(2):
        counts = BulkWork(find_work(tmp_path, tmp_path / name), {}).run(Shouting())
        assert counts.answered == 1


def test_a_folder_may_have_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for number in range(40):
        (source / f"{number}.txt").write_text("a\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) + 20, hard))
    try:
        counts = BulkWork(find_work(source, out), {}).run(Shouting())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert counts.answered == len(list(out.glob("*.txt"))) == 40


def test_inputs_and_outputs_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder, full, file = tmp_path / "in", tmp_path / "more", tmp_path / "a.txt"
    file.write_text("a\n")
    folder.mkdir()
    full.mkdir()
    (full / "b.txt").write_text("b\n")
    partial = tmp_path / "c.txt.partial"
    partial.write_text("c\n")
    for source, out, options, sentence in (
        (tmp_path / "nowhere", file, {}, "nowhere: there is no such file"),
        (file, file, {}, "a.txt is the input itself; name another file to write"),
        (file, tmp_path / "b", {"shard": Shard(0, 1)}, "--shard: .*a.txt is not a folder of files"),
        (file, tmp_path / "b", {"column": "1"}, "--column is for .*; a text file has one source per line"),
        (folder, file, {}, "in is a folder, but .*a.txt is not"),
        (folder, folder, {}, "in is the input itself; name another folder to write"),
        (folder, tmp_path / "out", {}, "in has no files"),
        (tmp_path, tmp_path / "out", {}, "in is not a file; in a folder, only files can be read"),
        (full, file / "out", {}, "a.txt/out: can't be created: Not a directory"),
        (partial, tmp_path / "c.txt", {}, "c.txt.partial is where work on .*c.txt keeps its state; name another file"),
    ):
        with pytest.raises(BulkError, match=sentence):
            find_work(source, out, **options)
    assert partial.read_text() == "c\n"
    assert file.read_text() == "a\n"
