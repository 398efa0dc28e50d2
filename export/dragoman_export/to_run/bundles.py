"""Makes a training run from a bundle, to continue training from its weights: undoes an export."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dragoman_export.bundle.weights import UnreadableGraphError, load_model
from dragoman_export.checks.parity import Circumstances, check_bundle
from dragoman_export.errors import ExportError
from dragoman_export.to_run.writing import check_free, write_run
from dragoman_server.bundle.load import Bundle, BundleError, load_bundle
from dragoman_server.bundle.manifest import MANIFEST_FILE
from dragoman_server.runtime.device import CPU
from dragoman_training.files import SOURCE_TOKENIZER, TARGET_TOKENIZER
from dragoman_training.recipe import Recipe

READABLE = ("fp32", "int8")  # precisions whose weights can be read back
# Sections of the recipe that describe the model; a new run has its own values for the rest.
_KEPT = ("seed", "tokenizers", "model", "training")


def run_of_bundle(bundle: Path, run: Path, say: Callable[[str], None]) -> None:
    """Writes a finished run with the model, tokenizers and recipe of a bundle that was exported from a run.

    Weights of an int8 bundle are those that it computes with. The data of the run is not in a bundle.

    Args:
        bundle: Directory of the bundle.
        run: Directory to make; it appears only when the weights have been compared with the graphs.
        say: Prints a line for the user.

    Raises:
        ExportError: The bundle cannot be read, was not exported from a run, or has weights that cannot be read back; or
            the directory exists.
    """
    check_free(run)
    try:
        loaded = load_bundle(bundle)
    except BundleError as error:
        raise ExportError(str(error)) from error
    recipe = _recipe(loaded)
    say("reading the weights from the graphs")
    try:
        model = load_model(loaded)
        manifest = loaded.manifest
        say("comparing them with the graphs")
        parity = check_bundle(loaded, model, manifest.examples, CPU, Circumstances(say=say))
    except UnreadableGraphError as error:
        raise ExportError(str(error)) from error
    if parity.failures:
        raise ExportError(f"{bundle}: the weights that were read from the graphs differ: {parity.failures[0]}")

    def write_tokenizers(folder: Path) -> None:
        shutil.copyfile(loaded.path / manifest.tokenizers.source, folder / SOURCE_TOKENIZER)
        shutil.copyfile(loaded.path / manifest.tokenizers.target, folder / TARGET_TOKENIZER)

    report, steps = manifest.training.get("report", {}), manifest.training.get("steps_averaged", [])
    write_run(run, recipe, model.state_dict(), steps, manifest.unseen_source_tokens, report, write_tokenizers)


def _recipe(bundle: Bundle) -> Recipe:
    """Returns the recipe in a manifest, with file names instead of paths."""
    manifest, place = bundle.manifest, bundle.path / MANIFEST_FILE
    if "recipe" not in manifest.training:
        raise ExportError(f"{place}: this model was not trained by dragoman-train; expected a bundle of a run")
    if manifest.generation is not None:
        raise ExportError(
            f"{place}: this model continues a published one, whose rules of training are not in a bundle; start from "
            "its run instead, or from the published model (--to-run --from-transformers)"
        )
    if manifest.precision not in READABLE:
        raise ExportError(
            f"{place}: weights in {manifest.precision} can't be read back; expected a bundle in {' or '.join(READABLE)}"
        )
    document: dict[str, Any] = manifest.training["recipe"]
    files = [{"source": f[0], "target": f[1]} if isinstance(f, list) else f for f in document["data"]["train"]]
    kept = {key: document[key] for key in _KEPT if key in document}
    # A run without dev must not ask for what is measured on it; averages mean nothing here.
    kept["training"] = {**kept["training"], "patience": None, "average_best": 0, "average_last": 1}
    try:
        return Recipe.model_validate({**kept, "data": {"train": files}})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        raise ExportError(f"{place}: training.recipe is not a recipe of this version ({key}: {first['msg']})") from None
