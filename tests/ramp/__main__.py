"""`python -m tests.ramp` shows that under rising load the queue, by which pods scale, grows before latency does.

It measures a server of the shipped model, and writes ramp.json and ramp.png.
"""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
import yaml

from tests.benchmark.machine import ROOT, describe
from tests.ramp.measure import measure
from tests.ramp.plot import plot
from tests.ramp.results import Moment
from tests.support.servers import G2PServer

CHART_VALUES = ROOT / "deploy" / "helm" / "dragoman" / "values.yaml"
SEED = 1


def main(
    seconds: Annotated[float, typer.Option(min=1, help="Duration of the rising load.")] = 60.0,
    full_seconds: Annotated[
        float, typer.Option(min=0.1, help="Duration of each of three measurements of the capacity.")
    ] = 3.0,
    serve: Annotated[str, typer.Option(help="Additional arguments of dragoman-serve, in one string.")] = "",
    output: Annotated[Path, typer.Option(help="Directory for ramp.json and ramp.png.")] = ROOT / "build" / "ramp",
) -> None:
    """Measures how queue and latency of one server rise with its load."""
    machine = describe("tests.ramp")
    threshold = float(yaml.safe_load(CHART_VALUES.read_text(encoding="utf-8"))["autoscaling"]["waitingPerPod"])
    with G2PServer("--log-requests", "none", *shlex.split(serve)) as server:
        ramp = measure(server, seconds, full_seconds, SEED)
    output.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine, "threshold": threshold, **asdict(ramp)}, indent=1)
    (output / "ramp.json").write_text(text + "\n", encoding="utf-8")
    plot(ramp, threshold, output / "ramp.png")
    print(f"More than {threshold:g} requests wait {_since(ramp.queue_rises(threshold))}.")
    print(f"More than 5 % of calls take over {ramp.slow_seconds:.2g} s {_since(ramp.latency_rises())}.")
    print(f"Written to {output / 'ramp.json'} and {output / 'ramp.png'}.")


def _since(moment: Moment | None) -> str:
    if moment is None:
        return "at no time"
    return f"from second {moment.second} on, at {moment.offered} calls per second"


if __name__ == "__main__":
    typer.run(main)
