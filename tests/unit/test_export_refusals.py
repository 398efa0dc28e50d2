"""What an export refuses before any work is done: one clear sentence, and nothing left behind."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dragoman_export.cli import app
from dragoman_export.errors import ExportError
from dragoman_export.export import ExportOptions, _move_into_place, export_run
from dragoman_export.run_data import evaluation_data, source_fault, spread
from dragoman_server.bundle.manifest import MANIFEST_FILE
from dragoman_training.data.pairs import pairs_digest
from dragoman_training.run.checkpoint import checkpoint_path, load_state, save_state
from dragoman_training.run.load import load_run
from tests.support.random_model import small_run, symbol_tokenizer

OPTIONS = ExportOptions(name="small")


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("run") / "run")


@pytest.fixture
def run(sound_run: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(sound_run, tmp_path / "run"))


def refused(run: Path, bundle: Path, options: ExportOptions = OPTIONS) -> str:
    """Returns the sentence with which an export is refused."""
    before = sorted(bundle.parent.rglob("*"))
    with pytest.raises(ExportError) as raised:
        export_run(run, bundle, options)
    assert sorted(bundle.parent.rglob("*")) == before, "something was left behind"
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ("recipe.yaml", "recipe.yaml is missing"),
        ("model.pt", "neither model.pt nor a checkpoint exists"),
        ("dev.tsv", "there is no dev or test data"),
    ],
)
def test_run_with_a_missing_file(missing: str, sentence: str, run: Path, tmp_path: Path) -> None:
    (run / missing).unlink()
    assert sentence in refused(run, tmp_path / "bundle")


def test_run_with_a_truncated_model(run: Path, tmp_path: Path) -> None:
    model = run / "model.pt"
    model.write_bytes(model.read_bytes()[:-100])
    assert f"{model}: truncated" in refused(run, tmp_path / "bundle")


def test_unfinished_run_is_reported(run: Path, tmp_path: Path) -> None:
    save_state(checkpoint_path(run, 120), load_state(run / "model.pt"))
    for name in ("model.pt", "dev.tsv"):  # without data the export ends before any work is done
        (run / name).unlink()
    lines: list[str] = []
    with pytest.raises(ExportError):
        export_run(run, tmp_path / "bundle", OPTIONS, lines.append)
    assert f"{run} is not finished; the bundle is made from the checkpoint at step 120" in lines


def add_test_set(run: Path, content: str) -> Path:
    test = run.parent / "test.tsv"
    test.write_text(content)
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("test: null", f"test: [{test}]"))
    assert str(test) in recipe.read_text()
    return test


@pytest.mark.parametrize(("name", "left", "before"), [("dev", 7, 8), ("test", 1, 2)])
def test_data_with_other_counts_than_the_run_measured(
    name: str, left: int, before: int, run: Path, tmp_path: Path
) -> None:
    # The last source is too long for the model, and was not measured.
    test = add_test_set(run, "w5 w6\tw7\nw7\tw8\nw5 w5 w5 w5 w5 w5 w5 w5 w5\tw5\n")
    (run / "data.json").write_text(json.dumps({"counts": {"dev": {"pairs": 8}, "test": {"pairs": 2}}}))
    data = evaluation_data(load_run(run), print)
    assert {name: len(pairs) for name, pairs in data.items()} == {"dev": 8, "test": 2}
    file, place = {"dev": (run / "dev.tsv", str(run / "dev.tsv")), "test": (test, "data.test")}[name]
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    message = refused(run, tmp_path / "bundle")
    assert message.startswith(f"{place}: holds {left} usable pairs, but the run measured {name} on {before} (")


def test_dev_that_the_run_measured_and_lost(run: Path, tmp_path: Path) -> None:
    """Test data alone is not enough: the loss of quality would be judged by other data than the run's report."""
    add_test_set(run, "w5 w6\tw7\n")
    (run / "data.json").write_text(json.dumps({"counts": {"dev": {"pairs": 8, "sources": 8}}}))
    dev = run / "dev.tsv"
    lines = dev.read_text().splitlines(keepends=True)
    dev.write_text("".join([lines[1], *lines[1:]]))  # as many pairs, with one source less
    message = refused(run, tmp_path / "bundle")
    assert message.startswith(f"{dev}: holds 7 usable sources, but the run measured dev on 8 (")
    dev.write_text("".join(lines)[:-5])
    assert refused(run, tmp_path / "bundle").startswith(f"{dev}:8: ")
    dev.unlink()
    message = refused(run, tmp_path / "bundle")
    assert message.startswith(f"{dev}: cannot be read")
    assert message.endswith("; the run measured dev on 8 pairs of it")


def test_data_of_the_same_size_with_other_texts(run: Path, tmp_path: Path) -> None:
    recorded = {"counts": {"dev": {"pairs": 8}}, "dev_sha256": pairs_digest(load_run(run).dev_pairs())}
    (run / "data.json").write_text(json.dumps(recorded))
    assert len(evaluation_data(load_run(run), print)["dev"]) == 8
    file = run / "dev.tsv"
    file.write_text("".join(f"{line.partition(chr(9))[0]}\tw5\n" for line in file.read_text().splitlines()))
    message = refused(run, tmp_path / "bundle")
    assert message.startswith(f"{file}: its texts are not those that the run measured dev on (")


@pytest.mark.parametrize(
    ("file", "overwrite", "sentence"),
    [(MANIFEST_FILE, False, "already exists"), ("letters.txt", True, "is not a bundle")],
)
def test_directory_that_is_not_overwritten(
    file: str, overwrite: bool, sentence: str, sound_run: Path, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / file).write_text("mine")
    assert sentence in refused(sound_run, place, ExportOptions(name="small", overwrite=overwrite))
    assert (place / file).read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "my model"}, "--name 'my model' must be letters"),
        ({"notices": [Path("/no/LICENSE")]}, "/no/LICENSE is not a file"),
        ({"notices": ["encoder.onnx"]}, "under the name encoder.onnx"),  # it would replace a graph
        (
            {"examples": ["w5 w6 w7 w8 w9 w10 w11 w12 w13"]},
            "'w5 w6 w7 w8 w9 w10 w11 w12 w13' has 10 tokens, more than the model's 9",
        ),
        ({"examples": ["w5 elephant"]}, "'w5 elephant' has characters that the model's tokenizer does not know"),
        ({"examples": [" "]}, "' ' has no visible characters"),
        ({"examples": ["w5\udcff"]}, r"--example 'w5\udcff' is not UTF-8"),
        ({"description": "\udcff"}, r"--description '\udcff' is not UTF-8"),
        ({"version": "1\udcff"}, r"--version '1\udcff' is not UTF-8"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], sentence: str, sound_run: Path, tmp_path: Path) -> None:
    (tmp_path / "encoder.onnx").write_text("free to all")
    notices = [tmp_path / path for path in options.get("notices", [])]
    found = refused(sound_run, tmp_path / "bundle", ExportOptions(**{"name": "small"} | options | {"notices": notices}))
    assert sentence in found


def test_heads_that_grouped_query_attention_does_not_support(tmp_path: Path) -> None:
    message = refused(small_run(tmp_path / "run", d_model=36, heads=3), tmp_path / "bundle")
    assert "12 wide" in message
    assert "--attention standard" in message


def test_place_that_can_not_be_written(sound_run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "can't be made" in refused(sound_run, tmp_path / "file" / "bundle")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        *((arguments, "--check BUNDLE") for arguments in ([], ["run"], ["run", "bundle", "--check", "bundle"])),
        (["a", "b", "--run", "c"], "--run needs --check"),
        *(
            (["run", "bundle", "--cache", "int8", *others], "--precision int8")
            for others in ([], ["--precision", "int4"], ["--precision", "int8", "--attention", "standard"])
        ),
        *((["a", "b", "--max-quality-loss", points], "0 or more") for points in ("nan", "inf", "-1")),
        *(
            (["--check", "bundle", *option], "only when making a bundle")
            for option in (["--precision", "int8"], ["--cache", "float"])
        ),
    ],
)
def test_arguments_that_do_not_fit_together(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert "Traceback" not in result.output


def test_command_line_reports_errors_and_exits_with_1(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [str(tmp_path), str(tmp_path / "bundle")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    result = CliRunner().invoke(app, ["--check", str(tmp_path / "bundle")])
    assert result.exit_code == 1
    assert "can't be opened" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["run"], ["--to-run", "bundle"], ["--if-needed", "--from-transformers", "model"]]
)
@pytest.mark.parametrize("place", ["n" * 300, "loop", "file/place"])
def test_impossible_places_are_refused_in_one_sentence(
    arguments: list[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("file").touch()
    result = CliRunner().invoke(app, [*arguments, place])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith("error: ")
    assert place in result.stderr


@pytest.mark.parametrize("renames", [0, 1, 2])
def test_an_interrupted_replacement_keeps_a_bundle(
    renames: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "bundle", tmp_path / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    done: list[Path] = []
    original = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if len(done) == renames:
            monkeypatch.undo()
            raise SystemExit(143)
        done.append(path)
        original(path, target)
        return target

    monkeypatch.setattr(Path, "rename", rename)
    if renames < 2:
        with pytest.raises(SystemExit):
            _move_into_place(new, old)
    else:
        _move_into_place(new, old)
    assert (old / "name").read_text() == ("new" if renames == 2 else "bundle")
    assert not list(tmp_path.glob(".bundle.*"))


def test_spread_takes_distinct_evenly_spaced_texts() -> None:
    texts = [f"t{i // 2}" for i in range(200)]
    assert spread(texts, 4) == ["t12", "t37", "t62", "t87"]
    assert spread(["a", "b"], 5) == ["a", "b"]
    assert spread([], 5) == []


def test_source_fault_accepts_texts_up_to_the_limit() -> None:
    tokenizer = symbol_tokenizer(9)
    assert source_fault(tokenizer, "w5 w6", 3, 1) is None
    assert source_fault(tokenizer, "w5 w6 w7", 3, 1) == "has 4 tokens, more than the model's 3"
