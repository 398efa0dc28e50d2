"""The directory of a training run: its recipe, data, checkpoints, metrics and report."""
