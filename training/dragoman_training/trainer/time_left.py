"""The time that evaluations will take, for the time left of a run."""

from collections.abc import Sequence
from typing import Any

from dragoman_training.data.prepare import TrainingData
from dragoman_training.recipe import Recipe


def evaluations_left(
    recipe: Recipe, data: TrainingData, records: Sequence[dict[str, Any]], step: int, speed: float
) -> float:
    """Estimates the seconds of all evaluations to come, those at the end on dev and test included.

    Each takes as long as the last one, by its sentences. Before the first one, that is the time in which training sees
    as many target tokens, once for the loss and once for each hypothesis.

    Args:
        recipe: Recipe of the run.
        data: Data of the run.
        records: Metrics of the run so far.
        step: Steps made.
        speed: Target tokens that steps train a second.
    """
    config = recipe.training
    on_dev = -(-config.steps // config.evaluate_every) - step // config.evaluate_every + 1 if data.dev_pairs else 0
    sentences = on_dev * len(data.dev_pairs) + len(data.test_pairs)
    measured = [record["seconds"] for record in records if record["kind"] == "dev" and "seconds" in record]
    if measured and data.dev_pairs:
        return float(sentences * measured[-1] / len(data.dev_pairs))
    sample = data.dev or data.train[:1000]
    tokens = sum(len(pair.target) for pair in sample) / len(sample)
    return sentences * tokens * (1 + recipe.evaluation.beam_size) / speed
