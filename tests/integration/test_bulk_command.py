"""The command `dragoman bulk` as a process: killed, stopped and continued, alone and with servers that die."""

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dragoman.local import free_port
from tests.conftest import StartServer
from tests.support import interrupted
from tests.support.bundles import SHIPPED_G2P
from tests.support.interrupted import end, interrupt, made_up_word, wait_for_windows
from tests.support.scripted_server import ScriptedServer

COUNT = 800
IN_PROCESS = ["--bundle", str(SHIPPED_G2P), "--engines", "2", "--max-rows", "16"]


def words(path: Path) -> Path:
    """Writes objects with made-up words, and two that can't be answered."""
    texts = ("not a word 4" if number == 400 else made_up_word(number) for number in range(COUNT))
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(texts)]
    lines[600] = "torn {"
    path.write_text("\n".join(lines) + "\n")
    return path


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    return interrupted.start(sys.executable, "-m", "dragoman", "bulk", *arguments)


def test_kills_and_stops_change_no_byte(tmp_path: Path) -> None:
    source, whole, out = words(tmp_path / "words.jsonl"), tmp_path / "whole.jsonl.gz", tmp_path / "out.jsonl.gz"
    options = ["--window", "50", *IN_PROCESS]
    status, output, errors = end(start(source, whole, *options))
    assert (status, output) == (0, "")
    last = f"dragoman: {whole}: {COUNT - 2:,} answers to {COUNT:,} rows; 2 bad rows in {whole}.bad_lines.txt"
    assert errors.splitlines()[-1] == last
    for windows, number in ((1, signal.SIGKILL), (3, signal.SIGTERM), (6, signal.SIGKILL), (10, signal.SIGINT)):
        interrupt(start(source, out, *options), out, windows, number, "dragoman")
    for _ in range(2):  # the second time there is nothing to do
        assert end(start(source, out, *options))[0] == 0
        assert out.read_bytes() == whole.read_bytes()
    listed = [Path(f"{path}.bad_lines.txt").read_text() for path in (out, whole)]
    assert listed[0] == listed[1]
    assert [line.partition(": ")[0] for line in listed[0].splitlines()] == [f"{source}:401", f"{source}:601"]
    objects = [json.loads(line) for line in gzip.decompress(out.read_bytes()).splitlines()]
    assert [number for number, each in enumerate(objects) if each["answer"] is None] == [400, 600]
    assert [each["id"] for each in objects if "id" in each] == [number for number in range(COUNT) if number != 600]
    status, _, errors = end(start(source, out, *options, "--beam-size", "2"))
    sentence = (
        f"dragoman: {out} was begun with --beam-size unset, not 2; repeat the first command, name another file, or "
    )
    assert (status, errors) == (1, f"{sentence}use --restart to start over\n")


def test_servers_answer_as_this_process_even_if_one_dies(tmp_path: Path, start_server: StartServer) -> None:
    source, whole, out = words(tmp_path / "words.jsonl"), tmp_path / "whole.tsv", tmp_path / "out.tsv"
    assert end(start(source, whole, "--window", "50", "--beam-size", "2", *IN_PROCESS))[0] == 0
    servers = [start_server(), start_server()]
    addresses = ",".join(server.address for server in servers)
    options = ["--window", "50", "--beam-size", "2", "--address", addresses]
    process = start(source, out, *options)
    wait_for_windows(out, 2, process)
    process.kill()
    assert end(process)[0] == -signal.SIGKILL
    process = start(source, out, *options)
    wait_for_windows(out, 5, process)
    servers[0].kill()
    assert end(process)[0] == 0
    assert out.read_bytes() == whole.read_bytes()
    assert Path(f"{out}.bad_lines.txt").read_text() == Path(f"{whole}.bad_lines.txt").read_text()


def test_a_folder_of_files_through_a_server(tmp_path: Path, scripted: ScriptedServer) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "c.txt"):
        (folder / name).write_text(f"{name[0]}\n")
    out = tmp_path / "out"
    status, _, errors = end(start(folder, out, "--shard", "0/2"))
    assert (status, errors) == (0, f"dragoman: {out}: 2 answers to 2 rows\n")
    assert {path.name: path.read_text() for path in out.glob("*.txt")} == {"a.txt": "A\n", "c.txt": "C\n"}
    assert end(start(folder, out))[2] == f"dragoman: {out}: 3 answers to 3 rows\n"


def test_a_signal_ends_the_wait_for_a_server(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n")
    out = tmp_path / "out.txt"
    process = start(tmp_path / "in.txt", out, "--address", f"127.0.0.1:{free_port()}")
    assert process.stderr is not None
    notice = process.stderr.readline()
    assert notice.endswith("retrying\n")
    process.send_signal(signal.SIGTERM)
    status, output, errors = end(process)
    sentence = f"dragoman: stopped; run the same command to continue from what is saved beside {out}\n"
    assert (status, output, errors) == (75, "", sentence)


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["{words}", "{out}", "--bundle", "{folder}"], 1, "{folder} is not a bundle: it has no manifest.json"),
        (["{words}", "{words}"], 1, "{words} is the input itself; name another file to write"),
        (["{gone}", "{out}"], 1, "{gone}: there is no such file"),
        (["{words}", "{out}", "--shard", "2/2"], 2, "--shard: expected I/N, with I from 0 to N - 1, got '2/2'"),
        (["{words}", "{out}", "--model", "other"], 1, "there is no model 'other'"),
        (["{empty}", "{out}"], 1, "{out}: 0 answers to 1 row; 1 bad row in {out}.bad_lines.txt"),
        (["{words}", "{out}", "--bundle", "{folder}", "--address", "a:1"], 2, None),
    ],
)
def test_refusals_are_one_sentence(
    tmp_path: Path, scripted: ScriptedServer, arguments: list[str], status: int, sentence: str | None
) -> None:
    paths = {name: tmp_path / name for name in ("words", "out", "gone", "empty")}
    paths["folder"] = tmp_path
    paths["words"].write_text("hello\n")
    paths["empty"].write_text("\n")
    code, output, errors = end(start(*(argument.format(**paths) for argument in arguments)))
    assert (code, output) == (status, "")
    assert "Traceback" not in errors
    if sentence is not None:
        assert errors == f"dragoman: {sentence.format(**paths)}\n"
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["empty", "words"] or "{empty}" in arguments
