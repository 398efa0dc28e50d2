"""Finds out whether an import was made before. Imports nothing heavy: a pod that restarts does not need PyTorch."""

from pathlib import Path

from dragoman_export.bundle.fingerprint import FINGERPRINT, fingerprint
from dragoman_export.bundle.options import ImportOptions
from dragoman_export.errors import ExportError
from dragoman_server.bundle.load import BundleError, load_bundle
from dragoman_server.bundle.manifest import Precision


def made_before(
    bundle: Path, imported: ImportOptions, precision: Precision, *, overwrite: bool, carry_text: bool = False
) -> bool:
    """Returns whether a bundle is already the import of a model at a revision, in a precision.

    Args:
        bundle: Directory of the bundle.
        imported: The model. Its revision is a commit, or None for any.
        precision: Precision of the weights.
        overwrite: Whether another bundle in its place may be replaced.
        carry_text: Whether it should carry text.

    Raises:
        ExportError: There is another bundle in its place, or something that is not a bundle.
    """
    if not bundle.exists():
        return False
    try:
        manifest = load_bundle(bundle).manifest
    except BundleError as error:
        if overwrite:
            return False
        raise ExportError(str(error)) from None
    folder = Path(imported.model)
    name, revision = folder.resolve().name if folder.exists() else imported.model, imported.revision or ""
    found = manifest.origin.get("name", ""), manifest.origin.get("revision", "")
    kind = manifest.precision, manifest.carries_text
    if found[0] == name and found[1].startswith(revision) and kind == (precision, carry_text):
        made_from, files = manifest.training.get(FINGERPRINT), fingerprint(imported)
        if made_from in (None, files):
            return True
        if not overwrite:
            raise ExportError(
                f"{bundle} was made from other files than those that {imported.model} has now: choose another place, "
                "or replace it with --overwrite"
            )
    if overwrite:
        return False
    at = f" at revision {found[1]}" if found[1] else ""
    wanted = f"{name} at revision {revision}" if revision else name
    raise ExportError(
        f"{bundle} already exists, but is {found[0] or 'no import'}{at} in {_described(*kind)}, and not {wanted} in "
        f"{_described(precision, carry_text)}: choose another place, or replace it with --overwrite"
    )


def _described(precision: Precision, carries_text: bool) -> str:
    return f"{precision} with --carry-text" if carries_text else precision
