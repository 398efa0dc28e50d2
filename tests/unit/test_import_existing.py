"""Imports that were made before: which bundles count as that, and that the command then needs neither model nor hub."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dragoman_export.bundle.existing import made_before
from dragoman_export.bundle.fingerprint import FINGERPRINT, fingerprint
from dragoman_export.bundle.options import ImportOptions
from dragoman_export.cli import app
from dragoman_export.errors import ExportError
from dragoman_server.bundle.manifest import MANIFEST_FILE
from tests.support.bundles import SHIPPED_G2P

MODEL, COMMIT = "owner/model", "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle in int8, which says that it was imported."""
    folder = Path(shutil.copytree(SHIPPED_G2P, tmp_path / "models" / "1"))
    document = json.loads((folder / MANIFEST_FILE).read_text())
    (folder / MANIFEST_FILE).write_text(json.dumps(document | {"origin": {"name": MODEL, "revision": COMMIT}}))
    return folder


def run(bundle: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return CliRunner().invoke(app, ["--from-transformers", MODEL, str(bundle), "--if-needed", *options])


@pytest.mark.parametrize("revision", [[], ["--revision", COMMIT], ["--revision", COMMIT[:7]]])
def test_the_same_import_is_not_repeated(bundle: Path, revision: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    before = (bundle / MANIFEST_FILE).stat()  # of which reading may change the time of access
    result = run(bundle, monkeypatch, "--precision", "int8", *revision)
    assert (result.exit_code, result.output) == (0, f"{bundle} is already there\n")
    after = (bundle / MANIFEST_FILE).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [file.name for file in bundle.parent.iterdir()] == ["1"]


def test_a_file_is_known_by_its_name(bundle: Path) -> None:
    model = bundle.parent / "model.npz"
    model.touch()
    document = json.loads((bundle / MANIFEST_FILE).read_text())
    (bundle / MANIFEST_FILE).write_text(json.dumps(document | {"origin": {"name": "model.npz"}}))
    options = ["--from-marian", str(model), str(bundle), "--if-needed", "--precision", "int8"]
    result = CliRunner().invoke(app, options)
    assert (result.exit_code, result.output) == (0, f"{bundle} is already there\n")


def test_a_directory_is_known_by_its_files(bundle: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    imported = ImportOptions("transformers", str(model))
    document = json.loads((bundle / MANIFEST_FILE).read_text())
    document["training"][FINGERPRINT] = fingerprint(imported)
    (bundle / MANIFEST_FILE).write_text(json.dumps(document | {"origin": {"name": "model"}}))
    (model / "README.md").write_text("another description")
    assert made_before(bundle, imported, "int8", overwrite=False)
    (model / "config.json").write_text('{"d_model": 8}')
    with pytest.raises(ExportError, match=r"was made from other files than those that .*model has now"):
        made_before(bundle, imported, "int8", overwrite=False)
    assert not made_before(bundle, imported, "int8", overwrite=True)


def test_whether_it_carries_text_counts(bundle: Path) -> None:
    imported = ImportOptions("transformers", MODEL)
    with pytest.raises(ExportError, match=r"in int8, and not owner/model in int8 with --carry-text: choose"):
        made_before(bundle, imported, "int8", overwrite=False, carry_text=True)
    document = json.loads((bundle / MANIFEST_FILE).read_text())
    (bundle / MANIFEST_FILE).write_text(json.dumps(document | {"carries_text": True, "format_version": 6}))
    assert made_before(bundle, imported, "int8", overwrite=False, carry_text=True)
    with pytest.raises(ExportError, match=r"in int8 with --carry-text, and not owner/model in int8: choose"):
        made_before(bundle, imported, "int8", overwrite=False)


def test_a_damaged_bundle_is_not_taken_for_the_import(bundle: Path) -> None:
    (bundle / "decoder.onnx").unlink()
    imported = ImportOptions("transformers", MODEL)
    with pytest.raises(ExportError, match=r"decoder\.onnx is missing"):
        made_before(bundle, imported, "int8", overwrite=False)
    assert not made_before(bundle, imported, "int8", overwrite=True)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--precision", "fp32"], "owner/model in fp32"),
        (["--precision", "int8", "--revision", "f" * 40], f"owner/model at revision {'f' * 40} in int8"),
    ],
)
def test_another_import_is_not_replaced(
    bundle: Path, options: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(bundle, monkeypatch, *options)
    assert result.exit_code == 1
    expected = f"error: {bundle} already exists, but is {MODEL} at revision {COMMIT} in int8, and not {wanted}: "
    assert result.output == expected + "choose another place, or replace it with --overwrite\n"


def test_what_is_no_bundle_is_not_replaced(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle / MANIFEST_FILE).unlink()
    result = run(bundle, monkeypatch)
    assert (result.exit_code, "is not a bundle" in result.output) == (1, True)


def test_it_is_for_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["run", "bundle", "--if-needed"])
    assert result.exit_code == 2
    assert "--if-needed needs an import" in " ".join(result.output.replace("│", " ").split())
