"""The models to compare on every platform: the shipped one, and a small one in each CPU precision."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman_export.bundle.options import CacheChoice
from dragoman_export.checks.quality import PairSet
from dragoman_export.export import ExportOptions, export_run
from dragoman_export.precision.quantization_search import QuantizationTask, quantize_within_limit
from dragoman_export.run_data import read_run
from dragoman_server.bundle.load import load_bundle, shipped_bundle
from dragoman_server.bundle.manifest import Integers
from dragoman_server.runtime.device import CPU
from tests.support.parity import WORDS

INPUTS = 200
NUMBERS = [str(number) for number in range(7, 10_000, 9_999 // INPUTS)][:INPUTS]  # inputs of the recipe `tiny`
ANY_LOSS = 100.0  # points; the quality of a precision is tested elsewhere


@dataclass(frozen=True)
class Model:
    """A model of the repository.

    Attributes:
        name: Name of its directory.
        blockwise: Whether its products quantize activations block by block, if the processor has kernels for that.
            Others (x86 without AVX2) multiply unquantized activations, so scores and the order of ties differ.
    """

    name: str
    inputs: list[str]
    blockwise: bool = False


SHIPPED = Model("shipped", WORDS[:INPUTS])
QUANTIZED: dict[str, tuple[Integers, CacheChoice]] = {
    "int8": ("int8", "float"),
    "int8-caches": ("int8", "int8"),
    "int8-weights": ("int8-weights", "float"),
    "int4": ("int4", "float"),
}
MODELS = [SHIPPED, *(Model(name, NUMBERS, name in ("int8-weights", "int4")) for name in ("fp32", *QUANTIZED))]


def make_repository(run: Path, folder: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Writes a model repository with all `MODELS`.

    Args:
        run: A finished run of the recipe `tiny`.
        folder: A directory that does not exist yet.
    """
    shutil.copytree(shipped_bundle(), folder / SHIPPED.name / "1")
    say("exporting fp32")
    export_run(run, folder / "fp32" / "1", ExportOptions(name="fp32"))
    exact = load_bundle(folder / "fp32" / "1")
    original = read_run(run, say)
    data, longest = PairSet("dev", original.data["dev"], original.metrics), PairSet("training", original.longest)
    decoded = data.decode(exact, CPU)
    for name, (precision, cache) in QUANTIZED.items():
        say(f"quantizing to {name}")
        (folder / name).mkdir()
        task = QuantizationTask(exact, folder / name / "1", precision, data, longest, decoded, ANY_LOSS, say)
        quantize_within_limit(task, cache)
    return folder
