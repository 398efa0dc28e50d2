"""The end of a run: the average of checkpoints, its quality, and RUN/model.pt."""

import json
from typing import Any

from dragoman_training.data.pairs import Pair, distinct_sources
from dragoman_training.files import CURVES_FILE, MODEL_FILE, REPORT_FILE, write_text
from dragoman_training.run.checkpoint import average_checkpoints, checkpoint_steps, save_state
from dragoman_training.run.metrics_log import draw_curves
from dragoman_training.trainer.loop import Trainer


def finish(trainer: Trainer) -> dict[str, Any]:
    """Averages checkpoints, measures the average on dev and test, and writes report, curves and RUN/model.pt.

    Raises:
        Stopped: The run was asked to stop meanwhile; a resumed run starts this over.
    """
    steps = trainer.scheduled()[-trainer.config.average_last :]
    if trainer.config.average_best:
        best = trainer.metrics_log.best_steps(trainer.recipe.evaluation.choose_by, trainer.config.average_best)
        steps = sorted(set(best) & set(checkpoint_steps(trainer.run)))
    weights, steps = average_checkpoints(trainer.run, steps, trainer.warn)
    trainer.learner.model.load_state_dict(weights)
    trainer.learner.model.eval()
    report: dict[str, Any] = {
        "steps_trained": trainer.step,
        "steps_averaged": steps,
        "precision": trainer.learner.precision.name,
        "decoding": "greedy",
    }
    for name, pairs in (("dev", trainer.data.dev_pairs), ("test", trainer.data.test_pairs)):
        if pairs:
            report[name] = _report_scores(trainer, name, pairs)
    changes = trainer.metrics_log.recipe_changes()
    if changes:
        report["recipe_changes"] = changes
    draw_curves(trainer.metrics_log.records, trainer.run / CURVES_FILE)
    write_text(trainer.run / REPORT_FILE, json.dumps(report, indent=2) + "\n")
    # Written last: a run that has its model.pt is finished.
    save_state(trainer.run / MODEL_FILE, {"model": weights, "steps": steps})
    return report


def _report_scores(trainer: Trainer, name: str, pairs: list[Pair]) -> dict[str, Any]:
    scores = trainer.measure(pairs)
    trainer.echo(f"{name}  " + "  ".join(f"{metric} {score.value:.2f}" for metric, score in scores.items()))
    return {
        "sources": len(distinct_sources(pairs, trainer.data.source_tokenizer)),
        **{metric: score.value for metric, score in scores.items()},
        **{f"{metric}_signature": score.signature for metric, score in scores.items() if score.signature},
    }
