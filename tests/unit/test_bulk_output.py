"""The output file of long work: which one is continued, and which one is refused."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dragoman.bulk.errors import BulkError
from dragoman.bulk.output import Output

CONFIGURATION = {"--beam-size": 5, "--swap": False, "the sources": "a.txt with digest 12"}
LINES = [f"line {number}\n".encode() for number in range(10)]
WINDOW = 3


def work(out: Path) -> None:
    """Copies the lines by windows; every other line is bad."""
    output = Output(out, CONFIGURATION)
    while output.lines < len(LINES):
        first, last = output.lines, min(output.lines + WINDOW, len(LINES))
        chosen = range(first, last)
        output.commit(
            last,
            b"".join(LINES[number] for number in chosen if number % 2 == 0),
            b"".join(LINES[number] for number in chosen if number % 2),
            {"done": last},
        )
    if not output.finished:
        output.finish()


@contextmanager
def begun(out: Path, commits: int = 1) -> Iterator[Output]:
    output = Output(out, CONFIGURATION)
    for number in range(commits):
        output.commit(number + 1, LINES[number], b"", {})
    yield output
    output.close()


def test_what_was_begun_with_other_options_is_refused_by_their_names(tmp_path: Path) -> None:
    out = tmp_path / "out.tsv"
    with begun(out):
        pass
    for other, sentence in (
        ({**CONFIGURATION, "--beam-size": None}, "--beam-size 5, not unset"),
        ({**CONFIGURATION, "--swap": True}, "--swap false, not true"),
        ({**CONFIGURATION, "the sources": "b.txt with digest 9"}, "the sources a.txt with digest 12, not b.txt with"),
    ):
        with pytest.raises(BulkError, match=sentence):
            Output(out, other)
    fresh = Output(out, {**CONFIGURATION, "--swap": True}, restart=True)
    assert (fresh.lines, fresh.state) == (0, {})
    fresh.close()


def test_nothing_stays_of_work_that_saved_nothing(tmp_path: Path) -> None:
    """A teacher that can't be loaded must not leave options behind that the next command contradicts."""
    with begun(tmp_path / "out.tsv", commits=0):
        assert sorted(path.name for path in tmp_path.iterdir()) != []
    assert list(tmp_path.iterdir()) == []


def test_files_that_do_not_fit_the_journal_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out.tsv"
    with begun(out), pytest.raises(BulkError, match="another process is writing it"):
        Output(out, CONFIGURATION)
    partial, journal = tmp_path / "out.tsv.partial", tmp_path / "out.tsv.journal"
    partial.write_bytes(LINES[0][:-1])
    with pytest.raises(BulkError, match=r"out.tsv.partial is shorter than its journal says; use --restart"):
        Output(out, CONFIGURATION)
    journal.write_bytes(b"{\n" + journal.read_bytes())
    with pytest.raises(BulkError, match="is damaged; use --restart"):
        Output(out, CONFIGURATION)
    other = tmp_path / "other.tsv"
    other.write_text("precious\n")
    with pytest.raises(BulkError, match=r"other.tsv exists, and no journal says how it was made"):
        Output(other, CONFIGURATION)
    assert other.read_text() == "precious\n"
    assert not Path(f"{other}.journal").exists()
    with pytest.raises(BulkError, match=r"nowhere/out.tsv.journal: can't be written: No such file"):
        Output(tmp_path / "nowhere" / "out.tsv", CONFIGURATION)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BulkError, match="pipe is not a regular file; name another file"):
        Output(tmp_path / "pipe", CONFIGURATION, restart=True)
    assert not (tmp_path / "pipe.journal").exists()
    with pytest.raises(BulkError, match="is a directory; name a file"):
        Output(tmp_path, CONFIGURATION)


def test_finished_work_is_not_done_again(tmp_path: Path) -> None:
    out = tmp_path / "out.tsv"
    work(out)
    before = out.stat()
    again = Output(out, CONFIGURATION)
    assert (again.finished, again.lines, again.state) == (True, 10, {"done": 10})
    again.close()
    assert out.stat() == before
    records = [json.loads(line) for line in Path(f"{out}.journal").read_text().splitlines()]
    assert records[0]["configuration"] == CONFIGURATION
    out.unlink()
    with pytest.raises(BulkError, match="was finished, but is gone; use --restart"):
        Output(out, CONFIGURATION)
