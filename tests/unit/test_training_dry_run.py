"""`dragoman-train --dry-run`: what a run would be, without leaving one."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dragoman_training import cli, progress
from dragoman_training.startup import allocates_with_glibc
from tests.support.training import SMALL, run_training, small_recipe


def call(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, str]:
    monkeypatch.chdir(folder)
    arguments = ["tiny", "--device", "cpu", "--threads", "1", "--dry-run"]
    changes = [part for change in SMALL for part in ("--set", change)]
    done = CliRunner().invoke(cli.app, [*arguments, *changes, *options])
    return done.exit_code, done.output


def test_a_dry_run_tells_what_a_run_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data.tsv"
    file.write_text("".join(f"{n}\tone two{' two' * (n >= 99)}\n" for n in range(90, 130)))
    monkeypatch.setattr(progress, "LINE_EVERY", 0)
    options = [f"data.train=[{file}]", "training.batch_tokens=50", "training.accumulate=2", "training.ema_decay=0.9"]
    code, output = call(tmp_path, monkeypatch, *(part for option in options for part in ("--set", option)))
    assert code == 0, output
    tip = "steps would be faster with tcmalloc, which a run finds if it is installed: apt-get install libtcmalloc"
    assert (tip in output) == allocates_with_glibc()
    for line in (
        "40 pairs read",
        r"train 20 pairs, dev 20 pairs, test 0 pairs; vocabulary \d+ / 6",
        r"batches: \d+ an epoch, of \d to \d pairs \(median [\d.]+\), [\d.]+% padding; 12 steps are [\d.]+ epochs",
        r"the largest batch: source \[\d, \d\], target \[\d, \d\]; the longest source has 4 tokens, .* 4",
        r"parameters: 4,880 \(embeddings 304, encoder 1,728, decoder 2,848\)",
        r"weights, gradients and the optimizer's state take 0\.1 MB; activations come on top",
        r"after 3 steps with the largest batch: memory \d+\.\d GB",
        r"[\d.]+ steps/s: the 12 steps would take \d+ s",
        r"evaluations \(3 on dev\) would take another \d+ s or so",
    ):
        assert re.search(f"^{line}$", output, re.MULTILINE), (line, output)
    assert list(tmp_path.iterdir()) == [file]


def test_a_dry_run_of_a_start_and_of_bad_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_training(small_recipe("training.steps=3"), tmp_path / "start")
    code, output = call(
        tmp_path, monkeypatch, "--init-from", str(tmp_path / "start"), "--set", "training.freeze=[encoder]"
    )
    assert code == 0, output
    assert re.search(r"parameters: 5,344 \(.*\); 3,616 of them are trained$", output, re.MULTILINE), output
    code, output = call(tmp_path, monkeypatch, "--set", f"training.teachers=[{tmp_path / 'start'}]")
    assert code == 0, output
    assert re.search(r"^parameters of 1 teacher: 5,344$", output, re.MULTILINE), output
    code, output = call(tmp_path, monkeypatch, "--set", "data.train=[none.tsv]")
    assert code == 1
    assert output.startswith("error: none.tsv: no such data file")
    assert [path.name for path in tmp_path.iterdir()] == ["start"]
