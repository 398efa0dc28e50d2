"""Quantized copies of a bundle, made without tracing its model again."""

from collections.abc import Callable, Mapping
from pathlib import Path

from dragoman_export.bundle.options import CacheChoice
from dragoman_export.checks.quality import PairSet
from dragoman_export.precision.quantization_search import QuantizationTask, quantize_within_limit
from dragoman_export.run_data import read_run
from dragoman_server.bundle.load import load_bundle
from dragoman_server.bundle.manifest import Integers
from dragoman_server.runtime.device import CPU

ANY_LOSS = 100.0  # points; the quality of a precision is tested elsewhere


def write_quantized(
    run: Path,
    bundle: Path,
    places: Mapping[Path, tuple[Integers, CacheChoice]],
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Quantizes a bundle as dragoman-export does, whatever the loss and without the parity check.

    Args:
        run: A finished run.
        bundle: The bundle exported from it in fp32.
        places: Directories that do not exist yet, each with the precisions of the weights and of the caches to write.
    """
    exact, original = load_bundle(bundle), read_run(run, say)
    data, longest = PairSet("dev", original.data["dev"], original.metrics), PairSet("training", original.longest)
    decoded = data.decode(exact, CPU)
    for place, (precision, cache) in places.items():
        say(f"quantizing to {precision}, caches {cache}")
        place.parent.mkdir(parents=True, exist_ok=True)
        task = QuantizationTask(exact, place, precision, data, longest, decoded, ANY_LOSS, say)
        quantize_within_limit(task, cache)
