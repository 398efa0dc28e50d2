"""The end of a run: the average of checkpoints, its quality, and RUN/model.pt."""

import json
from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor

from dragoman_training.data.pairs import Pair, write_pairs
from dragoman_training.evaluation.decoding import Search
from dragoman_training.evaluation.evaluate import Evaluation
from dragoman_training.evaluation.metrics import better
from dragoman_training.files import (
    CURVES_FILE,
    DEV_ANSWERS_FILE,
    MODEL_FILE,
    REPORT_FILE,
    TEST_ANSWERS_FILE,
    write_text,
)
from dragoman_training.run.checkpoint import average_checkpoints, save_state
from dragoman_training.run.metrics_log import draw_curves
from dragoman_training.trainer.loop import Trainer

Weights = dict[str, Tensor]


def finish(trainer: Trainer) -> dict[str, Any]:
    """Averages checkpoints, measures the average on dev and test, and writes report, curves and RUN/model.pt.

    If the best of these checkpoints is better on dev than their average, it takes its place.

    Raises:
        Stopped: The run was asked to stop meanwhile; a resumed run starts this over.
    """
    weights, steps = _average(trainer, lambda: _steps_to_average(trainer))
    report: dict[str, Any] = {
        "steps_trained": trainer.step,
        "steps_averaged": steps,
        "precision": trainer.learner.precision.name,
        "decoding": str(Search.of(trainer.recipe.evaluation)),
    }
    trainer.learner.conclude(weights)
    if trainer.data.dev:
        values, evaluation = _evaluate(trainer)
        comparison = _compare_with_best(trainer, steps, values[trainer.recipe.evaluation.choose_by])
        if comparison is not None:
            report["average_and_best"] = comparison
            if comparison["kept"] == "best":
                weights, steps = _average(trainer, lambda: [comparison["best"]["step"]])
                trainer.learner.conclude(weights)
                values, evaluation = _evaluate(trainer)
                report["steps_averaged"] = steps
        report["dev"] = {**_scores(trainer, "dev", evaluation), "loss": values["loss"]}
    if trainer.data.test_pairs:
        report["test"] = _scores(trainer, "test", trainer.measure("test", trainer.data.test_pairs))
    changes = trainer.metrics_log.recipe_changes()
    if changes:
        report["recipe_changes"] = changes

    def write() -> None:
        draw_curves(trainer.metrics_log.records, trainer.run / CURVES_FILE)
        write_text(trainer.run / REPORT_FILE, json.dumps(report, indent=2) + "\n")
        # Written last: a run that has its model.pt is finished.
        save_state(trainer.run / MODEL_FILE, {"model": weights, "steps": steps})

    trainer.processes.first_does(write)
    return report


def _average(trainer: Trainer, steps: Callable[[], list[int]]) -> tuple[Weights | None, list[int]]:
    """Averages checkpoints in process 0; all processes get the steps that it used."""
    averages: list[Weights] = []

    def average() -> list[int]:
        weights, used = average_checkpoints(trainer.run, steps(), trainer.warn)
        averages.append(weights)
        return used

    used = trainer.processes.first_does(average)
    return averages[0] if averages else None, used


def _steps_to_average(trainer: Trainer) -> list[int]:
    # A run that has been changed may have measured the metric at none of its steps.
    return sorted(trainer.best()) or trainer.scheduled()[-trainer.config.average_last :]


def _evaluate(trainer: Trainer) -> tuple[dict[str, float], Evaluation]:
    """Returns loss and metrics on dev by name, and the answers."""
    loss, evaluation = trainer.evaluate()
    return evaluation.values(loss), evaluation


def _compare_with_best(trainer: Trainer, steps: list[int], average: float) -> dict[str, Any] | None:
    """Compares the average with the best of its checkpoints by what was measured on dev during training.

    Returns:
        Both values and which one is kept; None if there is nothing to compare.
    """
    metric = trainer.recipe.evaluation.choose_by
    measured = {step: value for step, value in trainer.metrics_log.dev_values(metric).items() if step in steps}
    if len(steps) < 2 or not measured:
        return None
    best = next(step for step in trainer.metrics_log.best_steps(metric, trainer.step) if step in measured)
    keep_best = better(metric, measured[best], average)
    if keep_best:
        trainer.echo(
            f"the average of {len(steps)} checkpoints has a dev {metric} of {average:.4g}, worse than "
            f"{measured[best]:.4g} of step {best} alone, which is kept instead"
        )
    return {
        "metric": metric,
        "average": {"steps": steps, "value": average},
        "best": {"step": best, "value": measured[best]},
        "kept": "best" if keep_best else "average",
    }


def _scores(trainer: Trainer, name: Literal["dev", "test"], evaluation: Evaluation) -> dict[str, Any]:
    """Writes the answers to a data set, shows their metrics, and returns its part of the report.

    Raises:
        Stopped: The run was asked to stop meanwhile.
    """
    return trainer.processes.first_does(lambda: _written_scores(trainer, name, evaluation))


def _written_scores(trainer: Trainer, name: Literal["dev", "test"], evaluation: Evaluation) -> dict[str, Any]:
    file = {"dev": DEV_ANSWERS_FILE, "test": TEST_ANSWERS_FILE}[name]
    answers = evaluation.answers
    write_pairs(
        trainer.run / file, (Pair(*answer, trainer.run / file, i) for i, answer in enumerate(answers.items(), 1))
    )
    scores = evaluation.with_intervals(trainer.raise_if_stopped).scores
    part: dict[str, Any] = {"sources": len(answers)}
    shown: list[str] = [name]
    for metric, score in scores.items():
        part[metric] = score.value
        text = f"{metric} {score.value:.2f}"
        if score.interval is not None:
            part[f"{metric}_interval"] = list(score.interval)
            text += f" ({score.interval[0]:.2f} to {score.interval[1]:.2f})"
        shown.append(text)
    part |= {f"{metric}_signature": score.signature for metric, score in scores.items() if score.signature}
    trainer.echo("  ".join(shown))
    return part
