"""The metrics of a run: RUN/metrics.jsonl, the same numbers for TensorBoard, and the curves."""

import json
from pathlib import Path
from typing import Any, TextIO

from torch.utils.tensorboard import SummaryWriter

from dragoman_training.evaluation.metrics import better
from dragoman_training.files import METRICS_FILE, write, write_text
from dragoman_training.processes import ALONE, Processes

Record = dict[str, Any]


class MetricsLog:
    """Records of kind "train", "dev" and "recipe", one JSON object per line, each with its step.

    A run that resumes at a step drops the records beyond it, since those steps are repeated.

    Args:
        run: The run directory.
        step: Number of steps done, 0 for a new run.
        processes: Processes that train. All have the records, so that they decide alike; process 0 has the files.
    """

    def __init__(self, run: Path, step: int, processes: Processes = ALONE) -> None:
        self.path = run / METRICS_FILE
        self.file: TextIO | None = None
        self.tensorboard: SummaryWriter | None = None
        self.records: list[Record] = []
        if processes.is_first:
            self.records = [record for record in read_metrics_log(run) if record["step"] <= step]
            write_text(self.path, "".join(json.dumps(record) + "\n" for record in self.records))
            self.file = self.path.open("a")
            self.tensorboard = SummaryWriter(str(run / "tensorboard"), purge_step=step + 1)
        self.records = processes.share(self.records)

    def write(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Adds a record of kind "train" or "dev"."""
        self._append({"kind": kind, "step": step, **values})
        if self.tensorboard is not None:
            for name, value in values.items():
                self.tensorboard.add_scalar(f"{kind}/{name}", value, step)

    def write_recipe_changes(self, step: int, changed: dict[str, tuple[Any, Any]]) -> None:
        """Adds a record of the recipe keys that change after this step, each with its old and its new value."""
        self._append({"kind": "recipe", "step": step, **{key: list(values) for key, values in changed.items()}})

    def recipe_changes(self) -> list[Record]:
        """Returns what `write_recipe_changes` added, without the kind."""
        return [{k: v for k, v in r.items() if k != "kind"} for r in self.records if r["kind"] == "recipe"]

    def _append(self, record: Record) -> None:
        self.records.append(record)
        if self.file is not None:
            self.file.write(json.dumps(record) + "\n")
            self.file.flush()

    def dev_values(self, metric: str) -> dict[int, float]:
        """Returns a dev metric by the step it was measured at, in order."""
        return {r["step"]: r[metric] for r in self.records if r["kind"] == "dev" and metric in r}

    def best_steps(self, metric: str, count: int) -> list[int]:
        """Returns the steps with the best values of a dev metric, best first; of equal values the earlier one first."""
        remaining = self.dev_values(metric)
        chosen: list[int] = []
        while remaining and len(chosen) < count:
            best = next(iter(remaining))
            for step, value in remaining.items():
                if better(metric, value, remaining[best]):
                    best = step
            chosen.append(best)
            del remaining[best]
        return chosen

    def evaluations_since_best(self, metric: str) -> int:
        """Returns how many evaluations on dev followed the one with the best value."""
        steps = list(self.dev_values(metric))
        return len(steps) - 1 - steps.index(self.best_steps(metric, 1)[0]) if steps else 0

    def close(self) -> None:
        """Flushes and closes the files."""
        if self.file is not None:
            self.file.close()
        if self.tensorboard is not None:
            self.tensorboard.close()


def read_metrics_log(run: Path) -> list[Record]:
    """Reads the records of a run, without lines that are none: one that a kill or a power cut has damaged."""
    path = run / METRICS_FILE
    records: list[Record] = []
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and {"kind", "step"} <= record.keys():
            records.append(record)
    return records


def draw_curves(records: list[Record], path: Path) -> None:
    """Draws loss, dev metrics and learning rate over the steps as a PNG."""
    # Here, because it takes half a second to import; and not pyplot, which looks for a display.
    from matplotlib.figure import Figure

    train = [r for r in records if r["kind"] == "train"]
    dev = [r for r in records if r["kind"] == "dev"]
    figure = Figure(figsize=(15, 4))
    # A constrained layout would draw it twice more to find these margins.
    figure.subplots_adjust(left=0.05, right=0.99, bottom=0.13, top=0.91)
    losses, metrics, rates = figure.subplots(1, 3)
    losses.plot([r["step"] for r in train], [r["loss"] for r in train], label="train (smoothed)")
    losses.plot([r["step"] for r in dev], [r["loss"] for r in dev], "o-", label="dev")
    losses.set(title="loss, nats per token", xlabel="step")
    for name in sorted({name for r in dev for name in r} - {"kind", "step", "loss", "seconds"}):
        metrics.plot([r["step"] for r in dev if name in r], [r[name] for r in dev if name in r], "o-", label=name)
    metrics.set(title="dev, %", xlabel="step")
    rates.plot([r["step"] for r in train], [r["learning_rate"] for r in train])
    rates.set(title="learning rate", xlabel="step")
    for axes in (losses, metrics):
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    write(path, lambda file: figure.savefig(file, format="png", dpi=100))
