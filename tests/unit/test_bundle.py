"""Loading of bundles: a bundle that differs from its manifest is refused with one sentence that names the file."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version
from structlog.testing import capture_logs
from tokenizers import Tokenizer, models

from dragoman_export.bundle.write import OLDEST_ONNXRUNTIME
from dragoman_server.bundle.load import BundleError, load_bundle, load_manifest
from dragoman_server.bundle.manifest import Manifest
from dragoman_server.models import loading
from dragoman_server.runtime.device import CPU, Device
from tests.support.bundles import SHIPPED_FP32, SHIPPED_G2P

ROOT = Path(__file__).parents[2]
Document = dict[str, Any]


def file_entry(path: Path) -> Document:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle without real graphs, which only the runtime opens."""
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
        "files": {path.name: file_entry(path) for path in sorted(root.iterdir())},
    }  # fmt: skip
    (root / "manifest.json").write_text(json.dumps(document))
    return root


def edit(bundle: Path, change: Callable[[Document], object]) -> None:
    path = bundle / "manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def refusal(bundle: Path) -> str:
    with pytest.raises(BundleError) as error:
        load_bundle(bundle)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_loads(bundle: Path) -> None:
    loaded = load_bundle(bundle)
    assert loaded.manifest.name == "toy"
    assert loaded.target_tokenizer.token_to_id("z") == 6
    assert Manifest.model_validate_json(loaded.manifest.model_dump_json()) == loaded.manifest


def test_metrics_of_older_bundles_load(bundle: Path) -> None:
    """Bundles exported before the metrics were renamed still load."""
    quality = {"dev word error rate (%)": 23.109, "dev token error rate (%)": 5.636}
    training = {"recipe": {"evaluation": {"metrics": ["word_error_rate", "token_error_rate"]}}}
    edit(bundle, lambda d: d.update(quality=quality, training=training))
    assert load_bundle(bundle).manifest.quality == quality


def test_loads_from_another_directory_and_through_links(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes mounts volumes this way: NAME/file -> ..data/file, ..data -> a directory with a date."""
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


def test_a_path_without_a_bundle(tmp_path: Path) -> None:
    assert "no-such-place" in refusal(tmp_path / "no-such-place")
    (tmp_path / "file").write_text("")
    assert "not a directory" in refusal(tmp_path / "file")
    (tmp_path / "loop").symlink_to("loop")
    assert "can't be opened" in refusal(tmp_path / "loop")
    assert "manifest.json" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_a_manifest_that_is_not_json(bundle: Path, text: str) -> None:
    (bundle / "manifest.json").write_text(text)
    assert "not valid JSON" in refusal(bundle)


@pytest.mark.parametrize(
    ("name", "data", "messages"),
    [
        ("decoder.onnx", None, ["decoder.onnx is missing"]),
        ("decoder.onnx", b"decoder", ["decoder.onnx has 7 bytes", "700"]),
        ("encoder.onnx", b"Encoder" + b"encoder" * 99, ["encoder.onnx was changed"]),
    ],
)
def test_a_missing_or_changed_file(bundle: Path, name: str, data: bytes | None, messages: list[str]) -> None:
    if data is None:
        (bundle / name).unlink()
    else:
        (bundle / name).write_bytes(data)
    for message in messages:
        assert message in refusal(bundle)


def test_a_file_that_is_not_a_tokenizer(bundle: Path) -> None:
    path = bundle / "source_tokenizer.json"
    path.write_text("[]")
    edit(bundle, lambda d: d["files"].update({path.name: file_entry(path)}))
    assert "source_tokenizer.json is not a tokenizer" in refusal(bundle)


@pytest.mark.parametrize(
    ("change", "messages"),
    [
        (lambda d: d["limits"].update(max_beams=4), ["limits.max_beams"]),
        (lambda d: d["limits"].update(max_source_tokens="many"), ["limits.max_source_tokens"]),
        (
            lambda d: d["files"].update({"../secret": {"sha256": "0" * 64, "bytes": 1}}),
            ["'../secret' is not a plain file name"],
        ),
        (
            lambda d: d["files"].update({"a\0b": {"sha256": "0" * 64, "bytes": 1}}),
            ["files: 'a\\x00b' is not a plain file name"],
        ),
        (lambda d: d["files"].pop("decoder.onnx"), ["decoder.onnx is used but not listed"]),
        (
            lambda d: d["tokens"].update(end=2, begin=3),
            ["source_tokenizer.json", "<s> has id 2, but the manifest says 3"],
        ),
        (lambda d: d["shape"].update(target_vocabulary=70), ["has 7 tokens, but the manifest says 70"]),
        *(
            (
                lambda d, generation=generation: d.update(generation=generation),
                ["manifest.json: generation: 7 is not the id of a target token, of which there are 7"],
            )
            for generation in ({"forced_first": 7}, {"begin_suppressed": [6, 7]})
        ),
    ],
)
def test_a_manifest_with_a_fault(bundle: Path, change: Callable[[Document], object], messages: list[str]) -> None:
    edit(bundle, change)
    for message in messages:
        assert message in refusal(bundle)


@pytest.mark.parametrize("version", [1, 7, 0, "1", None, True, 2.0, 3.0])
def test_other_format_versions(bundle: Path, version: object) -> None:
    edit(bundle, lambda d: d.update(format_version=version))
    message = refusal(bundle)
    assert f"format_version is {version!r}" in message
    assert "reads versions 2 and 3 and 4 and 5 and 6" in message


def test_version_2_loads_except_int8(bundle: Path) -> None:
    """The 8-bit weights of version 2 overflow on x86 without VNNI: wrong answers instead of an error."""
    edit(bundle, lambda d: d.update(format_version=2))
    assert load_bundle(bundle).manifest.format_version == 2
    for precision in ("int8-weights", "int4"):
        edit(bundle, lambda d, precision=precision: d.update(precision=precision))  # type: ignore[misc]
        load_bundle(bundle)
    edit(bundle, lambda d: d.update(precision="int8"))
    message = refusal(bundle)
    assert "manifest.json: an int8 bundle of format_version 2" in message
    assert "CPUs without VNNI" in message
    assert "export the run again" in message


def test_tests_run_on_the_oldest_supported_onnxruntime() -> None:
    """A manifest's `oldest_onnxruntime` holds as long as CI passes with it."""
    [pinned] = re.findall(r"^onnxruntime==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    [bound] = re.findall(r'"onnxruntime>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned == OLDEST_ONNXRUNTIME
    assert Version(pinned) == Version(bound)


@pytest.mark.parametrize("path", [SHIPPED_G2P, SHIPPED_FP32])
def test_bundles_record_their_exporter(path: Path) -> None:
    manifest = load_manifest(path)[1]
    assert manifest.exporter.keys() == {"dragoman", "onnx", "onnxscript", "torch"}
    assert manifest.oldest_onnxruntime == OLDEST_ONNXRUNTIME


@pytest.mark.parametrize(
    ("installed", "oldest", "warned"),
    [
        ("1.31.1", "1.32.0", True),
        ("1.32.0", "1.32.0", False),
        ("1.100.0", "1.32.0", False),
        ("2.0.0", "1.32.0", False),
        ("1.9.0", "1.32.0", True),
        ("1.31.1", "", False),
    ],
)
def test_warns_of_an_older_onnxruntime_on_cpus(
    installed: str, oldest: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "onnxruntime", SimpleNamespace(__version__=installed))
    with capture_logs() as entries:
        for device in (CPU, None, Device("cuda")):
            loading._compare_runtime("m", oldest, device)
    assert [entry.get("onnxruntime") for entry in entries] == ([installed] * 2 if warned else []), "never for a GPU"
