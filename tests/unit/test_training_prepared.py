"""Prepared data: many shards equal one, reused or refused, and a preparation that was interrupted goes on."""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dragoman_training import cli
from dragoman_training.data import corpus, epochs
from dragoman_training.data import prepare as prepare_module
from dragoman_training.data.batches import BatchSampler, EncodedPair, Position
from dragoman_training.data.packed import READS_BEFORE_RELEASE, MappedRows, pack, token_type, write_rows
from dragoman_training.data.prepare import TrainingData, prepare
from dragoman_training.data.prepared import unfinished_folder
from dragoman_training.data.shards import PairEncoder
from dragoman_training.data.workers import ordered_map
from dragoman_training.errors import DataError, TrainingError
from dragoman_training.recipe import Recipe, load_recipe
from dragoman_training.trainer import prepare_data
from tests.support.training import SMALL, TINY, make_trainer, run_training, small_recipe

BPE = "tokenizers={joint: true, source: {kind: bpe, vocabulary: 400, bpe_dropout: 0.2, byte_dropout: 0.2}}"
CHANGES = "augmentation={concatenated: 0.2, numbers: 0.5, names: 0.2, inserts: 0.2}"
LIMITS = "model.max_source_length=60", "model.max_target_length=60"


@pytest.fixture
def many_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CHUNK_LINES", 70)


@pytest.fixture
def many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epochs, "BLOCK_PAIRS", 100)


def number_recipe(folder: Path, *overrides: str) -> Recipe:
    """Two files of 300 pairs, with a bad line, a pair that is too long, and others that are there twice."""
    files = []
    for name, word in (("a", "number"), ("b", "Anna counts")):
        lines = [f"{word} {n}\tthe {word} {n % 60} of {n}" for n in range(300)]
        lines[10] = "no tab"
        lines[20:22] = ["x\t" + "long " * 99, lines[19]]
        files.append(folder / f"{name}.tsv")
        files[-1].write_text("".join(f"{line}\n" for line in lines))
    data = f"data.train=[{files[0]}, {files[1]}]", "data.on_bad_line=skip", "data.duplicates=drop"
    return load_recipe(TINY, [*SMALL, *data, "training.batch_tokens=200", *LIMITS, *overrides])


def prepared(recipe: Recipe, run: Path, echo: Callable[[str], None] = lambda line: None) -> TrainingData:
    run.mkdir(exist_ok=True)
    return prepare(recipe, run, echo)


def stream_digest(data: TrainingData, recipe: Recipe, batches: int = 120) -> str:
    digest = hashlib.sha256()
    sampler = BatchSampler(data.epochs, recipe.training.batch_tokens, recipe.seed)
    for planned in islice(sampler.plan(), batches):
        batch = planned.read()
        digest.update(str(planned.position).encode())
        for tensor in (batch.source, batch.target_input, batch.target_output):
            digest.update(str(tensor.tolist()).encode())
    return digest.hexdigest()


# Shards


@pytest.mark.parametrize("overrides", [(), (BPE,), (BPE, CHANGES)])
def test_many_shards_equal_one(overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = number_recipe(tmp_path, *overrides)
    one = stream_digest(prepared(recipe, tmp_path / "one"), recipe)
    monkeypatch.setattr(corpus, "CHUNK_LINES", 7)
    assert stream_digest(prepared(recipe, tmp_path / "many"), recipe) == one
    assert len(list((tmp_path / "many" / "prepared").glob("*.tokens"))) == 86
    for name in ("data.json", "dev.tsv", "longest.tsv", "bad_lines.txt", "source_tokenizer.json"):
        assert (tmp_path / "many" / name).read_text() == (tmp_path / "one" / name).read_text()
    assert json.loads((tmp_path / "many" / "data.json").read_text())["bad_lines"] == {"wrong_fields": 2, "too_long": 2}


def test_worker_processes_prepare_the_same(tmp_path: Path, many_shards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = number_recipe(tmp_path, BPE)
    one = stream_digest(prepared(recipe, tmp_path / "one"), recipe)
    monkeypatch.setattr(prepare_module, "LARGE", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert stream_digest(prepared(recipe, tmp_path / "two"), recipe) == one


def test_rows_are_read_from_shards(tmp_path: Path) -> None:
    rows = [[*range(n % 7)] for n in range(2 * READS_BEFORE_RELEASE)]
    shards = []
    for number, part in enumerate((rows[:800], [], rows[800:])):
        files = tmp_path / f"{number}.tokens", tmp_path / f"{number}.ends"
        values, ends = pack(part, token_type(100))
        write_rows(values, ends.astype("i8"), *files)
        shards.append((*files, len(part)))
    mapped = MappedRows(shards, token_type(100))
    assert [mapped[i].tolist() for i in range(len(mapped))] == rows
    with pytest.raises(IndexError):
        mapped[len(rows)]
    shards[2][0].write_bytes(b"short")
    with pytest.raises(DataError, match=r"2\.tokens: has 5 bytes, expected"):
        MappedRows(shards, token_type(100))


def test_token_type() -> None:
    assert token_type(2**16, 10) == "<u2"
    assert token_type(10, 2**16 + 1) == "<u4"


# Blocks


@pytest.mark.parametrize("overrides", [(), (BPE, CHANGES)])
def test_each_epoch_has_every_pair_once(overrides: tuple[str, ...], tmp_path: Path, many_blocks: None) -> None:
    recipe = number_recipe(tmp_path, *overrides)
    data = prepared(recipe, tmp_path / "run")
    assert data.epochs.blocks(0) == 6
    drawn: list[list[EncodedPair]] = []
    for epoch in (0, 1):
        blocks = [data.epochs.block(epoch, block) for block in range(6)]
        assert max(map(len, blocks)) - min(map(len, blocks)) <= 1
        drawn.append([pairs[i] for pairs in blocks for i in range(len(pairs))])
    assert drawn[0] != drawn[1]
    plain = sorted((pair.source, pair.target) for pair in data.train)
    same = [sorted((pair.source, pair.target) for pair in pairs) == plain for pairs in drawn]
    assert same == [not overrides] * 2
    assert [len(pairs) for pairs in drawn] == [len(data.train)] * 2


@pytest.mark.parametrize("skip", [1, 31, 250])
def test_a_stream_resumes_in_any_block(skip: int, tmp_path: Path, many_blocks: None, many_shards: None) -> None:
    recipe = number_recipe(tmp_path, BPE, CHANGES)
    sampler = BatchSampler(prepared(recipe, tmp_path / "run").epochs, 200, recipe.seed)
    again = BatchSampler(prepared(recipe, tmp_path / "run").epochs, 200, recipe.seed)
    plan = sampler.plan()
    for _ in range(skip):
        position = next(plan).position
    resumed = again.plan(position)
    for _ in range(40):
        expected, actual = next(plan), next(resumed)
        assert actual.position == expected.position
        assert torch.equal(actual.read().source, expected.read().source)
        assert torch.equal(actual.read().target_output, expected.read().target_output)
    assert position.block > 0 or skip == 1


def test_a_checkpoint_from_before_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = small_recipe("training.steps=4"), tmp_path / "run"
    trainer = make_trainer(recipe, run)
    trainer.metrics_log.close()
    state = trainer.learner.state() | {"epoch": 0, "position": 5}
    monkeypatch.setattr("dragoman_training.trainer.loop.latest_checkpoint", lambda *_: state)
    old = make_trainer(recipe, run)
    old.metrics_log.close()
    assert old.position == Position(0, 0, 5)
    monkeypatch.setattr(epochs, "BLOCK_PAIRS", 1000)
    with pytest.raises(TrainingError, match="was started by an older version, which shuffled large corpora"):
        make_trainer(recipe, run)


# Reuse and refusal


def test_prepared_data_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "corpus" / "prepared"
    recipe = number_recipe(tmp_path, BPE, f"data.prepared={folder}")
    shown: list[list[str]] = [[], [], []]
    first = stream_digest(prepared(recipe, tmp_path / "one", shown[0].append), recipe)
    assert [path.name for path in folder.parent.iterdir()] == ["prepared"]
    monkeypatch.setattr(prepare_module, "prepare_corpus", None)
    for i, run in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        assert stream_digest(prepared(recipe, run, shown[i].append), recipe) == first
    assert shown[1] == shown[0]
    for name in ("data.json", "dev.tsv", "longest.tsv", "bad_lines.txt", "target_tokenizer.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    # What happens in an epoch, but not to the corpus, may differ; and files may move.
    (tmp_path / "a.tsv").rename(tmp_path / "moved.tsv")
    files = f"data.train=[{tmp_path / 'moved.tsv'}, {{file: {tmp_path / 'b.tsv'}, weight: 2}}]"
    other = load_recipe(TINY, [*SMALL, files, "data.on_bad_line=skip", "data.duplicates=drop", *LIMITS, BPE, CHANGES])
    data = other.data.model_copy(update={"prepared": folder})
    assert stream_digest(prepared(other.model_copy(update={"data": data}), tmp_path / "three"), other) != first


def test_a_run_prepares_data_again_that_others_use(tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    recipe = number_recipe(tmp_path, BPE, f"data.prepared={folder}")
    prepared(recipe, tmp_path / "one")
    shutil.rmtree(folder)
    prepared(recipe, tmp_path / "one")  # with the tokenizers that the run has from this corpus
    prepared(recipe, tmp_path / "two")
    # Those of another run are another matter.
    shutil.rmtree(folder)
    (tmp_path / "one" / "start.json").write_text('{"unseen_source_tokens": []}')
    prepared(recipe, tmp_path / "one")
    with pytest.raises(DataError, match="its tokenizers were not trained on this corpus"):
        prepared(recipe, tmp_path / "three")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.max_source_length=59", "model.max_source_length was 60 and is 59"),
        ("data.duplicates=keep", 'data.duplicates was "drop" and is "keep"'),
        ("seed=2", "seed was 1 and is 2"),
        ("tokenizers={source: {kind: characters}}", 'tokenizers.source.kind was "symbols" and is "characters"'),
        (CHANGES, "it holds no texts, which augmentation, bpe_dropout and byte_dropout need"),
        ("data.test=[a.tsv]", "data.test had 0 file(s) and has 1"),
    ],
)
def test_prepared_data_of_something_else(
    override: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = "tokenizers={source: {kind: symbols}}", "data.prepared=prepared"
    prepared(number_recipe(tmp_path, *plain), tmp_path / "one")
    with pytest.raises(DataError) as error:
        prepared(number_recipe(tmp_path, *plain, override), tmp_path / "two")
    assert message in str(error.value)
    assert str(error.value).startswith("data.prepared: prepared was prepared with other settings or data: ")
    assert (tmp_path / "prepared" / "prepared.json").exists()


def test_prepared_data_of_other_files(tmp_path: Path) -> None:
    recipe = number_recipe(tmp_path, f"data.prepared={tmp_path / 'prepared'}")
    prepared(recipe, tmp_path / "one")
    text = (tmp_path / "b.tsv").read_text()
    (tmp_path / "b.tsv").write_text(text.replace("Anna counts 7\t", "Anna counts 8\t"))
    with pytest.raises(DataError, match=r"the content of b\.tsv \(data\.train\) has changed; choose another folder"):
        prepared(recipe, tmp_path / "two")
    (tmp_path / "b.tsv").write_text(text)
    prepared(recipe, tmp_path / "two")
    # A run that has tokenizers of its own, since it started from another one.
    (tmp_path / "two" / "source_tokenizer.json").write_text((tmp_path / "two" / "target_tokenizer.json").read_text())
    with pytest.raises(DataError, match=r"its tokenizers are not those of .*two"):
        prepared(recipe, tmp_path / "two")


def test_prepared_data_replaces_no_other_files(tmp_path: Path) -> None:
    for folder, message in (
        (tmp_path, "holds other files and no prepared data; name a folder that does not exist yet"),
        (tmp_path / "a.tsv", r"cannot be read as a folder \(Not a directory\)"),
    ):
        recipe = number_recipe(tmp_path, f"data.prepared={folder}")
        before = sorted(tmp_path.iterdir())
        with pytest.raises(DataError, match=f"^data.prepared: {folder} {message}$"):
            prepare(recipe, tmp_path, lambda line: None)
        assert sorted(tmp_path.iterdir()) == before
    empty = tmp_path / "empty"
    empty.mkdir()
    prepared(number_recipe(tmp_path, f"data.prepared={empty}"), tmp_path / "run")
    assert (empty / "prepared.json").exists()


def test_a_run_replaces_no_folder_of_others(tmp_path: Path) -> None:
    other = tmp_path / "prepared" / "corpus.txt"
    other.parent.mkdir()
    other.write_text("precious")
    with pytest.raises(
        DataError, match=rf"^data.prepared: {other.parent} holds other files and no prepared data; name a"
    ):
        prepared(number_recipe(tmp_path), tmp_path)
    assert other.read_text() == "precious"


def test_a_folder_may_be_a_link(tmp_path: Path) -> None:
    """Such as one to a larger disk. It is found out before the work, not after it, that a folder can't be replaced."""
    for name, run in (("link", tmp_path / "one"), ("two/prepared", tmp_path / "two")):
        link, disk = tmp_path / name, tmp_path / f"disk-of-{run.name}"
        disk.mkdir()
        run.mkdir(exist_ok=True)
        link.symlink_to(disk)
        options = () if run.name == "two" else (f"data.prepared={link}",)
        prepared(number_recipe(tmp_path, *options), run)
        assert link.is_symlink()
        assert (disk / "prepared.json").exists()


def test_a_mount_point_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "volume"
    folder.mkdir()
    recipe = number_recipe(tmp_path, f"data.prepared={folder}")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_mount", lambda path: path == folder)
        with pytest.raises(DataError, match=rf"^{folder} is a mount point and holds no prepared data; "):
            prepared(recipe, tmp_path / "run")
    assert list(folder.iterdir()) == []


def test_the_data_of_a_run_is_made_anew(tmp_path: Path) -> None:
    """A run that has not started keeps nothing of the data it was to be started with; one that has keeps all."""
    recipe, run = number_recipe(tmp_path), tmp_path / "run"
    prepared(recipe, run)
    with (tmp_path / "a.tsv").open("a") as file:
        file.write("more\tpairs\n")
    manifest = (run / "prepared" / "prepared.json").read_text()
    with pytest.raises(DataError, match="differs from what the run was started with"):
        prepared(recipe, run)
    assert (run / "prepared" / "prepared.json").read_text() == manifest
    for name in ("data.json", "source_tokenizer.json", "target_tokenizer.json"):
        (run / name).unlink()
    prepared(recipe, run)
    assert (run / "prepared" / "prepared.json").read_text() != manifest
    assert [path.name for path in run.glob(".*")] == []


def test_a_run_of_an_older_version(tmp_path: Path) -> None:
    """It has no prepared data, and its fingerprint is made in another way."""
    recipe, run = number_recipe(tmp_path), tmp_path / "run"
    data = prepared(recipe, run)
    digest = hashlib.sha256("".join(f"{pair.source}{pair.target}" for pair in data.train).encode()).hexdigest()
    for recorded, allowed in ((digest, True), (digest[::-1], False)):
        (run / "data.json").write_text(json.dumps({"train_sha256": recorded}))
        if allowed:
            prepared(recipe, run)
            continue
        with pytest.raises(DataError, match="differs from what the run was started with"):
            prepared(recipe, run)


def test_a_damaged_manifest(tmp_path: Path) -> None:
    recipe = number_recipe(tmp_path, f"data.prepared={tmp_path / 'prepared'}")
    prepared(recipe, tmp_path / "one")
    manifest = tmp_path / "prepared" / "prepared.json"
    for content, message in (("{", "cannot be read as JSON"), ("{}", "made by another version of dragoman")):
        manifest.write_text(content)
        with pytest.raises(TrainingError, match=message):
            prepared(recipe, tmp_path / "one")


def test_prepare_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_stop_on_signals", lambda **_: threading.Event())  # signals are for pytest
    run = tmp_path / "run"
    done = CliRunner().invoke(cli.app, ["tiny", f"--out={run}", "--prepare", *(f"--set={each}" for each in SMALL)])
    assert (done.exit_code, done.stdout) == (0, f"{run / 'prepared'}\n")
    assert not (run / "recipe.yaml").exists()
    shared = small_recipe(f"data.prepared={tmp_path / 'shared'}")
    assert prepare_data(shared, tmp_path / "none") == tmp_path / "shared"
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(prepare_module, "prepare_corpus", None)
    assert run_training(small_recipe(), run)[0].finished
    assert run_training(shared, tmp_path / "other")[0].finished


# Interruptions


def test_an_interrupted_preparation_goes_on(tmp_path: Path, many_shards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, run = number_recipe(tmp_path, BPE), tmp_path / "run"
    whole = stream_digest(prepared(recipe, tmp_path / "whole"), recipe)
    encode, calls = PairEncoder._write, list[str]()

    def interrupted(self: PairEncoder, task: object, made_from: str) -> None:
        calls.append(made_from)
        if len(calls) == 5:
            raise KeyboardInterrupt
        encode(self, task, made_from)  # type: ignore[arg-type]

    monkeypatch.setattr(PairEncoder, "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared(recipe, run)
    tokenizers = [path.read_bytes() for path in sorted((run / ".prepared.partial").glob("tokenizer-*"))]
    assert len(tokenizers) >= 2
    shown: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr("dragoman_training.data.reading.PairReader._write", None)
        assert stream_digest(prepared(recipe, run, shown.append), recipe) == whole
    assert f"resuming the preparation in {run / '.prepared.partial'}" in shown
    assert len(set(calls)) == len(calls) - 1, "shards that were complete are encoded again"
    # With other data, it starts over.
    monkeypatch.setattr(PairEncoder, "_write", encode)
    (run / ".prepared.partial").mkdir()
    (run / ".prepared.partial" / "inputs.json").write_text('{"inputs": {}}')
    (run / ".prepared.partial" / "read-00000.npz").write_bytes(b"something else")
    shutil.rmtree(run / "prepared")
    assert stream_digest(prepared(recipe, run), recipe) == whole


def test_a_second_process_waits(tmp_path: Path) -> None:
    entered, shown = threading.Event(), list[str]()

    def second() -> None:
        with unfinished_folder(tmp_path / "prepared", shown.append):
            entered.set()

    thread = threading.Thread(target=second)
    with unfinished_folder(tmp_path / "prepared", shown.append) as partial:
        thread.start()
        assert not entered.wait(0.2)
        partial.rename(tmp_path / "prepared")
    thread.join(10)
    assert entered.is_set()
    assert shown == [f"another process is preparing {tmp_path / 'prepared'}; waiting for it"]


# Worker processes


def square(number: int) -> int:
    if number == 7:
        raise DataError("seven")
    if number == -1:
        os._exit(1)
    return number * number


def numbers_then_error() -> Iterator[int]:
    yield from (1, 2, 3)
    raise DataError("no more")


def test_results_come_in_order_before_errors() -> None:
    for workers in (1, 2):
        assert list(ordered_map(square, range(7), workers)) == [n * n for n in range(7)]
    for tasks, message in ((iter([1, 2, 3, 7]), "seven"), (numbers_then_error(), "no more")):
        stream = ordered_map(square, tasks, 2)
        assert [next(stream) for _ in range(3)] == [1, 4, 9]
        with pytest.raises(DataError, match=message):
            next(stream)


def test_a_worker_that_dies_is_reported() -> None:
    with pytest.raises(TrainingError, match="was killed, perhaps for lack of memory") as error:
        list(ordered_map(square, [1, -1, 2], 2))
    assert not isinstance(error.value, DataError), "the preparation would be deleted"
