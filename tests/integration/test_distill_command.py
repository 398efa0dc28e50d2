"""The command `dragoman-distill` as a process: killed, stopped and continued, and its refusals."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import interrupted
from tests.support.bundles import SHIPPED_G2P
from tests.support.interrupted import end, interrupt, made_up_word

COUNT = 600  # words


def words() -> str:
    """Made-up words, and a line that is none."""
    made = [made_up_word(number) for number in range(COUNT)]
    made[COUNT // 2] = "not a word 4"
    return "\n".join(made) + "\n"


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return interrupted.start(Path(sys.executable).with_name("dragoman-distill"), *arguments)


def test_killed_and_stopped_runs_end_with_the_same_bytes(tmp_path: Path) -> None:
    sources, whole, out = (tmp_path / name for name in ("words.txt", "whole.tsv", "out.tsv"))
    sources.write_text(words())
    teachers, options = [SHIPPED_G2P, SHIPPED_G2P], ["--beam-size", "3", "--early-stopping", "--window", "40"]
    status, output, errors = end(start(*teachers, sources, whole, *options))
    assert (status, output) == (0, f"{whole}\n")
    listed = f"without 1 bad sources (listed in {whole}.bad_lines.txt)"
    assert errors.splitlines()[-1] == f"{whole}: {COUNT - 1:,} lines from {COUNT:,}; {listed}"

    for windows, number in ((1, signal.SIGKILL), (3, signal.SIGTERM), (7, signal.SIGKILL)):
        interrupt(start(*teachers, sources, out, *options), out, windows, number, "dragoman-distill")
    for _ in range(2):  # the second time there is nothing to do
        status, output, errors = end(start(*teachers, sources, out, *options))
        assert (status, output) == (0, f"{out}\n")
        assert out.read_bytes() == whole.read_bytes()
        assert Path(f"{out}.bad_lines.txt").read_bytes() == Path(f"{whole}.bad_lines.txt").read_bytes()
    assert len(whole.read_text().splitlines()) == COUNT - 1

    status, _, errors = end(start(SHIPPED_G2P, sources, out, *options))
    assert status == 1
    assert errors.startswith(f"dragoman-distill: {out} was begun with the teachers g2p-en version 1 with manifest ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["{bundle}", "{out}"], 2, "expected at least one teacher, SOURCES and OUT"),
        (["{folder}", "{words}", "{out}"], 1, "{folder} is not a bundle: it has no manifest.json"),
        (["{bundle}", "{words}", "{out}", "--max-rows", "0"], 2, None),
        (["{bundle}", "{words}", "{out}", "--tag", "a\tb"], 2, "--tag contains U+0009"),
        (["{bundle}", "{words}", "{out}", "--tag", "<s>"], 2, "--tag contains the reserved token <s>"),
        (
            ["{bundle}", "{empty}", "{out}"],
            1,
            "{out} is empty, since no line could be used; {out}.bad_lines.txt says why",
        ),
    ],
)
def test_refusals_are_one_sentence(tmp_path: Path, arguments: list[str], status: int, sentence: str | None) -> None:
    paths = {"bundle": SHIPPED_G2P, "folder": tmp_path, "words": tmp_path / "words.txt", "out": tmp_path / "o.tsv"}
    paths["empty"] = tmp_path / "empty.txt"
    paths["words"].write_text("hello\n")
    paths["empty"].write_text("\n")
    code, output, errors = end(start(*(argument.format(**paths) for argument in arguments)))
    assert (code, output) == (status, "")
    *_, last = errors.splitlines()
    assert "Traceback" not in errors
    if sentence is not None:
        assert last == f"dragoman-distill: {sentence.format(**paths)}"
