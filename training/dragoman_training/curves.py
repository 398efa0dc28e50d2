"""The course of a run as a picture."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # a file, never a window

from matplotlib import pyplot as plt

from dragoman_training.journal import Record


def draw_curves(records: list[Record], path: Path) -> None:
    """Loss, dev metrics, and learning rate over the steps, as a PNG."""
    train = [r for r in records if r["kind"] == "train"]
    dev = [r for r in records if r["kind"] == "dev"]
    figure, (losses, metrics, rates) = plt.subplots(1, 3, figsize=(15, 4), layout="constrained")
    losses.plot([r["step"] for r in train], [r["loss"] for r in train], label="train (smoothed)")
    losses.plot([r["step"] for r in dev], [r["loss"] for r in dev], "o-", label="dev")
    losses.set(title="loss, nats a token", xlabel="step")
    for name in sorted({name for r in dev for name in r} - {"kind", "step", "loss"}):
        metrics.plot([r["step"] for r in dev if name in r], [r[name] for r in dev if name in r], "o-", label=name)
    metrics.set(title="dev, %", xlabel="step")
    rates.plot([r["step"] for r in train], [r["learning_rate"] for r in train])
    rates.set(title="learning rate", xlabel="step")
    for axes in (losses, metrics):
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.savefig(path, dpi=100)
    plt.close(figure)
