"""The options of `dragoman generate`, `score` and `attention`, and their output."""

import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from dragoman import calls
from dragoman.attention import draw
from dragoman.attention.labels import label
from dragoman.cli.common import Server
from dragoman.cli.generate import generate
from dragoman.cli.runner import Printer
from dragoman.client import Client
from dragoman.local import LocalServer
from dragoman.requests import GenerateOptions
from dragoman.results import FinishReason, Hypothesis, Result
from dragoman.v1 import generation_pb2 as pb
from tests.support.scripted_server import ScriptedServer

COMMAND = [sys.executable, "-c", "from dragoman.cli import main; main()"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def printed(*arguments: str) -> str:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_option_of_generation_is_an_option_of_the_command() -> None:
    own = {"context", "texts", "prefix_ids", "suppress_sequence", "suppress_sequence_ids"}
    own |= {"stream", "as_json", *Server.__annotations__}
    renamed = {"suppressed_sequences"}
    assert set(inspect.signature(generate).parameters) - own | renamed == set(GenerateOptions.__annotations__)


@pytest.mark.parametrize("many", [True, False], ids=["now", "older server"])
def test_every_option_reaches_the_server(scripted: ScriptedServer, tmp_path: Path, many: bool) -> None:
    scripted.many = many
    shortlist = tmp_path / "shortlist"
    shortlist.write_text("4\tA\n\n5\t\\n\n6\n", encoding="utf-8")
    printed(
        *"generate --json --model m --priority batch --max-new-tokens 9 --min-new-tokens 2 --time-limit 1.5".split(),
        *"--beam-size 6 --length-normalization gnmt --length-penalty -0.5 --coverage-penalty 0.25".split(),
        *"--timeout 7 --early-stopping --stopping early --patience 2 --beam-groups 2 --diversity-penalty 0.75".split(),
        *"--sample --temperature 0.5 --top-k 40 --top-p 0.875 --min-p 0.125 --typical-p 0.25".split(),
        *"--seed 18446744073709551615 --prefix A --prefix-bias 0.5 --suppress-token 7 --suppress-token 8".split(),
        *"--suppress-sequence ab --suppress-sequence c --repetition-penalty 1.25 --no-repeat-ngram-size 3".split(),
        *"--encoder-no-repeat-ngram-size 3 --source-language de --target-language en".split(),
        *["--suppress-sequence-ids", "1, 2", "--stop", "\n", "--stop", ".", "--include-stop"],
        *["--vocabulary", str(shortlist), "--no-shortlist", "-n", "3", "--alternatives"],
        *"--tokens --log-probabilities --top-tokens 4 --alignment --attention abc".split(),
    )
    ((_, request),) = scripted.calls
    options: GenerateOptions = {
        "model": "m",
        "priority": "batch",
        "source_language": "de",
        "target_language": "en",
        "max_new_tokens": 9,
        "min_new_tokens": 2,
        "time_limit": 1.5,
        "beam_size": 6,
        "length_normalization": "gnmt",
        "length_penalty": -0.5,
        "coverage_penalty": 0.25,
        "early_stopping": True,
        "stopping": "early",
        "patience": 2,
        "beam_groups": 2,
        "diversity_penalty": 0.75,
        "sample": True,
        "temperature": 0.5,
        "top_k": 40,
        "top_p": 0.875,
        "min_p": 0.125,
        "typical_p": 0.25,
        "seed": 2**64 - 1,
        "prefix": "A",
        "prefix_bias": 0.5,
        "suppressed_tokens": [7, 8],
        "suppressed_sequences": ["ab", "c", [1, 2]],
        "repetition_penalty": 1.25,
        "no_repeat_ngram_size": 3,
        "encoder_no_repeat_ngram_size": 3,
        "stop_sequences": ["\n", "."],
        "include_stop_sequence": True,
        "vocabulary": [4, 5, 6],
        "use_shortlist": False,
        "num_hypotheses": 3,
        "alternatives": True,
        "tokens": True,
        "log_probabilities": True,
        "top_tokens": 4,
        "alignment": True,
        "attention": True,
    }
    assert options.keys() == GenerateOptions.__annotations__.keys()
    assert request == calls.generate("abc", **options).request
    if not many:
        assert scripted.timeouts[0] is not None
        assert 5 < scripted.timeouts[0] <= 7


def test_only_given_options_are_sent_zeros_included(scripted: ScriptedServer) -> None:
    printed("generate", "abc")
    printed("generate", "--prefix-ids", "5 17", "--temperature", "0", "--seed", "0", "abc")
    plain, zeros = (request for _, request in scripted.calls)
    waited_for = pb.PRIORITY_INTERACTIVE  # many texts have the priority of batches unless somebody waits for them
    assert plain == pb.GenerateRequest(input=pb.Input(text="abc"), options={}, details={}, priority=waited_for)
    prefix = pb.Input(token_ids=pb.TokenIds(ids=[5, 17]))
    assert zeros.options == pb.GenerationOptions(prefix=prefix, temperature=0, seed=0)


def test_each_of_several_answers_has_a_line(scripted: ScriptedServer) -> None:
    assert printed("generate", "-n", "2", "--beam-size", "2", "a\nb", "c") == (
        "1\t-0.5000\tA\\nB\n2\t-0.5000\tA\\nB!\n1\t-0.5000\tC\n2\t-0.5000\tC!\n"
    )
    assert printed("generate", "-n", "2", "--tokens", "ab") == "1\t-0.5000\tAB\tA B\n2\t-0.5000\tAB!\tA B !\n"
    done = run("generate", "-n", "2", "bad", "c")
    assert (done.returncode, done.stdout) == (1, "\n1\t-0.5000\tC\n2\t-0.5000\tC!\n")


def test_requested_details_are_columns_after_the_text(scripted: ScriptedServer) -> None:
    assert printed("generate", "--log-probabilities", "ab") == "AB\t-1.0000\tA(-0.5000) B(-0.5000)\n"
    assert printed("generate", "--alignment", "ab") == "AB\t0-0 1-1\n"
    assert printed("generate", "--top-tokens", "2", "--alignment", "--prefix", "x", "a") == (
        "xA\t-0.5000\tx A(-0.5000)|B(-1.5000)\t0-0 1-1\n"
    )
    assert printed("generate", "--stream", "--tokens", "--alignment", "ab") == "AB\tA B\t0-0 1-1\n"


def test_json_has_the_hypotheses_and_details(scripted: ScriptedServer) -> None:
    answer = json.loads(printed("generate", "--json", "-n", "2", "--sample", "a"))
    assert answer == {
        "hypotheses": [
            {"text": "A", "finish_reason": "EOS", "target_tokens": 1, "score": -0.5},
            {"text": "A!", "finish_reason": "EOS", "target_tokens": 2, "score": -0.5},
        ],
        "source_tokens": 2,
        "model": "capitals",
        "seed": 2**64 - 1,
    }
    answer = json.loads(printed("generate", "--json", "--attention", "--alignment", "--top-tokens", "1", "a"))
    assert answer["log_probability"] == answer["score"] == -0.5
    (token,) = answer["tokens"]
    assert token == {
        "id": 65,
        "text": "A",
        "log_probability": -0.5,
        "alternatives": [{"id": 65, "text": "A", "log_probability": -0.5}],
    }
    assert [each["text"] for each in answer["source"]] == ["a", "$"]
    assert answer["alignment"] == [0]
    looks = [[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2, [[1.0, 0.0]] * 2]
    assert answer["attention"] == [looks, looks]


def test_streams_of_samples_and_beams(scripted: ScriptedServer) -> None:
    *pieces, last = map(json.loads, printed("generate", "--stream", "--json", "-n", "2", "--sample", "a").splitlines())
    assert pieces == [
        {"piece": "A", "hypothesis": 0},
        {"piece": "A", "hypothesis": 1},
        {"piece": "!", "hypothesis": 1},
        {"piece": "", "hypothesis": 0},
    ]
    assert [each["text"] for each in last["hypotheses"]] == ["A", "A!"]
    first, *_ = map(json.loads, printed("generate", "--stream", "--json", "--tokens", "a").splitlines())
    assert first == {"piece": "A", "tokens": [{"id": 65, "text": "A"}]}
    first, second, last = map(
        json.loads, printed("generate", "--stream", "--json", "--beam-size", "2", "a").splitlines()
    )
    assert first == {"progress": {"tokens": 1, "running": 2, "finished": 0}}
    assert second == {"piece": "A"}
    assert last["text"] == "A"
    assert printed("generate", "--stream", "--beam-size", "2", "ab") == "AB\n"


def test_a_dead_end_is_reported(scripted: ScriptedServer) -> None:
    done = run("generate", "--suppress-token", "65", "--suppress-token", "66", "ab")
    assert (done.returncode, done.stdout) == (0, "\n")
    assert done.stderr == "dragoman: the constraints allowed no further token after 0 tokens\n"


def test_targets_are_scored(scripted: ScriptedServer) -> None:
    assert printed("score", "ab", "abc", "", "a\nb") == "-1.5000\tabc\n0.0000\t\n-1.5000\ta\\nb\n"
    assert printed("score", "ab", "a", "--tokens", "--alignment") == "-0.2500\ta\ta(-0.0000) $(-0.2500)\t0-0 1-1\n"
    found = json.loads(printed("score", "--json", "--attention", "--alignment", "--model", "m", "a", "b", "c"))
    assert found["model"] == "capitals"
    assert [each["text"] for each in found["source"]] == ["a", "$"]
    first, second = found["scores"]
    assert (first["target"], first["log_probability"], first["alignment"]) == ("b", -0.25, [0, 1])
    assert second["tokens"][0] == {"id": ord("c"), "text": "c", "log_probability": 0.0}
    assert second["attention"][1][1] == [[0.0, 1.0], [0.0, 1.0]]
    assert scripted.calls[-1][1].model == "m"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--attention", "a"], "--attention needs --json"),
        (["score", "--attention", "a", "b"], "--attention needs --json"),
        (["score", "a"], "TARGET"),
        (["translate"], "translate"),
        (["generate", "--address", "nowhere", "a"], "address: expected HOST:PORT, got 'nowhere'"),
        (["generate", "--time-limit", "nan", "a"], "time_limit: expected more than 0 and at most 315576000000 sec"),
        (["generate", "--max-new-tokens", "x", "a"], "max-new-tokens"),
        (["generate", "--timeout", "0", "a"], "timeout"),
        (["tokenize", "--side", "left", "a"], "side"),
        (["generate", "--stream", "-n", "2", "a"], "--stream of more than one hypothesis needs --json"),
        (["generate", "--prefix", "a", "--prefix-ids", "5", "a"], "are mutually exclusive"),
        (["generate", "--length-normalization", "wu", "a"], "length"),
        (["generate", "--vocabulary", "no-such-file", "a"], "no-such-file"),
        (["generate", "--prefix-ids", "5 b", "a"], 'dragoman: --prefix-ids: expected token ids, as in "5 17", got'),
        (["generate", "--seed", "-1", "a"], "dragoman: seed: -1 does not fit in 64 bits, unsigned"),
        (["generate", "--temperature", "nan", "a"], "dragoman: temperature: expected a 32-bit number, got nan"),
        (["models", "--cert", "x.pem"], "--cert and --key must be set together"),
    ],
)
def test_wrong_usage_is_one_sentence(scripted: ScriptedServer, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert scripted.calls == []


def test_an_invalid_line_of_a_shortlist_is_reported(scripted: ScriptedServer, tmp_path: Path) -> None:
    shortlist = tmp_path / "shortlist"
    shortlist.write_text("4\nA\t5\n", encoding="utf-8")
    done = run("generate", "--vocabulary", str(shortlist), "a")
    assert (done.returncode, done.stderr) == (2, f"dragoman: {shortlist}, line 2: expected a token id, got 'A'\n")


def test_ids_that_are_missing_are_sent(scripted: ScriptedServer, tmp_path: Path) -> None:
    (shortlist := tmp_path / "shortlist").touch()
    printed("generate", "--vocabulary", str(shortlist), "--prefix-ids", "", "--stream", "a")
    [(_, request)] = scripted.calls
    assert request.options.HasField("vocabulary")
    assert request.options.prefix.HasField("token_ids")


def test_the_help_explains_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    shown = printed("generate", "--help")
    for panel in ("Length", "Beam search", "Sampling", "Constraints", "Output", "Server"):
        assert f"─ {panel} ─" in shown
    assert "its index, which starts at 1 with each text" in " ".join(shown.split())
    options = [line.split() for line in shown.splitlines() if line.startswith("│ --")]
    assert len(options) == len(inspect.signature(generate).parameters) - 2 + 1  # context and TEXT are none, --help is
    assert all(len(words) > 6 for words in options)


def test_models_and_tokens_are_shown(scripted: ScriptedServer) -> None:
    shown = " ".join(printed("models").split())
    assert "capitals" in shown
    assert "test sequence error rate (%) 20.5" in shown
    assert "decoder 2 layers of 3 heads" in shown
    assert "limits 16 hypotheses per beam, 8 samples or alternatives, 20 top tokens per position" in shown
    assert "suppressed sequences" not in shown  # the server reports none
    (model,) = json.loads(printed("models", "--json"))
    assert (model["heads"], model["limits"]["beam_size"], model["max_source_tokens"]) == (3, 16, 48)
    assert printed("tokenize", "aé") == "97\ta\n233\té\n"
    assert json.loads(printed("tokenize", "--json", "a")) == [{"id": 97, "text": "a"}]


def test_an_answer_to_unseen_tokens_is_called_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    hypothesis = Hypothesis("hello", FinishReason.EOS, 5)
    guess = Result((hypothesis,), source_tokens=7, model="m", unseen_source_tokens=(2, 3))
    printer = Printer("line", as_json=False, options={})
    printer.answered(guess)
    printer.answered(Result((hypothesis,), 7, "m"))
    Printer("", as_json=True, options={}).answered(guess)
    output = capsys.readouterr()
    first, second, as_json = output.out.splitlines()
    assert (first, second, json.loads(as_json)["unseen_source_tokens"]) == ("hello", "hello", [2, 3])
    warning = "the answer is a guess: 2 of 7 source tokens do not occur in training data"
    assert output.err == f"dragoman: line 1: {warning}\ndragoman: {warning}\n"
    assert printer.failures == 0


def attention(*arguments: str | Path, before: str = "pass") -> subprocess.CompletedProcess[str]:
    """Runs `dragoman attention` after a Python statement."""
    script = f"import sys; from dragoman.cli import main; {before}; main()"
    command = [sys.executable, "-c", script, "attention", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_attention_of_the_model_s_own_answer_is_drawn(scripted: ScriptedServer, tmp_path: Path) -> None:
    done = attention("abc", "-o", tmp_path / "own.png", "--model", "m", "--max-new-tokens", "5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ((method, request),) = scripted.calls
    assert (method, request.input.text, request.model) == ("Generate", "abc", "m")
    assert (request.details.attention, request.options.max_new_tokens) == (True, 5)
    assert imread(tmp_path / "own.png").shape[2] == 4


def test_attention_of_a_given_target_is_drawn(scripted: ScriptedServer, tmp_path: Path) -> None:
    done = attention("abc", "xy", "--output", tmp_path / "given.svg", "--grid", "--head", "1", "--theme", "dark")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ((method, request),) = scripted.calls
    assert (method, request.input.text, [target.text for target in request.targets]) == ("Score", "abc", ["xy"])
    assert request.attention
    assert "#0d1117" in (tmp_path / "given.svg").read_text()


def test_attention_of_selected_layers_and_heads_is_drawn(scripted: ScriptedServer, tmp_path: Path) -> None:
    pictures = []
    for options in (["--head", "1"], ["--head", "-2"], ["--head", "1", "--layer", "0"], ["--head", "2"]):
        assert attention("abc", "-o", tmp_path / "picture.png", *options).returncode == 0
        pictures.append(imread(tmp_path / "picture.png"))
    assert np.array_equal(pictures[0], pictures[1])
    assert pictures[0].shape != pictures[2].shape or not np.array_equal(pictures[0], pictures[2])  # another caption
    assert not np.array_equal(pictures[0], pictures[3])


@pytest.mark.parametrize("name", ["x.gif", "x"])
def test_an_unknown_picture_format_is_refused_before_any_call(scripted: ScriptedServer, name: str) -> None:
    done = attention("abc", "-o", name)
    message = f"dragoman: {name}: the file name must end in .png, .svg or .pdf\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
    assert scripted.calls == []


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("sys.modules['matplotlib'] = None", "matplotlib is not installed"),
        (
            "import matplotlib; matplotlib.__version__, matplotlib.__version_info__ = '3.10.9', (3, 10, 9, 'final', 0)",
            "matplotlib 3.11 is needed, not 3.10.9",
        ),
    ],
)
def test_missing_matplotlib_is_reported_before_any_call(
    scripted: ScriptedServer, tmp_path: Path, before: str, message: str
) -> None:
    done = attention("abc", "-o", tmp_path / "x.png", before=before)
    remedy = "run `pip install '.[attention]'` in a clone of Dragoman"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"dragoman: {message}; {remedy}\n")
    assert scripted.calls == []


@pytest.mark.usefixtures("scripted")
def test_errors_of_attention_are_one_sentence(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere" / "x.png"
    assert (
        attention("abc", "-o", nowhere).stderr == f"dragoman: {nowhere} can't be written: No such file or directory\n"
    )
    assert attention("bad", "-o", tmp_path / "x.png").stderr == "dragoman: input.text is bad\n"
    done = attention("abc", "-o", tmp_path / "x.png", "--layer", "2")
    assert (done.returncode, done.stderr) == (
        1,
        "dragoman: layer: there is no 2; the layers are 0 to 1, or -1 for the last\n",
    )


@pytest.mark.usefixtures("scripted")
def test_characters_without_a_font_are_reported_and_drawn(tmp_path: Path) -> None:
    only_the_base = (
        "from dragoman.attention import labels; every = labels._candidates; "
        "labels._candidates = lambda: (each for each in every() if each[0] == labels.BASE_FONT)"
    )
    done = attention("a你", "-o", tmp_path / "x.png", before=only_the_base)
    warning = (
        "no installed font has Chinese characters such as 你, drawn as <U+4F60>; "
        "on Debian and Ubuntu, install the package fonts-wqy-microhei"
    )
    assert (done.returncode, done.stderr) == (0, f"dragoman: {warning}\n")
    assert (tmp_path / "x.png").exists()


def test_the_command_draws_what_python_draws(tiny_server: LocalServer, tmp_path: Path) -> None:
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
    for drawing, arguments in ((own, []), (given, [answer.text]), (first, ["--max-new-tokens", "1"])):
        picture = tmp_path / "picture.png"
        done = attention("42", *arguments, "-o", picture, "--address", tiny_server.address)
        assert (done.returncode, done.stderr) == (0, "")
        assert picture.read_bytes() == drawing.render("png")
