"""What an export refuses before any work is done: one clear sentence, and nothing left behind."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman_export.cli import app
from dragoman_export.errors import ExportError
from dragoman_export.export import ExportOptions, export_run
from dragoman_export.run_data import evaluation_data, source_fault, spread
from dragoman_server.bundle.manifest import MANIFEST_FILE
from dragoman_training.data.prepare import pairs_digest
from dragoman_training.run.checkpoint import checkpoint_path, load_state, save_state
from dragoman_training.run.load import load_run
from tests.support.random_model import small_run, symbol_tokenizer


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("run") / "run")


def refused(run: Path, bundle: Path, options: ExportOptions) -> str:
    """The sentence with which an export is refused."""
    before = sorted(bundle.parent.rglob("*"))
    with pytest.raises(ExportError) as raised:
        export_run(run, bundle, options)
    assert sorted(bundle.parent.rglob("*")) == before, "something was left behind"
    message = str(raised.value)
    assert "\n" not in message
    return message


OPTIONS = ExportOptions(name="small")


def test_run_that_is_none(tmp_path: Path) -> None:
    assert "recipe.yaml is missing" in refused(tmp_path, tmp_path / "bundle", OPTIONS)


def test_run_without_checkpoints(run: Path, tmp_path: Path) -> None:
    empty = tmp_path / "run"
    shutil.copytree(run, empty)
    (empty / "model.pt").unlink()
    assert "neither model.pt nor a checkpoint exists" in refused(empty, tmp_path / "bundle", OPTIONS)


def test_run_that_has_not_ended_is_said_to_be_one(run: Path, tmp_path: Path) -> None:
    begun = tmp_path / "run"
    shutil.copytree(run, begun)
    save_state(checkpoint_path(begun, 120), load_state(begun / "model.pt"))
    for name in ("model.pt", "dev.tsv"):  # without data it ends before any work is done
        (begun / name).unlink()
    said: list[str] = []
    with pytest.raises(ExportError):
        export_run(begun, tmp_path / "bundle", OPTIONS, said.append)
    assert said[0] == f"{begun} is not finished; the bundle is made of the checkpoint at step 120"


def test_run_with_truncated_model(run: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "run"
    shutil.copytree(run, damaged)
    model = damaged / "model.pt"
    model.write_bytes(model.read_bytes()[:-100])
    assert f"{model}: truncated" in refused(damaged, tmp_path / "bundle", OPTIONS)


def test_run_whose_data_is_gone(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "run"
    shutil.copytree(run, bare)
    (bare / "dev.tsv").unlink()
    message = refused(bare, tmp_path / "bundle", OPTIONS)
    assert "neither dev nor test data" in message


@pytest.mark.parametrize("name", ["dev", "test"])
def test_data_that_is_not_what_the_run_measured(name: str, run: Path, tmp_path: Path) -> None:
    changed = tmp_path / "run"
    shutil.copytree(run, changed)
    test = tmp_path / "test.tsv"
    # The last source is too long for the model, and was not measured.
    test.write_text("w5 w6\tw7\nw7\tw8\nw5 w5 w5 w5 w5 w5 w5 w5 w5\tw5\n")
    recipe = changed / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("test: null", f"test: [{test}]"))
    assert str(test) in recipe.read_text()
    counts = {"dev": {"pairs": 8}, "test": {"pairs": 2}}
    (changed / "data.json").write_text(json.dumps({"counts": counts}))
    data = evaluation_data(load_run(changed), print)
    assert {name: len(pairs) for name, pairs in data.items()} == {"dev": 8, "test": 2}
    file = {"dev": changed / "dev.tsv", "test": test}[name]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    place = {"dev": str(changed / "dev.tsv"), "test": "data.test"}[name]
    left, before = {"dev": (7, 8), "test": (1, 2)}[name]
    message = refused(changed, tmp_path / "bundle", OPTIONS)
    assert message.startswith(f"{place}: holds {left} usable pairs, but the run measured {name} on {before} (")


def test_dev_that_the_run_measured_and_lost(run: Path, tmp_path: Path) -> None:
    """Though there is test data: what the gate would judge by is not what the run says."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    test = tmp_path / "test.tsv"
    test.write_text("w5 w6\tw7\n")
    recipe = copy / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("test: null", f"test: [{test}]"))
    (copy / "data.json").write_text(json.dumps({"counts": {"dev": {"pairs": 8, "sources": 8}}}))
    dev = copy / "dev.tsv"
    lines = dev.read_text().splitlines(keepends=True)
    dev.write_text("".join([lines[1], *lines[1:]]))  # as many pairs, of one source less
    message = refused(copy, tmp_path / "bundle", OPTIONS)
    assert message.startswith(f"{dev}: holds 7 usable sources, but the run measured dev on 8 (")
    dev.write_text("".join(lines)[:-5])
    assert refused(copy, tmp_path / "bundle", OPTIONS).startswith(f"{dev}:8: ")
    dev.unlink()
    message = refused(copy, tmp_path / "bundle", OPTIONS)
    assert message.startswith(f"{dev}: cannot be read")
    assert message.endswith("; the run measured dev on 8 pairs of it")


def test_data_of_the_same_size_that_is_not_what_the_run_measured(run: Path, tmp_path: Path) -> None:
    changed = tmp_path / "run"
    shutil.copytree(run, changed)
    told = {"counts": {"dev": {"pairs": 8}}, "dev_sha256": pairs_digest(load_run(changed).dev_pairs())}
    (changed / "data.json").write_text(json.dumps(told))
    assert len(evaluation_data(load_run(changed), print)["dev"]) == 8
    file = changed / "dev.tsv"
    file.write_text("".join(f"{line.partition(chr(9))[0]}\tw5\n" for line in file.read_text().splitlines()))
    message = refused(changed, tmp_path / "bundle", OPTIONS)
    assert message.startswith(f"{file}: its texts are not those that the run measured dev on (")


def test_bundle_that_exists(run: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / MANIFEST_FILE).write_text("{}")
    assert "exists already" in refused(run, bundle, OPTIONS)
    assert (bundle / MANIFEST_FILE).read_text() == "{}"


def test_directory_that_is_no_bundle_is_never_overwritten(run: Path, tmp_path: Path) -> None:
    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "letters.txt").write_text("mine")
    assert "is not a bundle" in refused(run, precious, ExportOptions(name="small", overwrite=True))


def test_name_that_no_request_could_hold(run: Path, tmp_path: Path) -> None:
    assert "--name 'my model' must be letters" in refused(run, tmp_path / "bundle", ExportOptions(name="my model"))


def test_notice_that_is_missing(run: Path, tmp_path: Path) -> None:
    notices = [tmp_path / "LICENSE"]
    assert "is not a file" in refused(run, tmp_path / "bundle", ExportOptions(name="small", notices=notices))


def test_notice_that_would_take_a_graphs_place(run: Path, tmp_path: Path) -> None:
    notice = tmp_path / "encoder.onnx"
    notice.write_text("free to all")
    assert "under the name encoder.onnx" in refused(
        run, tmp_path / "bundle", ExportOptions(name="small", notices=[notice])
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("w5 w6 w7 w8 w9 w10 w11 w12 w13", "10 tokens"),
        ("w5 elephant", "does not know"),
        (" ", "has no visible characters"),
    ],
)
def test_example_that_the_model_can_not_take(run: Path, tmp_path: Path, text: str, reason: str) -> None:
    message = refused(run, tmp_path / "bundle", ExportOptions(name="small", examples=[text]))
    assert reason in message
    assert text in message


def test_heads_that_grouped_query_attention_can_not_take(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run", d_model=36, heads=3)
    message = refused(run, tmp_path / "bundle", OPTIONS)
    assert "12 wide" in message
    assert "--attention standard" in message


def test_place_that_can_not_be_written(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "can't be made" in refused(run, tmp_path / "file" / "bundle", OPTIONS)


@pytest.mark.parametrize("arguments", [[], ["run"], ["run", "bundle", "--check", "bundle"], ["a", "b", "--run", "c"]])
def test_command_line_that_asks_for_neither_or_both(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.output


@pytest.mark.parametrize("others", [[], ["--precision", "int4"], ["--precision", "int8", "--attention", "standard"]])
def test_integers_in_caches_go_with_int8_and_its_attention(others: list[str]) -> None:
    result = CliRunner().invoke(app, ["run", "bundle", "--cache", "int8", *others])
    assert result.exit_code == 2
    assert "--precision int8" in result.output


@pytest.mark.parametrize("points", ["nan", "inf", "-1"])
def test_quality_loss_is_a_number_of_points(points: str) -> None:
    result = CliRunner().invoke(app, ["run", "bundle", "--precision", "fp16", "--max-quality-loss", points])
    assert result.exit_code == 2
    assert "0 or more" in result.output


@pytest.mark.parametrize("option", [("--precision", "int8"), ("--cache", "float")])
def test_what_a_check_can_not_use_is_refused(option: tuple[str, str]) -> None:
    result = CliRunner().invoke(app, ["--check", "bundle", *option])
    assert result.exit_code == 2
    assert "only when making a bundle" in result.output


def test_command_line_says_what_is_wrong_and_exits_with_1(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path), str(tmp_path / "bundle")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    result = CliRunner().invoke(app, ["--check", str(tmp_path / "bundle")])
    assert result.exit_code == 1
    assert "can't be opened" in result.stderr


def test_spread_takes_distinct_texts_from_everywhere() -> None:
    texts = [f"t{i // 2}" for i in range(200)]
    assert spread(texts, 4) == ["t12", "t37", "t62", "t87"]
    assert spread(["a", "b"], 5) == ["a", "b"]
    assert spread([], 5) == []


def test_source_fault_names_the_reason() -> None:
    tokenizer = symbol_tokenizer(9)
    assert source_fault(tokenizer, "w5 w6", 3, 1) is None
    assert source_fault(tokenizer, "w5 w6 w7", 3, 1) == "has 4 tokens, more than the model's 3"
