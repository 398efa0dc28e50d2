"""The models to compare on every platform: the shipped one, and a small one in each CPU precision."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman_export.export import ExportOptions, export_run
from dragoman_server.bundle.load import shipped_bundle
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
FRESH = {
    "fp32": ExportOptions(name="fp32"),
    "int8": ExportOptions(name="int8", precision="int8", cache="float", max_quality_loss=ANY_LOSS),
    "int8-caches": ExportOptions(name="int8-caches", precision="int8", cache="int8", max_quality_loss=ANY_LOSS),
    "int8-weights": ExportOptions(name="int8-weights", precision="int8-weights", max_quality_loss=ANY_LOSS),
    "int4": ExportOptions(name="int4", precision="int4", max_quality_loss=ANY_LOSS),
}
MODELS = [SHIPPED, *(Model(name, NUMBERS, name in ("int8-weights", "int4")) for name in FRESH)]


def make_repository(run: Path, folder: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Writes a model repository with all `MODELS`.

    Args:
        run: A finished run of the recipe `tiny`.
        folder: A directory that does not exist yet.
    """
    shutil.copytree(shipped_bundle(), folder / SHIPPED.name / "1")
    for name, options in FRESH.items():
        say(f"exporting {name}")
        export_run(run, folder / name / "1", options)
    return folder
