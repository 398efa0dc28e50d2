"""`python -m tests.benchmark.gpu`: how long a decode step takes on a GPU, beside what its memory would allow.

It runs on a CPU too (`--device cpu --small`), to try it; what concerns a GPU alone is left out there.
"""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from export.bundle import Options, export_run
from server.bundle.load import load_bundle
from server.bundle.manifest import Precision
from server.runtime.device import DeviceError, choose_device
from tests.benchmark.base_model import BASE, VOCABULARY
from tests.benchmark.gpu.contenders import contenders
from tests.benchmark.gpu.memory import memory_over_requests
from tests.benchmark.gpu.report import markdown
from tests.benchmark.gpu.steps import Load, copy_bandwidth, step_times
from tests.benchmark.machine import PACKAGES, describe
from tests.support.random_model import random_model, write_run
from training.model import ModelConfig

SEED = 1
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SMALL = ModelConfig(**BASE.model_dump() | {"d_model": 64, "d_ff": 128, "encoder_layers": 2, "decoder_layers": 2})
SMALL_ROWS, SMALL_VOCABULARY = (1, 3, 8), 200


def main(
    output: Annotated[Path, typer.Option(help="Where gpu.md and gpu.json go.")],
    device: Annotated[str, typer.Option(help="cuda, cuda:1 and so on, or cpu to try it.")] = "cuda",
    small: Annotated[bool, typer.Option("--small", help="A small model, few rows and requests: to try it.")] = False,
    others: Annotated[bool, typer.Option(help="Whether PyTorch and CTranslate2 take part.")] = True,
) -> None:
    """Measures steps of 1 to 256 rows, and memory over 1,000 requests, with random weights of the base shape."""
    console = Console()
    config, vocabulary = (SMALL, SMALL_VOCABULARY) if small else (BASE, VOCABULARY)
    load = Load(source=6, steps=6, rounds=2) if small else Load(source=16, steps=32, rounds=7)
    rows, requests = (SMALL_ROWS, 40) if small else (ROWS, 1000)
    with tempfile.TemporaryDirectory() as scratch:
        run, path = Path(scratch) / "run", Path(scratch) / "bundle"
        write_run(run, config, vocabulary, SEED)
        precision: Precision = "fp32" if device == "cpu" else "fp16"
        kind = "cpu" if device == "cpu" else "cuda"
        try:
            export_run(run, path, Options(name="base", precision=precision, max_quality_loss=100, device=kind))
            bundle = load_bundle(path)
            chosen = choose_device(device, bundle.decoder)
        except DeviceError as error:
            console.print(f"benchmark: {error}", style="red", markup=False)
            raise typer.Exit(1) from None
        bandwidth = copy_bandwidth(chosen)
        steps = step_times(bundle, chosen, rows, load, bandwidth)
        memory = memory_over_requests(bundle, chosen, requests)
        model = random_model(config, vocabulary, SEED)
        beside = list(contenders(model, bundle, chosen, rows, load, Path(scratch))) if others else []
    machine = describe("tests.benchmark.gpu", (*(p for p in PACKAGES if p != "onnxruntime"), "torch"))
    document = {
        "machine": machine,
        "device": str(chosen),
        "precision": precision,
        "load": vars(load),
        "bandwidth": bandwidth,
        "steps": [vars(each) for each in steps],
        "memory": memory,
        "others": [vars(each) for each in beside],
    }
    output.mkdir(parents=True, exist_ok=True)
    text = markdown(document)
    (output / "gpu.md").write_text(text, encoding="utf-8")
    (output / "gpu.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    typer.run(main)
