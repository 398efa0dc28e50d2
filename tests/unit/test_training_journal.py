"""The journal: what a resumed run forgets, and which checkpoints are best."""

from pathlib import Path

import pytest

from dragoman_training.run.metrics_log import MetricsLog, draw_curves, read_metrics_log


@pytest.fixture
def run(tmp_path: Path) -> Path:
    journal = MetricsLog(tmp_path, 0)
    for step, error in ((10, 50.0), (20, 30.0), (30, 40.0), (40, 30.0), (50, 35.0)):
        train = {"loss": 1.0, "learning_rate": 0.1, "epoch": 0, "tokens_per_second": 10.0}
        journal.write("train", step, train)
        journal.write("dev", step, {"loss": error / 10, "word_error_rate": error, "bleu": 100 - error})
    journal.close()
    return tmp_path


def test_best_and_stale(run: Path) -> None:
    journal = MetricsLog(run, 50)
    assert journal.best_steps("word_error_rate", 3) == [20, 40, 50]
    assert journal.best_steps("bleu", 1) == [20]
    assert journal.best_steps("loss", 9) == [20, 40, 50, 30, 10]
    assert journal.evaluations_since_best("word_error_rate") == 3
    assert journal.evaluations_since_best("chrf") == 0
    journal.close()


def test_a_resumed_run_forgets_what_comes_again(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # torn by a kill
    journal = MetricsLog(run, 30)
    assert list(journal.dev_values("loss")) == [10, 20, 30]
    journal.write("dev", 40, {"loss": 1.0})
    journal.close()
    assert [r["step"] for r in read_metrics_log(run) if r["kind"] == "dev"] == [10, 20, 30, 40]


def test_tensorboard_and_curves(run: Path) -> None:
    assert list((run / "tensorboard").glob("events*"))
    draw_curves(read_metrics_log(run), run / "curves.png")
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    draw_curves([], run / "empty.png")
    assert (run / "empty.png").exists()
