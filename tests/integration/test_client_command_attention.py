"""`dragoman attention` as a process: against a server that does what the test tells it to, and a real one."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from dragoman.attention import draw
from dragoman.attention.labels import label
from dragoman.client import Client
from dragoman.local import LocalServer
from dragoman.results import FinishReason
from tests.support.scripted_server import ScriptedServer

START = "import sys; from dragoman.cli import main; {}; main()"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        monkeypatch.setenv("DRAGOMAN_ADDRESS", server.address)
        yield server


def run(*arguments: str | Path, first: str = "pass") -> subprocess.CompletedProcess[str]:
    """`dragoman attention` with the arguments, after a statement of Python."""
    command = [sys.executable, "-c", START.format(first), "attention", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_models_own_answer_is_drawn(scripted: ScriptedServer, tmp_path: Path) -> None:
    done = run("abc", "-o", tmp_path / "own.png", "--model", "m", "--max-new-tokens", "5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ((method, request),) = scripted.calls
    assert (method, request.input.text, request.model) == ("Generate", "abc", "m")
    assert (request.details.attention, request.options.max_new_tokens) == (True, 5)
    assert imread(tmp_path / "own.png").shape[2] == 4


def test_a_given_target_is_drawn(scripted: ScriptedServer, tmp_path: Path) -> None:
    done = run("abc", "xy", "--output", tmp_path / "given.svg", "--grid", "--head", "1", "--theme", "dark")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ((method, request),) = scripted.calls
    assert (method, request.input.text, [target.text for target in request.targets]) == ("Score", "abc", ["xy"])
    assert request.attention
    assert "#0d1117" in (tmp_path / "given.svg").read_text()


def test_layers_and_heads_are_chosen(scripted: ScriptedServer, tmp_path: Path) -> None:
    pictures = []
    for options in (["--head", "1"], ["--head", "-2"], ["--head", "1", "--layer", "0"], ["--head", "2"]):
        assert run("abc", "-o", tmp_path / "picture.png", *options).returncode == 0
        pictures.append(imread(tmp_path / "picture.png"))
    assert np.array_equal(pictures[0], pictures[1])
    assert pictures[0].shape != pictures[2].shape or not np.array_equal(pictures[0], pictures[2])  # another caption
    assert not np.array_equal(pictures[0], pictures[3])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["abc", "-o", "x.gif"], "x.gif: the file name must end in .png, .svg or .pdf"),
        (["abc", "-o", "x"], "x: the file name must end in .png, .svg or .pdf"),
    ],
)
def test_a_wrong_name_is_refused_before_the_server_is_asked(
    scripted: ScriptedServer, arguments: list[str], message: str
) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"dragoman: {message}\n")
    assert scripted.calls == []


@pytest.mark.parametrize(
    ("first", "message"),
    [
        ("sys.modules['matplotlib'] = None", "matplotlib is not installed"),
        (
            "import matplotlib; matplotlib.__version__, matplotlib.__version_info__ = '3.10.9', (3, 10, 9, 'final', 0)",
            "matplotlib 3.11 is needed, not 3.10.9",
        ),
    ],
)
def test_a_lack_of_matplotlib_is_said_before_the_server_is_asked(
    scripted: ScriptedServer, tmp_path: Path, first: str, message: str
) -> None:
    done = run("abc", "-o", tmp_path / "x.png", first=first)
    remedy = "run `pip install '.[attention]'` in a clone of Dragoman"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"dragoman: {message}; {remedy}\n")
    assert scripted.calls == []


@pytest.mark.usefixtures("scripted")
def test_what_goes_wrong_is_one_sentence(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "x.png"
    assert run("abc", "-o", nowhere).stderr == f"dragoman: {nowhere} can't be written: No such file or directory\n"
    assert run("bad", "-o", tmp_path / "x.png").stderr == "dragoman: input.text is bad\n"
    done = run("abc", "-o", tmp_path / "x.png", "--layer", "2")
    assert (done.returncode, done.stderr) == (
        1,
        "dragoman: layer: there is no 2; the layers are 0 to 1, or -1 for the last\n",
    )


@pytest.mark.usefixtures("scripted")
def test_characters_without_a_font_are_reported_and_the_picture_is_drawn(tmp_path: Path) -> None:
    only_the_base = (
        "from dragoman.attention import labels; every = labels._candidates; "
        "labels._candidates = lambda: (each for each in every() if each[0] == labels.BASE_FONT)"
    )
    done = run("a你", "-o", tmp_path / "x.png", first=only_the_base)
    sentence = (
        "no installed font has Chinese characters such as 你, drawn as <U+4F60>; "
        "on Debian and Ubuntu, install the package fonts-wqy-microhei"
    )
    assert (done.returncode, done.stderr) == (0, f"dragoman: {sentence}\n")
    assert (tmp_path / "x.png").exists()


def test_a_servers_attention_is_drawn(tiny_server: LocalServer, tmp_path: Path) -> None:
    with Client(tiny_server.address) as client:
        answer = client.generate("42", attention=True)
        scored = client.score("42", [answer.text], attention=True)
        cut = client.generate("42", max_new_tokens=1, attention=True)
    assert answer.attention is not None
    own = draw(answer.attention, answer.source, answer.tokens)
    labels = [text.get_text() for text in own.figure().axes[0].get_yticklabels()]
    assert labels == [*(label(token.text) for token in answer.tokens), "(end)"]
    assert scored.scores[0].attention is not None
    given = draw(scored.scores[0].attention, scored.source, scored.scores[0].tokens[:-1])
    assert [text.get_text() for text in given.figure().axes[0].get_yticklabels()] == labels
    assert cut.finish_reason is FinishReason.LENGTH
    assert cut.attention is not None
    first = draw(cut.attention, cut.source, [cut.tokens[0].text, "(next)"])
    # What the command draws of this server is what Python draws. The model's own answer and the same as a given target
    # have the same rows; one that was cut has no end.
    for drawing, arguments in ((own, []), (given, [answer.text]), (first, ["--max-new-tokens", "1"])):
        picture = tmp_path / "picture.png"
        done = run("42", *arguments, "-o", picture, "--address", tiny_server.address)
        assert (done.returncode, done.stderr) == (0, "")
        assert picture.read_bytes() == drawing.render("png")
