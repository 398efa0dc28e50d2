"""A bundle that is not what its manifest says is refused with one sentence that names the file."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from dragoman_server.bundle.load import BundleError, load_bundle
from dragoman_server.bundle.manifest import Manifest

Document = dict[str, Any]


def entry(path: Path) -> Document:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Everything the loader looks at; the graphs are opened later, by the runtime."""
    root = tmp_path / "bundle"
    root.mkdir()
    for name in ("encoder", "decoder", "scorer"):
        (root / f"{name}.onnx").write_bytes(name.encode() * 100)
    for side, extra in (("source", "ab"), ("target", "xyz")):
        tokens = ["<pad>", "<unk>", "<s>", "</s>", *extra]
        vocabulary = {token: i for i, token in enumerate(tokens)}
        Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>")).save(str(root / f"{side}_tokenizer.json"))
    graph = {"inputs": ["a"], "outputs": ["b"]}
    document = {
        "format_version": 3,
        "name": "toy",
        "attention": "ort",
        "shape": {
            "d_model": 8, "heads": 1, "d_head": 8, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1,
            "source_vocabulary": 6, "target_vocabulary": 7, "parameters": 100,
        },
        "tokens": {"pad": 0, "unknown": 1, "begin": 2, "end": 3},
        "limits": {"max_source_tokens": 8, "max_target_tokens": 8},
        "graphs": {name: {"file": f"{name}.onnx", **graph} for name in ("encoder", "decoder", "scorer")},
        "tokenizers": {"source": "source_tokenizer.json", "target": "target_tokenizer.json"},
        "files": {path.name: entry(path) for path in sorted(root.iterdir())},
    }  # fmt: skip
    (root / "manifest.json").write_text(json.dumps(document))
    return root


def edit(bundle: Path, change: Callable[[Document], None]) -> None:
    path = bundle / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def refused(bundle: Path) -> str:
    with pytest.raises(BundleError) as error:
        load_bundle(bundle)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_loads(bundle: Path) -> None:
    loaded = load_bundle(bundle)
    assert loaded.manifest.name == "toy"
    assert loaded.target_tokenizer.token_to_id("z") == 6


def test_measurements_may_have_any_names(bundle: Path) -> None:
    """Those of bundles exported before the metrics had the names of today, too."""
    measured = {"dev word error rate (%)": 23.109, "dev token error rate (%)": 5.636}
    training = {"recipe": {"evaluation": {"metrics": ["word_error_rate", "token_error_rate"]}}}
    edit(bundle, lambda d: d.update(quality=measured, training=training))
    assert load_bundle(bundle).manifest.quality == measured


def test_loads_from_another_directory_and_through_links(bundle: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """As Kubernetes mounts a volume: NAME/file -> ..data/file, ..data -> a directory with a date."""
    mount = tmp_path / "mount"
    (mount / "..2026_11_27").mkdir(parents=True)
    for path in bundle.iterdir():
        (mount / "..2026_11_27" / path.name).write_bytes(path.read_bytes())
        (mount / path.name).symlink_to(f"..data/{path.name}")
    (mount / "..data").symlink_to("..2026_11_27")
    monkeypatch.chdir(mount)
    assert load_bundle(Path()).manifest.name == "toy"
    (tmp_path / "link").symlink_to(mount)
    assert load_bundle(tmp_path / "link").manifest.name == "toy"


def test_loads_from_a_read_only_directory(bundle: Path) -> None:
    for path in bundle.iterdir():
        path.chmod(0o444)
    bundle.chmod(0o555)
    try:
        assert load_bundle(bundle).manifest.name == "toy"
    finally:
        bundle.chmod(0o755)


def test_missing_directory(tmp_path: Path) -> None:
    assert "no-such-place" in refused(tmp_path / "no-such-place")


def test_a_file_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "not a directory" in refused(tmp_path / "file")


def test_directory_without_manifest(tmp_path: Path) -> None:
    assert "manifest.json" in refused(tmp_path)


def test_manifest_that_is_no_json(bundle: Path) -> None:
    (bundle / "manifest.json").write_text("{")
    assert "not valid JSON" in refused(bundle)


def test_missing_file(bundle: Path) -> None:
    (bundle / "decoder.onnx").unlink()
    message = refused(bundle)
    assert "decoder.onnx" in message
    assert "missing" in message


def test_truncated_file(bundle: Path) -> None:
    (bundle / "decoder.onnx").write_bytes(b"decoder")
    message = refused(bundle)
    assert "decoder.onnx has 7 bytes" in message
    assert "700" in message


def test_changed_file(bundle: Path) -> None:
    data = bytearray((bundle / "encoder.onnx").read_bytes())
    data[10] ^= 1
    (bundle / "encoder.onnx").write_bytes(data)
    message = refused(bundle)
    assert "encoder.onnx was changed" in message


@pytest.mark.parametrize("version", [1, 4, 0, "1", None, True, 2.0, 3.0])
def test_other_format_version(bundle: Path, version: object) -> None:
    edit(bundle, lambda d: d.update(format_version=version))
    message = refused(bundle)
    assert f"format_version is {version!r}" in message
    assert "reads versions 2 and 3" in message


def test_old_bundles_are_read_but_not_their_wide_integers(bundle: Path) -> None:
    """Weights of 8 bits, as format 2 had them, overflow on x86 without VNNI: no error, other answers."""
    edit(bundle, lambda d: d.update(format_version=2))
    assert load_bundle(bundle).manifest.format_version == 2
    for precision in ("int8-weights", "int4"):
        edit(bundle, lambda d, precision=precision: d.update(precision=precision))  # type: ignore[misc]
        load_bundle(bundle)
    edit(bundle, lambda d: d.update(precision="int8"))
    message = refused(bundle)
    assert "manifest.json: an int8 bundle of format_version 2" in message
    assert "CPUs without VNNI" in message
    assert "export the run again" in message


def test_unknown_key(bundle: Path) -> None:
    edit(bundle, lambda d: d["limits"].update(max_beams=4))
    assert "limits.max_beams" in refused(bundle)


def test_wrong_type(bundle: Path) -> None:
    edit(bundle, lambda d: d["limits"].update(max_source_tokens="many"))
    assert "limits.max_source_tokens" in refused(bundle)


def test_file_outside_the_bundle(bundle: Path) -> None:
    edit(bundle, lambda d: d["files"].update({"../secret": {"sha256": "0" * 64, "bytes": 1}}))
    assert "not a plain file name" in refused(bundle)


def test_file_used_but_not_listed(bundle: Path) -> None:
    edit(bundle, lambda d: d["files"].pop("decoder.onnx"))
    assert "decoder.onnx is used but not listed" in refused(bundle)


def test_token_id_that_disagrees_with_the_tokenizer(bundle: Path) -> None:
    edit(bundle, lambda d: d["tokens"].update(end=2, begin=3))
    message = refused(bundle)
    assert "source_tokenizer.json" in message
    assert "<s> has id 2, but the manifest says 3" in message


def test_vocabulary_size_that_disagrees_with_the_tokenizer(bundle: Path) -> None:
    edit(bundle, lambda d: d["shape"].update(target_vocabulary=70))
    assert "has 7 tokens, but the manifest says 70" in refused(bundle)


def test_tokenizer_that_is_none(bundle: Path) -> None:
    path = bundle / "source_tokenizer.json"
    path.write_text("[]")
    edit(bundle, lambda d: d["files"].update({path.name: entry(path)}))
    assert "source_tokenizer.json is not a tokenizer" in refused(bundle)


def test_manifest_survives_a_round_trip(bundle: Path) -> None:
    manifest = load_bundle(bundle).manifest
    assert Manifest.model_validate_json(manifest.model_dump_json()) == manifest
