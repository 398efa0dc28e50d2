"""Every option of `dragoman generate` and `dragoman score`, and how what they ask for is printed."""

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import duration_pb2

from dragoman.cli.common import Server
from dragoman.cli.generate import generate
from dragoman.requests import GenerateOptions
from dragoman.v1 import generation_pb2 as pb
from tests.support.scripted_server import ScriptedServer

COMMAND = [sys.executable, "-c", "from dragoman.cli import main; main()"]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    with ScriptedServer() as server:
        monkeypatch.setenv("DRAGOMAN_ADDRESS", server.address)
        yield server


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def printed(*arguments: str) -> str:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_option_of_generation_is_one_of_the_command() -> None:
    own = {"context", "texts", "prefix_ids", "suppress_sequence", "suppress_sequence_ids"}
    own |= {"stream", "as_json", *Server.__annotations__}
    given_otherwise = {"suppressed_sequences"}
    assert set(inspect.signature(generate).parameters) - own | given_otherwise == set(GenerateOptions.__annotations__)


def test_every_option_reaches_the_server(scripted: ScriptedServer, tmp_path: Path) -> None:
    shortlist = tmp_path / "shortlist"
    shortlist.write_text("4\tA\n\n5\t\\n\n6\n", encoding="utf-8")
    printed(
        *"generate --json --model m --priority batch --max-new-tokens 9 --min-new-tokens 2 --time-limit 1.5".split(),
        *"--beam-size 6 --length-normalization gnmt --length-penalty -0.5 --coverage-penalty 0.25".split(),
        *"--early-stopping --patience 2 --beam-groups 2 --diversity-penalty 0.75".split(),
        *"--sample --temperature 0.5 --top-k 40 --top-p 0.875 --min-p 0.125 --typical-p 0.25".split(),
        *"--seed 18446744073709551615 --prefix A --prefix-bias 0.5 --suppress-token 7 --suppress-token 8".split(),
        *"--suppress-sequence ab --suppress-sequence c --repetition-penalty 1.25 --no-repeat-ngram-size 3".split(),
        *["--suppress-sequence-ids", "1, 2", "--stop", "\n", "--stop", ".", "--include-stop"],
        *["--vocabulary", str(shortlist), "-n", "3", "--alternatives"],
        *"--tokens --log-probabilities --top-tokens 4 --alignment --attention abc".split(),
    )
    ((_, request),) = scripted.calls
    assert request == pb.GenerateRequest(
        model="m",
        input=pb.Input(text="abc"),
        options=pb.GenerationOptions(
            max_new_tokens=9,
            min_new_tokens=2,
            time_limit=duration_pb2.Duration(seconds=1, nanos=500_000_000),
            beam_size=6,
            length_normalization=pb.LENGTH_NORMALIZATION_GNMT,
            length_penalty=-0.5,
            coverage_penalty=0.25,
            early_stopping=True,
            patience=2,
            beam_groups=2,
            diversity_penalty=0.75,
            sample=True,
            temperature=0.5,
            top_k=40,
            top_p=0.875,
            min_p=0.125,
            typical_p=0.25,
            seed=2**64 - 1,
            prefix=pb.Input(text="A"),
            prefix_bias=0.5,
            suppressed_tokens=[7, 8],
            suppressed_sequences=[
                pb.Input(text="ab"),
                pb.Input(text="c"),
                pb.Input(token_ids=pb.TokenIds(ids=[1, 2])),
            ],
            repetition_penalty=1.25,
            no_repeat_ngram_size=3,
            stop_sequences=["\n", "."],
            include_stop_sequence=True,
            vocabulary=pb.TokenIds(ids=[4, 5, 6]),
            num_hypotheses=3,
            alternatives=True,
        ),
        details=pb.Details(tokens=True, log_probabilities=True, top_tokens=4, alignment=True, attention=True),
        priority=pb.PRIORITY_BATCH,
    )


def test_what_is_not_given_is_not_sent_and_zeros_are(scripted: ScriptedServer) -> None:
    printed("generate", "abc")
    printed("generate", "--prefix-ids", "5 17", "--temperature", "0", "--seed", "0", "abc")
    plain, zeros = (request for _, request in scripted.calls)
    assert plain == pb.GenerateRequest(input=pb.Input(text="abc"), options={}, details={})
    prefix = pb.Input(token_ids=pb.TokenIds(ids=[5, 17]))
    assert zeros.options == pb.GenerationOptions(prefix=prefix, temperature=0, seed=0)


def test_several_answers_have_a_line_each(scripted: ScriptedServer) -> None:
    assert printed("generate", "-n", "2", "--beam-size", "2", "a\nb", "c") == (
        "1\t-0.5000\tA\\nB\n2\t-0.5000\tA\\nB!\n1\t-0.5000\tC\n2\t-0.5000\tC!\n"
    )
    assert printed("generate", "-n", "2", "--tokens", "ab") == "1\t-0.5000\tAB\tA B\n2\t-0.5000\tAB!\tA B !\n"
    done = run("generate", "-n", "2", "bad", "c")
    assert (done.returncode, done.stdout) == (1, "\n1\t-0.5000\tC\n2\t-0.5000\tC!\n")


def test_columns_follow_the_text(scripted: ScriptedServer) -> None:
    assert printed("generate", "--alignment", "ab") == "AB\t0-0 1-1\n"
    assert printed("generate", "--top-tokens", "2", "--alignment", "--prefix", "x", "a") == (
        "xA\t-0.5000\tx A(-0.5000)|B(-1.5000)\t0-0 1-1\n"
    )
    assert printed("generate", "--stream", "--tokens", "--alignment", "ab") == "AB\tA B\t0-0 1-1\n"


def test_json_has_the_hypotheses_and_all_else(scripted: ScriptedServer) -> None:
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


def test_an_answer_of_which_nothing_was_left_is_noted(scripted: ScriptedServer) -> None:
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
    ("arguments", "status", "says"),
    [
        (["generate", "--attention", "a"], 2, "--attention needs --json"),
        (["score", "--attention", "a", "b"], 2, "--attention needs --json"),
        (["score", "a"], 2, "TARGET"),
        (["generate", "--stream", "-n", "2", "a"], 2, "--stream of more than one hypothesis needs --json"),
        (["generate", "--prefix", "a", "--prefix-ids", "5", "a"], 2, "exclude each other"),
        (["generate", "--length-normalization", "wu", "a"], 2, "length"),
        (["generate", "--vocabulary", "no-such-file", "a"], 2, "no-such-file"),
        (["generate", "--prefix-ids", "5 b", "a"], 2, 'dragoman: --prefix-ids: expected token ids, as in "5 17", got'),
        (["generate", "--seed", "-1", "a"], 2, "dragoman: seed: -1 does not fit in 64 bits without a sign"),
        (["generate", "--temperature", "nan", "a"], 2, "dragoman: temperature: expected a number of 32 bits, got nan"),
        (["models", "--cert", "x.pem"], 2, "--cert and --key need each other"),
    ],
)
def test_wrong_usage_is_one_sentence(scripted: ScriptedServer, arguments: list[str], status: int, says: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (status, "")
    assert says in done.stderr
    assert scripted.calls == []


def test_a_shortlist_with_a_bad_line_is_named_with_its_place(scripted: ScriptedServer, tmp_path: Path) -> None:
    shortlist = tmp_path / "shortlist"
    shortlist.write_text("4\nA\t5\n", encoding="utf-8")
    done = run("generate", "--vocabulary", str(shortlist), "a")
    assert (done.returncode, done.stderr) == (2, f"dragoman: {shortlist}, line 2: expected a token id, got 'A'\n")


def test_the_help_explains_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    shown = printed("generate", "--help")
    for panel in ("Length", "Beam search", "Sampling", "Constraints", "Output", "Server"):
        assert f"─ {panel} ─" in shown
    assert "its index, which starts at 1 with each text" in " ".join(shown.split())
    options = [line.split() for line in shown.splitlines() if line.startswith("│ --")]
    assert len(options) == len(inspect.signature(generate).parameters) - 2 + 1  # context and TEXT are none, --help is
    assert all(len(words) > 6 for words in options)


def test_models_tell_their_limits(scripted: ScriptedServer) -> None:
    shown = " ".join(printed("models").split())
    assert "decoder 2 layers of 3 heads" in shown
    assert "limits 16 hypotheses per beam, 8 samples or alternatives, 20 top tokens per position" in shown
    assert "suppressed sequences" not in shown  # the server did not say
    (model,) = json.loads(printed("models", "--json"))
    assert (model["heads"], model["limits"]["beam_size"]) == (3, 16)
