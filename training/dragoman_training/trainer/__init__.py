"""Training runs: the loop of steps and evaluations, and the end that averages and reports."""

from dragoman_training.trainer.loop import Trainer
from dragoman_training.trainer.train import Outcome, prepare_data, rehearse, train

__all__ = ["Outcome", "Trainer", "prepare_data", "rehearse", "train"]
