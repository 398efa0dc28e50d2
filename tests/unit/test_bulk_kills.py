"""Bulk work that is killed at every moment at which it writes ends with the bytes of a run without interruption."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from dragoman.bulk.errors import BulkError
from dragoman.bulk.folders import find_work
from dragoman.bulk.work import BulkWork
from tests.support.shouting import Shouting

WORDS = ["one", "two", "", "four", "five5", "six", "seven"]
WINDOW = 2


def work(source: Path, out: Path) -> None:
    BulkWork(find_work(source, out), {"--beam-size": 2}, WINDOW).run(Shouting())


def killed_work(source: Path, out: Path, moment: int) -> None:
    """Works until a SIGKILL before the moment-th time that something is synced, renamed or removed."""
    passed = 0

    def count(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            nonlocal passed
            passed += 1
            if passed == moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **options)

        return counted

    os.fsync = count(os.fsync)  # type: ignore[assignment]
    Path.replace, Path.unlink = count(Path.replace), count(Path.unlink)  # type: ignore[assignment,method-assign]
    work(source, out)


@pytest.mark.parametrize("name", ["a.txt", "a.tsv", "a.jsonl.gz", "a.parquet"])
def test_a_kill_at_any_moment_changes_no_byte(tmp_path: Path, name: str) -> None:
    source, whole = tmp_path / ("a.parquet" if name == "a.parquet" else "a.txt"), tmp_path / f"whole-{name}"
    if name == "a.parquet":
        parquet.write_table(pa.table({"text": WORDS, "id": range(len(WORDS))}), source, row_group_size=3)
    else:
        source.write_text("".join(f"{word}\n" for word in WORDS))
    work(source, whole)
    context, moment, killed = multiprocessing.get_context("fork"), 0, True
    while killed:
        moment += 1
        out = tmp_path / f"{moment}-{name}"
        process = context.Process(target=killed_work, args=(source, out, moment))
        process.start()
        process.join()
        killed = process.exitcode == -signal.SIGKILL
        assert killed or process.exitcode == 0
        journal, partial = Path(f"{out}.journal"), Path(f"{out}.partial")
        # The kill may have come in the middle of a write.
        if killed and journal.exists() and b"complete" not in journal.read_bytes():
            for path in (journal, partial):
                with path.open("ab") as file:
                    file.write(b'{"lines": 1')
        for _ in range(2):  # the second time there is nothing to do
            work(source, out)
        assert out.read_bytes() == whole.read_bytes()
        listed = [Path(f"{path}.bad_lines.txt").read_bytes() for path in (out, whole)]
        assert listed[0] == listed[1] != b""
        left = sorted(path.name for path in tmp_path.glob(f"{out.name}*"))
        assert left == [out.name, f"{out.name}.bad_lines.txt", f"{out.name}.journal"]
    assert moment > 15


def test_another_input_model_or_option_is_refused_by_name(tmp_path: Path) -> None:
    source, out = tmp_path / "a.txt", tmp_path / "out.txt"
    source.write_text("one\n")
    work(source, out)
    for options, window, text, sentence in (
        ({"--beam-size": 3}, WINDOW, "one\n", "was begun with --beam-size 2, not 3"),
        ({"--beam-size": 2}, 5, "one\n", "was begun with --window 2, not 5"),
        ({"--beam-size": 2}, WINDOW, "two\n", "was begun with the input a.txt with digest "),
    ):
        source.write_text(text)
        with pytest.raises(BulkError, match=sentence):
            BulkWork(find_work(source, out), options, window).run(Shouting())
    source.write_text("one\n")
    other = Shouting()
    other.model = "shouting version 2"
    with pytest.raises(BulkError, match="was begun with the model shouting version 1, not shouting version 2"):
        BulkWork(find_work(source, out), {"--beam-size": 2}, WINDOW).run(other)
    BulkWork(find_work(source, out), {"--beam-size": 2}, WINDOW, restart=True).run(other)
