"""Divergence: how it is detected, and the way on."""

import math
from pathlib import Path

from dragoman_training.errors import TrainingError
from dragoman_training.recipe import TrainingConfig
from dragoman_training.run.checkpoint import checkpoint_steps

# Times the loss of an untrained model. Measured on `tiny`: at fifty times its learning rate a run stays below that loss
# and learns; at 250 times it comes to 20 times that loss, and ends worse than guessing.
MOST = 10
RATES = {"noam": 1.0}  # a learning rate that is seldom too high, by schedule
RATE = 1e-3  # of the others


def untrained_loss(vocabulary: int, d_model: int) -> float:
    """The most a model pays before it has learned anything, in nats a token.

    That is what guessing costs; and where the embedding is the output layer too, the logit of the token just read,
    which is up to the square root of the width.
    """
    return math.log(vocabulary) + math.sqrt(d_model)


def check(loss: float, gradient_norm: float, untrained: float, step: int, run: Path, config: TrainingConfig) -> None:
    """Looks at a step before it changes the weights, or at weights before they are saved.

    Args:
        loss: mean over target tokens, in nats.
        gradient_norm: of the whole model's gradient.
        untrained: the loss of a model that knows nothing.
        step: at which this was measured.

    Raises:
        TrainingError: no further step would help, with what to do instead.
    """
    if not math.isfinite(loss):
        found = f"the loss is {loss}"
    elif loss > MOST * untrained:
        found = f"the loss is {loss:.3g}, more than {MOST} times that of a model that knows nothing,"
    elif not math.isfinite(gradient_norm):
        found = f"the gradient's norm is {gradient_norm}"
    else:
        return
    raise TrainingError(f"{found} at step {step}: training has diverged; {_way_on(run, config)}")


def _way_on(run: Path, config: TrainingConfig) -> str:
    rate = min(config.learning_rate / 10, RATES.get(config.schedule, RATE))
    lower = f"--set training.learning_rate={rate:.3g}"
    was = f"it is {config.learning_rate:g}"
    steps = checkpoint_steps(run)
    if steps:
        return (
            f"the same command with `--resume {lower}` ({was}) goes on from the checkpoint of step {steps[-1]}, "
            "which is sound"
        )
    return f"no checkpoint was saved, so the same command with `{lower}` ({was}) begins anew"
