"""The models to compare on every platform: the shipped one, and a small one in each CPU precision."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dragoman_export.bundle.options import CacheChoice
from dragoman_server.bundle.manifest import Integers
from tests.support.bundles import SHIPPED_G2P
from tests.support.parity import WORDS
from tests.support.quantized_bundles import write_quantized

INPUTS = 200
NUMBERS = [str(number) for number in range(7, 10_000, 9_999 // INPUTS)][:INPUTS]  # inputs of the recipe `tiny`


@dataclass(frozen=True)
class Model:
    """A model of the repository.

    Attributes:
        name: Name of its directory.
        blockwise: Whether its products quantize activations block by block, if the processor has kernels for that.
            Others (x86 without AVX2) multiply unquantized activations, so scores and the order of ties differ.
        lone: Number of inputs that are also sent one per call.
        beams: Number of inputs that are also decoded with beams, unless the model is blockwise.
    """

    name: str
    inputs: list[str]
    blockwise: bool = False
    lone: int = 12
    beams: int = 16


SHIPPED = Model("shipped", WORDS[:INPUTS])
QUANTIZED: dict[str, tuple[Integers, CacheChoice]] = {
    "int8": ("int8", "float"),
    "int8-caches": ("int8", "int8"),
    "int8-weights": ("int8-weights", "float"),
    "int4": ("int4", "float"),
}
MODELS = [SHIPPED, *(Model(name, NUMBERS, name in ("int8-weights", "int4")) for name in ("fp32", *QUANTIZED))]


def make_repository(run: Path, bundle: Path, folder: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Writes a model repository with all `MODELS`.

    Args:
        run: A finished run of the recipe `tiny`.
        bundle: The bundle exported from it in fp32.
        folder: A directory that does not exist yet.
    """
    shutil.copytree(SHIPPED_G2P, folder / SHIPPED.name / "1")
    shutil.copytree(bundle, folder / "fp32" / "1")
    write_quantized(run, bundle, {folder / name / "1": precisions for name, precisions in QUANTIZED.items()}, say)
    return folder
