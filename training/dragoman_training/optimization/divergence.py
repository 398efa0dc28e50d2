"""Detects divergence and tells the user how to continue."""

import math
from pathlib import Path

from dragoman_training.errors import TrainingError
from dragoman_training.recipe import TrainingConfig
from dragoman_training.run.checkpoint import checkpoint_steps

# Times the loss of an untrained model. Measured on the recipe `tiny`: with fifty times its learning rate, the loss
# stays below that of an untrained model and the run learns; with 250 times, it reaches 20 times that loss and the run
# ends worse than guessing.
MAX_LOSS_RATIO = 10
SAFE_RATES = {"noam": 1.0}  # learning rates that are rarely too high, by schedule
SAFE_RATE = 1e-3  # of all other schedules


def untrained_loss(vocabulary: int, d_model: int) -> float:
    """Returns an upper bound of the loss before training, in nats per token.

    It is the loss of guessing, log(vocabulary), plus sqrt(d_model): if the embedding is also the output layer, the
    logit of the token just read can be that large.
    """
    return math.log(vocabulary) + math.sqrt(d_model)


def check_divergence(
    loss: float, gradient_norm: float, untrained: float, step: int, run: Path, config: TrainingConfig
) -> None:
    """Checks a step before it changes the weights, or weights before they are saved.

    Args:
        loss: Mean loss over the target tokens, in nats.
        gradient_norm: Norm of the whole model's gradient.
        untrained: Loss of an untrained model, from `untrained_loss`.
        step: Step at which the loss was computed.

    Raises:
        TrainingError: Training has diverged; the message says how to continue.
    """
    if not math.isfinite(loss):
        symptom = f"the loss is {loss}"
    elif loss > MAX_LOSS_RATIO * untrained:
        symptom = f"the loss is {loss:.3g}, more than {MAX_LOSS_RATIO} times that of an untrained model,"
    elif not math.isfinite(gradient_norm):
        symptom = f"the gradient norm is {gradient_norm}"
    else:
        return
    raise TrainingError(f"{symptom} at step {step}: training has diverged; {_remedy(run, config)}")


def _remedy(run: Path, config: TrainingConfig) -> str:
    rate = min(config.learning_rate / 10, SAFE_RATES.get(config.schedule, SAFE_RATE))
    option = f"--set training.learning_rate={rate:.3g}"
    current = f"now {config.learning_rate:g}"
    steps = checkpoint_steps(run)
    if steps:
        return f"to continue from the intact checkpoint of step {steps[-1]}, add `--resume {option}` ({current})"
    return f"no checkpoint was saved; to start again, add `{option}` ({current})"
