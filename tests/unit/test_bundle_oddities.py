"""Paths and manifests that no exporter makes, but that are found on disks, are refused with one sentence too."""

import json
from pathlib import Path

import pytest

from dragoman_server.bundle.load import BundleError, load_bundle


def refused(bundle: Path) -> str:
    with pytest.raises(BundleError) as error:
        load_bundle(bundle)
    return str(error.value)


def test_a_link_to_itself(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert "can't be opened" in refused(tmp_path / "loop")


def test_a_manifest_without_a_bottom(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    assert "is not valid JSON" in refused(tmp_path)


def test_a_file_name_that_can_be_none(tmp_path: Path) -> None:
    graph = {"file": "graph.onnx", "inputs": [], "outputs": []}
    document = {
        "format_version": 3,
        "name": "odd",
        "attention": "ort",
        "shape": {
            "d_model": 8, "heads": 1, "d_head": 8, "d_ff": 16, "encoder_layers": 1, "decoder_layers": 1,
            "source_vocabulary": 6, "target_vocabulary": 7, "parameters": 100,
        },
        "tokens": {"pad": 0, "unknown": 1, "begin": 2, "end": 3},
        "limits": {"max_source_tokens": 8, "max_target_tokens": 8},
        "graphs": dict.fromkeys(("encoder", "decoder", "scorer"), graph),
        "tokenizers": {"source": "source.json", "target": "target.json"},
        "files": {"a\0b": {"sha256": "0" * 64, "bytes": 1}},
    }  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    assert refused(tmp_path).endswith("files: 'a\\x00b' is not a plain file name")
