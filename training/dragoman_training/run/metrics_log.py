"""What a run writes down while it trains: RUN/metrics.jsonl, and the same numbers for TensorBoard."""

import json
from pathlib import Path
from typing import Any

import matplotlib
from torch.utils.tensorboard import SummaryWriter

from dragoman_training.evaluation.metrics import better
from dragoman_training.files import METRICS_FILE, write_text

matplotlib.use("Agg")  # no display needed

from matplotlib import pyplot as plt

Record = dict[str, Any]


class MetricsLog:
    """Records of kind "train", "dev" and "recipe", one JSON object a line, each with its step.

    A run that resumes at a step forgets what was written beyond it: those steps come again.

    Args:
        run: the run's directory.
        step: steps done, 0 for a new run.
    """

    def __init__(self, run: Path, step: int) -> None:
        self.path = run / METRICS_FILE
        self.records = [record for record in read_metrics_log(run) if record["step"] <= step]
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in self.records))
        self.file = self.path.open("a")
        self.board = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)

    def write(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Adds a record."""
        self._add({"kind": kind, "step": step, **values})
        for name, value in values.items():
            self.board.add_scalar(f"{kind}/{name}", value, step)

    def note(self, step: int, changed: dict[str, tuple[Any, Any]]) -> None:
        """Adds a record of the recipe's keys that have other values after this step: before, and from then on."""
        self._add({"kind": "recipe", "step": step, **{key: list(values) for key, values in changed.items()}})

    def notes(self) -> list[Record]:
        """What `note` added, without its kind."""
        return [{k: v for k, v in r.items() if k != "kind"} for r in self.records if r["kind"] == "recipe"]

    def _add(self, record: Record) -> None:
        self.records.append(record)
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()

    def dev(self, metric: str) -> dict[int, float]:
        """A dev metric of every step at which it was measured, in order."""
        return {r["step"]: r[metric] for r in self.records if r["kind"] == "dev" and metric in r}

    def best(self, metric: str, count: int) -> list[int]:
        """The steps with the best values of a dev metric, best first, the earlier one where two are equal."""
        left = self.dev(metric)
        chosen: list[int] = []
        while left and len(chosen) < count:
            top = next(iter(left))
            for step, value in left.items():
                if better(metric, value, left[top]):
                    top = step
            chosen.append(top)
            del left[top]
        return chosen

    def stale(self, metric: str) -> int:
        """How many times dev was measured since the metric was best."""
        steps = list(self.dev(metric))
        return len(steps) - 1 - steps.index(self.best(metric, 1)[0]) if steps else 0

    def close(self) -> None:
        """Flushes and closes the files."""
        self.file.close()
        self.board.close()


def read_metrics_log(run: Path) -> list[Record]:
    """The records of a run; a last line torn by a kill is left out."""
    path = run / METRICS_FILE
    records: list[Record] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records


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
