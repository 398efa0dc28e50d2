"""`python -m tests.ramp`: under rising load the queue, by which pods are scaled, grows before answers become slow.

Measures it with a server of the model that ships, and writes ramp.json and ramp.png.
"""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import yaml

from dragoman.local import LocalServer
from tests.benchmark.machine import ROOT, describe
from tests.ramp.course import measure
from tests.ramp.draw import draw
from tests.ramp.lead import Moment

CHART_VALUES = ROOT / "deploy" / "helm" / "dragoman" / "values.yaml"
SEED = 1


def main(
    seconds: Annotated[float, typer.Option(min=1, help="How long the load rises.")] = 60.0,
    full_seconds: Annotated[float, typer.Option(min=0.1, help="How long what it can do is measured, thrice.")] = 3.0,
    serve: Annotated[str, typer.Option(help="More arguments of dragoman-serve, in one string.")] = "",
    output: Annotated[Path, typer.Option(help="Folder for ramp.json and ramp.png.")] = ROOT / "build" / "ramp",
) -> None:
    """Measures how queue and latency rise with the load of one server."""
    machine = describe("tests.ramp")
    threshold = float(yaml.safe_load(CHART_VALUES.read_text(encoding="utf-8"))["autoscaling"]["waitingPerPod"])
    with LocalServer("--log-requests", "none", *shlex.split(serve)) as server:
        ramp = measure(server, seconds, full_seconds, SEED)
    output.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine, "threshold": threshold, **asdict(ramp)}, indent=1)
    (output / "ramp.json").write_text(text + "\n", encoding="utf-8")
    draw(ramp, threshold, output / "ramp.png")
    print(f"More than {threshold:g} requests wait {_since(ramp.queue_rises(threshold))}.")
    print(f"More than 5 of 100 calls take over {ramp.slow_seconds:.2g} s {_since(ramp.latency_rises())}.")
    print(f"Written to {output / 'ramp.json'} and {output / 'ramp.png'}.")


def _since(moment: Moment | None) -> str:
    if moment is None:
        return "at no time"
    return f"from second {moment.second} on, at {moment.offered} calls per second"


if __name__ == "__main__":
    typer.run(main)
