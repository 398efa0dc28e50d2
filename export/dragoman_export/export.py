"""Exports a run or an imported model to a bundle, or checks a bundle again."""

import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from dragoman_export.build import BuildInput, build
from dragoman_export.bundle.bf16_on_cpu import runnable
from dragoman_export.bundle.options import CHECK_SAMPLES, ExportOptions, ImportOptions
from dragoman_export.bundle.write import model_shape
from dragoman_export.checks.parity import Circumstances, check_bundle
from dragoman_export.checks.report import ParityReport
from dragoman_export.errors import ExportError
from dragoman_export.graphs.mapped_file import map_parameters
from dragoman_export.imports import read_import
from dragoman_export.original import Original
from dragoman_export.places import check_place
from dragoman_export.run_data import read_run, source_fault, spread
from dragoman_server.bundle.load import BundleError, load_bundle
from dragoman_server.bundle.manifest import MANIFEST_FILE, NAME_PATTERN, Manifest
from dragoman_server.messages.blank_text import is_blank
from dragoman_server.messages.carried_text import readable_characters
from dragoman_server.runtime.device import DeviceError

__all__ = ["ExportOptions", "ImportOptions", "check", "export_import", "export_run"]


def _silent(_: str) -> None:
    pass


def export_run(
    run: Path, bundle: Path, options: ExportOptions, say: Callable[[str], None] = _silent
) -> tuple[Manifest, ParityReport]:
    """Exports a run, checks the graphs against the model and measures their quality. The bundle appears only then.

    Args:
        run: Directory that dragoman-train wrote.
        bundle: Directory to make. A hidden one beside it holds the files meanwhile.
        options: Options of the export.
        say: Prints a line for the user. An exception that it raises ends the export.

    Raises:
        ExportError: The run cannot be read, the options are invalid, the bundle exists, or the check failed. Nothing is
            left behind then, and a bundle that was to be overwritten is unchanged.
    """
    _check_destination(bundle, overwrite=options.overwrite)
    _check_options(options)
    original = read_run(run, say)
    if not original.provenance["finished"]:
        steps = ", ".join(map(str, original.provenance["steps_averaged"]))
        say(f"{run} is not finished; the bundle is made from the checkpoint at step {steps}")
    if not original.sources:
        raise ExportError(f"{run}: there is no dev or test data on which to compare the answers of model and graphs")
    for text in options.examples:
        fault = source_fault(
            original.source.tokenizer, text, original.limits.max_source_tokens, original.tokens.unknown
        )
        if fault:
            raise ExportError(f"--example {text!r} {fault}")
    return _export(original, bundle, options, say)


def export_import(
    imported: ImportOptions, bundle: Path, options: ExportOptions, say: Callable[[str], None] = _silent
) -> tuple[Manifest, ParityReport]:
    """Exports a model of another program, and checks the graphs against it. The bundle appears only then.

    Args:
        imported: The model.
        bundle: Directory to make. A hidden one beside it holds the files meanwhile.
        options: Options of the export.
        say: Prints a line for the user. An exception that it raises ends the export.

    Raises:
        ExportError: The model cannot be read, the options are invalid, the bundle exists, or the check failed. Nothing
            is left behind then, and a bundle that was to be overwritten is unchanged.
    """
    _check_destination(bundle, overwrite=options.overwrite)
    _check_options(options)
    for text in options.examples:
        if is_blank(text):
            raise ExportError(f"--example {text!r} has no visible characters")
    return _export(read_import(imported, say), bundle, options, say)


def _export(
    original: Original, bundle: Path, options: ExportOptions, say: Callable[[str], None]
) -> tuple[Manifest, ParityReport]:
    _check_heads(original, options)
    if options.carry_text and not any(map(str.isalpha, readable_characters(original.source.tokenizer))):
        problem = "its tokenizer spells all text as bytes, so --carry-text would carry nothing"
        raise ExportError(f"{original.place}: {problem}")
    try:
        bundle.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", dir=bundle.parent))
    except OSError as error:
        raise ExportError(f"{bundle} can't be made: {error.strerror}") from error
    try:
        model = map_parameters(original.model, folder / "model.bin")
        built, report = build(BuildInput(original, folder, options, say, model.release))
        if not options.overwrite and bundle.exists():
            raise ExportError(f"{bundle} was made by someone else in the meantime; it is left as it is")
        say(f"moving {bundle} into place")
        _move_into_place(built.path, bundle)
    except OSError as error:
        raise ExportError(f"{bundle} can't be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return built.manifest, report


def check(
    bundle: Path,
    origin: Path | ImportOptions | None,
    device: str,
    say: Callable[[str], None] = _silent,
    *,
    samples: int = CHECK_SAMPLES,
) -> ParityReport:
    """Checks a bundle again.

    Args:
        bundle: The bundle.
        origin: The run or the model that it was made from. Without it the bundle is compared with itself, see
            `check_bundle`.
        device: Device to run the graphs on.
        say: Prints a line for the user.
        samples: See `ExportOptions.check_samples`.

    Raises:
        ExportError: The bundle or its origin cannot be read, they do not belong together, or the device does not work.
    """
    with tempfile.TemporaryDirectory() as scratch:
        try:
            loaded, chosen = runnable(load_bundle(bundle), device, Path(scratch) / "rounded")
        except (BundleError, DeviceError) as error:
            raise ExportError(str(error)) from error
        if origin is None:
            return check_bundle(loaded, None, [], chosen, Circumstances(samples, say))
        original = read_import(origin, say) if isinstance(origin, ImportOptions) else read_run(origin, say)
        place = original.place
        if model_shape(original.model) != loaded.manifest.shape:
            raise ExportError(f"{bundle} was not made from {place}: the shapes of the models differ")
        steps, now = (found.get("steps_averaged") for found in (loaded.manifest.training, original.provenance))
        if steps != now:
            raise ExportError(
                f"{bundle} was made from the checkpoints at steps {steps}, but {place} has those at {now}"
            )
        texts = spread(original.sources, samples)
        return check_bundle(loaded, original.model, texts, chosen, Circumstances(samples, say))


def _check_destination(bundle: Path, *, overwrite: bool) -> None:
    if not check_place(bundle):
        return
    if not overwrite:
        raise ExportError(f"{bundle} already exists: choose another place, or replace it with --overwrite")
    if not (bundle / MANIFEST_FILE).exists():
        raise ExportError(f"{bundle} is not a bundle (it has no {MANIFEST_FILE}), so it is not overwritten")


def _check_options(options: ExportOptions) -> None:
    if not re.fullmatch(NAME_PATTERN, options.name):
        raise ExportError(f"--name {options.name!r} must be letters, digits, '.', '_' and '-', a letter or digit first")
    _check_texts(options)
    names: set[str] = set()
    for notice in options.notices:
        if not notice.is_file():
            raise ExportError(f"--notice {notice} is not a file")
        if notice.name in names or notice.suffix in (".onnx", ".json", ".bin", ".spm"):
            raise ExportError(f"--notice {notice} can't go into the bundle under the name {notice.name}")
        names.add(notice.name)


def _check_texts(options: ExportOptions) -> None:
    """Refuses texts that a manifest can't have."""
    given = [("--version", options.version), ("--description", options.description), ("--license", options.license)]
    given += [("--example", text) for text in options.examples]
    given += [("--notice", notice.name) for notice in options.notices]
    for option, text in given:
        try:
            text.encode()
        except UnicodeEncodeError:  # of arguments, bytes that are not UTF-8 become lone surrogates
            raise ExportError(f"{option} {text!a} is not UTF-8") from None


def _check_heads(original: Original, options: ExportOptions) -> None:
    width = model_shape(original.model).d_head
    if options.attention == "ort" and width % 8:
        raise ExportError(
            f"{original.place}: heads are {width} wide, but --attention ort needs a multiple of 8: "
            "pass --attention standard"
        )


def _move_into_place(folder: Path, bundle: Path) -> None:
    """Renames the finished folder. An older bundle is deleted only once the new one is in place."""
    if not bundle.exists():
        folder.rename(bundle)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", dir=bundle.parent))
    old = aside / "old"
    try:
        bundle.rename(old)
        folder.rename(bundle)
    finally:
        if not bundle.exists():  # after an error, or a signal between the two
            old.rename(bundle)
        shutil.rmtree(aside, ignore_errors=True)
