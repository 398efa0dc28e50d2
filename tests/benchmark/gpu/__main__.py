"""`python -m tests.benchmark.gpu`: times decode steps on a GPU against the limit of its memory bandwidth.

It also runs on a CPU for a trial (`--device cpu --small`), without the measurements that need a GPU.
"""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from dragoman_export.export import ExportOptions, export_run
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import Precision
from dragoman_server.runtime.device import DeviceError, choose_device
from dragoman_training.model import ModelConfig
from tests.benchmark import results
from tests.benchmark.gpu.contenders import contenders
from tests.benchmark.gpu.memory import memory_over_requests
from tests.benchmark.gpu.steps import Load, copy_bandwidth, step_times
from tests.benchmark.machine import PACKAGES, describe
from tests.benchmark.page import gpu_section
from tests.benchmark.random_bundle import BASE, BUILD, VOCABULARY
from tests.support.random_model import random_model, write_run

SEED = 1
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SMALL = ModelConfig(**BASE.model_dump() | {"d_model": 64, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2})
SMALL_ROWS, SMALL_VOCABULARY = (1, 3, 8), 200


def main(
    output: Annotated[Path | None, typer.Option(help="Folder of gpu.json; build/bench for a trial.")] = None,
    device: Annotated[str, typer.Option(help="cuda, cuda:1 and so on, or cpu for a trial.")] = "cuda",
    small: Annotated[bool, typer.Option("--small", help="A small model, few rows and requests, for a trial.")] = False,
    others: Annotated[bool, typer.Option(help="Whether to measure PyTorch and CTranslate2.")] = True,
) -> None:
    """Measures steps of 1 to 256 rows, and memory over 1,000 requests, with random weights of the base shape."""
    config, vocabulary = (SMALL, SMALL_VOCABULARY) if small else (BASE, VOCABULARY)
    load = Load(source=6, steps=6, rounds=2) if small else Load(source=16, steps=32, rounds=7)
    rows, requests = (SMALL_ROWS, 40) if small else (ROWS, 1000)
    with tempfile.TemporaryDirectory() as scratch:
        run, path = Path(scratch) / "run", Path(scratch) / "bundle"
        write_run(run, config, vocabulary, SEED)
        precision: Precision = "fp32" if device == "cpu" else "fp16"
        kind = "cpu" if device == "cpu" else "cuda"
        try:
            export_run(run, path, ExportOptions(name="base", precision=precision, max_quality_loss=100, device=kind))
            bundle = load_bundle(path)
            chosen = choose_device(device, bundle.decoder)
        except DeviceError as error:
            typer.echo(f"benchmark: {error}", err=True)
            raise typer.Exit(1) from None
        bandwidth = copy_bandwidth(chosen)
        steps = step_times(bundle, chosen, rows, load, bandwidth)
        memory = memory_over_requests(bundle, chosen, requests)
        model = random_model(config, vocabulary, SEED)
        others_measured = list(contenders(model, bundle, chosen, rows, load, Path(scratch))) if others else []
    document = {
        "machine": describe("tests.benchmark.gpu", (*(p for p in PACKAGES if p != "onnxruntime"), "torch")),
        "device": str(chosen),
        "precision": precision,
        "bandwidth": bandwidth,
        "steps": [vars(step) for step in steps],
        "memory": memory,
        "others": [vars(contender) for contender in others_measured],
    }
    folder = output or (BUILD if small or device == "cpu" else results.RESULTS)
    results.write("gpu", document, folder)
    print(*gpu_section(results.read("gpu", folder)), f"Written to {folder / 'gpu.json'}.", sep="\n\n")


if __name__ == "__main__":
    typer.run(main)
