"""The run directory: checkpoints and their averages, the metrics log, locks, and loading a run."""

import io
import os
import resource
import threading
from errno import ENOSPC
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from typer.testing import CliRunner

from dragoman_training import cli
from dragoman_training.data.tokenizers import SPECIAL_TOKENS
from dragoman_training.errors import TrainingError
from dragoman_training.files import write
from dragoman_training.processes import Processes
from dragoman_training.recipe import load_recipe
from dragoman_training.run import checkpoint
from dragoman_training.run.checkpoint import (
    average_checkpoints,
    checkpoint_path,
    checkpoint_steps,
    delete_checkpoints,
    latest_checkpoint,
    load_state,
    save_state,
)
from dragoman_training.run.directory import lock_directory
from dragoman_training.run.load import load_run
from dragoman_training.run.metrics_log import MetricsLog, draw_curves, read_metrics_log
from dragoman_training.trainer.together import resolve_accumulate
from tests.support.training import SMALL, TINY, run_training, small_recipe

# Checkpoints


def save_steps(run: Path, *steps: int) -> None:
    for step in steps:
        weights = {"w": torch.full((1000,), float(step)), "half": torch.full((2,), step, dtype=torch.bfloat16)}
        save_state(checkpoint_path(run, step), {"model": weights, "step": step})


def latest_step(run: Path) -> int:
    state = latest_checkpoint(run)
    assert state is not None
    assert torch.equal(state["model"]["w"], torch.full((1000,), float(state["step"])))
    return int(state["step"])


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "modified":
        path.write_bytes(content[:-300] + bytes([content[-300] ^ 1]) + content[-299:])
    else:
        path.with_suffix(".sha256").unlink()


def test_save_load_and_delete(tmp_path: Path) -> None:
    save_steps(tmp_path, 5, 12)
    assert checkpoint_steps(tmp_path) == [5, 12]
    assert latest_step(tmp_path) == 12
    assert latest_checkpoint(tmp_path / "elsewhere") is None
    names = [f"step-{step}.{suffix}" for step in ("00000005", "00000012") for suffix in ("pt", "sha256")]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == names
    save_steps(tmp_path, 13)
    for partial in (".step-00000003.pt.whole", "..step-00000003.pt.whole.partial", ".step-00000003.sha256.partial"):
        (tmp_path / "checkpoints" / partial).touch()
    delete_checkpoints(tmp_path, {12, 5})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == names


def test_hidden_files_of_others_stay(tmp_path: Path) -> None:
    """Those of Jupyter; and of NFS, which can't be deleted while a process reads a checkpoint that is deleted."""
    save_steps(tmp_path, 1)
    for name in (".ipynb_checkpoints", ".nfs000000000123"):
        (tmp_path / "checkpoints" / name).mkdir()
    delete_checkpoints(tmp_path, {1})
    assert len(list((tmp_path / "checkpoints").iterdir())) == 4


@pytest.mark.parametrize("how", ["truncated", "empty", "modified", "without checksum"])
def test_a_damaged_checkpoint_is_skipped(how: str, tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 3)
    damage(checkpoint_path(tmp_path, 3), how)
    with pytest.raises(TrainingError, match=r"step-00000003\.pt: truncated or modified"):
        load_state(checkpoint_path(tmp_path, 3))
    warnings: list[str] = []
    state = latest_checkpoint(tmp_path, warnings.append)
    assert state is not None
    assert state["step"] == 2
    [warning] = warnings
    assert "step-00000003.pt" in warning
    assert "using the previous checkpoint" in warning


def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew(tmp_path: Path) -> None:
    """It would delete them, and train untrained weights instead of those that it has started from."""
    save_steps(tmp_path, 0, 1)
    for step in (0, 1):
        damage(checkpoint_path(tmp_path, step), "truncated")
    warnings: list[str] = []
    with pytest.raises(TrainingError, match=r"step-00000000\.pt: truncated .*, and no other checkpoint is intact; "):
        latest_checkpoint(tmp_path, warnings.append)
    assert len(warnings) == 1


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    copies = [tmp_path / "checkpoints" / name for name in ("step-best.pt", "step-00000001 (copy).pt", "step-1.pt")]
    for copy in copies:
        copy.write_bytes(checkpoint_path(tmp_path, 1).read_bytes())
    assert checkpoint_steps(tmp_path) == [1]
    delete_checkpoints(tmp_path, {1})
    assert all(copy.exists() for copy in copies)


def test_a_kill_before_the_rename_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_steps(tmp_path, 1)

    def kill(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            save_steps(tmp_path, 2)
    assert latest_step(tmp_path) == 1
    save_steps(tmp_path, 2)
    assert checkpoint_steps(tmp_path) == [1, 2]


def test_an_error_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk it would take the room that the next try needs."""

    def fill(file: BinaryIO) -> None:
        file.write(b"half")
        raise OSError(ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "a", fill)
    assert list(tmp_path.iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_text", lambda *_: fill(io.BytesIO()))
        with pytest.raises(OSError, match="No space left"):
            save_steps(tmp_path, 1)
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("room", [0, 64, 3000, 20_000, 40_000])
def test_a_checkpoint_for_which_the_disk_has_no_room(room: int, tmp_path: Path) -> None:
    save_steps(tmp_path, 1)
    state = {"model": {name: torch.zeros(2000) for name in "abcdef"}}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match=r"File too large: .*/\.\.step-00000002\.pt\.whole\.partial"):
            save_state(checkpoint_path(tmp_path, 2), state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert latest_step(tmp_path) == 1


def test_average(tmp_path: Path) -> None:
    save_steps(tmp_path, 1, 2, 6)
    weights, steps = average_checkpoints(tmp_path, [1, 2, 6])
    assert steps == [1, 2, 6]
    assert torch.equal(weights["w"], torch.full((1000,), 3.0))
    assert weights["half"].dtype == torch.bfloat16
    damage(checkpoint_path(tmp_path, 6), "truncated")
    warnings: list[str] = []
    weights, steps = average_checkpoints(tmp_path, [1, 2, 6], warnings.append)
    assert steps == [1, 2]
    assert weights["w"][0] == 1.5
    assert "averaging without it" in warnings[0]
    with pytest.raises(TrainingError, match="no intact checkpoint to average"):
        average_checkpoints(tmp_path, [6], warnings.append)


# The metrics log


@pytest.fixture
def logged_run(tmp_path: Path) -> Path:
    log = MetricsLog(tmp_path, 0)
    for step, error in ((10, 50.0), (20, 30.0), (30, 40.0), (40, 30.0), (50, 35.0)):
        log.write("train", step, {"loss": 1.0, "learning_rate": 0.1, "epoch": 0, "tokens_per_second": 10.0})
        log.write("dev", step, {"loss": error / 10, "word_error_rate": error, "bleu": 100 - error})
    log.close()
    return tmp_path


def test_best_steps(logged_run: Path) -> None:
    log = MetricsLog(logged_run, 50)
    assert log.best_steps("word_error_rate", 3) == [20, 40, 50]
    assert log.best_steps("bleu", 1) == [20]
    assert log.best_steps("loss", 9) == [20, 40, 50, 30, 10]
    assert log.evaluations_since_best("word_error_rate") == 3
    assert log.evaluations_since_best("chrf") == 0
    log.close()


def test_a_resumed_run_drops_records_beyond_its_step(logged_run: Path) -> None:
    with (logged_run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # truncated by a kill
    log = MetricsLog(logged_run, 30)
    assert list(log.dev_values("loss")) == [10, 20, 30]
    log.write("dev", 40, {"loss": 1.0})
    log.close()
    assert [r["step"] for r in read_metrics_log(logged_run) if r["kind"] == "dev"] == [10, 20, 30, 40]


@pytest.mark.parametrize("damage", [b'{"kind": "tr', b"\0\0\0\0", b"\xff\xfe", b"12", b'{"kind": "dev"}'])
def test_damaged_records_are_left_out(damage: bytes, logged_run: Path) -> None:
    path = logged_run / "metrics.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    expected = read_metrics_log(logged_run)
    path.write_bytes(b"".join([first, damage + b"\n", *others, damage]))
    assert read_metrics_log(logged_run) == expected


def test_tensorboard_and_curves(logged_run: Path) -> None:
    assert list((logged_run / "tensorboard").glob("events*"))
    for records in (read_metrics_log(logged_run), []):
        draw_curves(records, logged_run / "curves.png")
        assert (logged_run / "curves.png").read_bytes().startswith(b"\x89PNG")


# The directory


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    recipe, run = small_recipe("training.steps=3"), tmp_path / "run"
    run_training(recipe, run)
    with pytest.raises(TrainingError, match="already holds a run; continue it with --resume"):
        run_training(recipe, run)
    assert run_training(recipe, run, resume=True)[0].finished


def test_only_one_process_trains_in_a_directory(tmp_path: Path) -> None:
    recipe = small_recipe("training.steps=3")
    with lock_directory(tmp_path / "run"), pytest.raises(TrainingError, match="another process is training there"):
        run_training(recipe, tmp_path / "run")
    assert run_training(recipe, tmp_path / "run")[0].finished


def test_the_name_of_a_run_is_utf_8(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"this name is not UTF-8; choose another directory"):
        run_training(small_recipe(), tmp_path / os.fsdecode(b"\xff"))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_start_does_not_block_a_new_one(tmp_path: Path) -> None:
    han, run = tmp_path / "han.tsv", tmp_path / "run"
    han.write_text("".join(f"{n}\t{chr(0x4E00 + n)}\n" for n in range(300)), encoding="utf-8")
    tokenizers = "tokenizers={source: {kind: characters}, target: {kind: unigram, vocabulary: 400}}"
    for overrides, message in (
        (["data.train=[none.tsv]"], "no such data file"),
        ([f"data.train=[{han}]", tokenizers], r"tokenizers\.target\.vocabulary \(400\) is too small"),
    ):
        with pytest.raises(TrainingError, match=message):
            run_training(small_recipe(*overrides), run)
        assert list(run.iterdir()) == [], "--resume would continue this start"
    with pytest.raises(TrainingError, match=r"no run here \(recipe\.yaml is missing\)"):
        load_run(run)
    assert run_training(small_recipe("training.steps=3"), run)[0].finished


def test_a_recipe_in_the_run_directory_stays_until_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_stop_on_signals", lambda **_: threading.Event())  # signals are for pytest
    file = tmp_path / "recipe.yaml"
    options = [word for override in SMALL for word in ("--set", override)]
    arguments = [str(file), "--out", str(tmp_path), "--device", "cpu", "--threads", "1", *options]
    for data, status in (("none.tsv", 1), (str(TINY.parent / "numbers.train.tsv"), 0)):
        text = TINY.read_text().replace("numbers.train.tsv", data)
        file.write_text(text)
        for resume in ([], ["--resume"]) if status else ([],):
            assert CliRunner().invoke(cli.app, [*arguments, *resume]).exit_code == status
            assert (file.read_text() == text) == bool(status)


def test_a_recipe_in_the_run_directory_is_no_run_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be taken for one with a batch of a step, and the other processes would have nothing to do."""
    monkeypatch.setattr(Processes, "first_does", lambda _, work: work())
    file = tmp_path / "recipe.yaml"
    file.write_text(TINY.read_text())
    recipe = resolve_accumulate(load_recipe(file), tmp_path, Processes(0, 2), True, print, file)
    assert recipe.training.accumulate == 2


@pytest.mark.parametrize("split", ["train", "dev", "test"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_run_does_not_write_over_its_data(split: str, linked: bool, tmp_path: Path) -> None:
    name = {"train": "longest.tsv", "dev": "dev.tsv", "test": "test_answers.tsv"}[split]
    data = tmp_path / name
    content = (TINY.parent / "numbers.test.tsv").read_bytes()
    if linked:
        (tmp_path / "elsewhere.tsv").write_bytes(content)
        data.symlink_to("elsewhere.tsv")
    else:
        data.write_bytes(content)
    override = "data.dev_held_out_sources=0" if split == "dev" else "data.overlap=keep"
    recipe = small_recipe(f"data.{split}=[{data}]", override)
    with pytest.raises(TrainingError, match=rf"data\.{split}: .*{name} is where the run would write its own {name}; "):
        run_training(recipe, tmp_path)
    assert data.is_symlink() == linked
    assert data.read_bytes() == content


@pytest.mark.parametrize("name", ["data.json", "dev.tsv", "recipe.yaml"])
def test_a_run_does_not_remove_files_of_others(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_text("precious")
    with pytest.raises(
        TrainingError, match=rf"holds {name}, but no run that has been started; choose another directory"
    ):
        run_training(small_recipe(), tmp_path)
    assert file.read_text() == "precious"
    for left in ("source_tokenizer.json", "target_tokenizer.json"):  # of a start that was killed
        (tmp_path / left).write_text("{}")
    assert run_training(small_recipe("training.steps=3"), tmp_path)[0].finished


def test_prepared_data_stands_in_a_folder_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"data\.prepared: .* is the run directory; name another folder"):
        run_training(small_recipe(f"data.prepared={tmp_path}"), tmp_path)


# Loading


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    run_training(small_recipe("training.steps=3"), run)
    return run


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        *(
            (name, None, content, rf"{name}: (cannot be read as JSON|expected a JSON object)")
            for name in ("data.json", "report.json")
            for content in ("", "{", "[]")
        ),
        ("recipe.yaml", "d_ff: 16", "d_ff: 32", r"the shapes of the weights do not match recipe\.yaml"),
        ("model.pt", None, "short", r"model\.pt: truncated or modified"),
    ],
)
def test_damaged_files_are_named(name: str, old: str | None, new: str, message: str, finished_run: Path) -> None:
    file = finished_run / name
    content = file.read_bytes()
    file.write_bytes(new.encode() if old is None else content.replace(old.encode(), new.encode()))
    try:
        with pytest.raises(TrainingError, match=message) as error:
            load_run(finished_run)
        assert "\n" not in str(error.value)
    finally:
        file.write_bytes(content)


def test_joint_vocabulary(tmp_path: Path) -> None:
    recipe = small_recipe(
        "tokenizers={joint: true, source: {kind: bpe, vocabulary: 400}}",
        "model.share_embeddings=all",
        "model.max_source_length=40",
        "model.max_target_length=60",
        "training.steps=3",
    )
    assert run_training(recipe, tmp_path / "run")[0].finished
    run = load_run(tmp_path / "run")
    assert run.tokenizers.source.to_str() == run.tokenizers.target.to_str()
    assert run.model.encoder.embedding.tokens.weight is run.model.decoder.projection.weight
    # Sources are digits: no other byte occurs in training, and no piece of a target.
    unseen = {run.tokenizers.source.id_to_token(token) for token in run.unseen_source_tokens}
    assert {"<0xF0>", "▁thousand"} <= unseen
    assert not {"7", "▁", *SPECIAL_TOKENS} & unseen
    assert "unseen_source_tokens" not in run.provenance["data"]
