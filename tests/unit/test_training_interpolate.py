"""Averages of two runs: their weights, what is kept of the first, and what is refused."""

import json
from pathlib import Path

import pytest
import torch

from dragoman_training.run.interpolate import main
from dragoman_training.run.load import load_run
from tests.support.random_model import VOCABULARY, small_run, symbol_tokenizer, write_run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    tuned, before = small_run(tmp_path / "tuned"), tmp_path / "before"
    write_run(before, load_run(tuned).recipe.model, VOCABULARY, seed=2, joint=True)
    return tuned, before


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_weights_are_averaged(runs: tuple[Path, Path], share: float, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([*map(str, runs), str(out), "--share", str(share)]) == 0
    found, (tuned, before) = load_run(out), map(load_run, runs)
    for name, value in found.model.state_dict().items():
        expected = share * tuned.model.state_dict()[name] + (1 - share) * before.model.state_dict()[name]
        torch.testing.assert_close(value, expected)
    assert found.recipe == tuned.recipe
    assert (out / "dev.tsv").read_bytes() == (tuned.path / "dev.tsv").read_bytes()
    assert found.provenance["finished"]
    assert json.loads((out / "report.json").read_text()) == {
        "interpolated": {"tuned": "tuned", "before": "before", "share": share}
    }


def test_dropout_and_limits_may_differ(tmp_path: Path) -> None:
    tuned, before = small_run(tmp_path / "tuned", dropout=0.3, max_source_length=30), small_run(tmp_path / "before")
    assert main([str(tuned), str(before), str(tmp_path / "out")]) == 0
    assert load_run(tmp_path / "out").recipe.model.max_source_length == 30


def test_what_does_not_fit_is_refused(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned, before = runs
    wide = small_run(tmp_path / "wide", d_ff=48)
    for arguments, message in (
        ([wide, tmp_path / "out"], "do not fit together: model.d_ff is"),
        ([tmp_path / "none", tmp_path / "out"], "no run here"),
        ([before, before], "already exists"),
        ([before, tmp_path / "out", "--share", "1.5"], "--share: expected a number from 0 to 1, got 1.5"),
    ):
        assert main([str(tuned), *map(str, arguments)]) == 1
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_tokenizers_are_refused(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned, before = runs
    symbol_tokenizer(VOCABULARY).save(str(before / "target_tokenizer.json"), pretty=False)
    assert main([str(tuned), str(before), str(tmp_path / "out")]) == 1
    assert "differ in target_tokenizer.json" in capsys.readouterr().err
