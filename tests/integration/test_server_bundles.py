"""Bundles as they lie on real machines, and bundles whose manifest and graphs disagree."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dragoman import Client
from tests.conftest import StartServer
from tests.integration.test_server_process import refuses_to_start


def test_every_file_may_be_a_link_into_a_directory_of_its_own(
    start_server: StartServer, tiny_bundle: Path, tmp_path: Path
) -> None:
    """As stores do that keep files by their content, and volumes that are put together from several sources."""
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in tiny_bundle.iterdir():
        home = tmp_path / "store" / path.name[::-1]
        home.mkdir(parents=True)
        shutil.copyfile(path, home / "content")
        (linked / path.name).symlink_to(home / "content")
    with Client(start_server("--bundle", str(tiny_bundle)).address) as plain:
        expected = plain.generate("4207", log_probabilities=True)
    with Client(start_server("--bundle", str(linked)).address) as client:
        assert client.generate("4207", log_probabilities=True) == expected


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        ("shape", "heads", 8),
        ("shape", "d_head", 8),
        ("limits", "max_source_tokens", 5000),
        ("limits", "max_target_tokens", 5000),
        (None, "attention", "standard"),
    ],
)
def test_graphs_that_are_not_what_the_manifest_says_are_told(
    tiny_bundle: Path, tmp_path: Path, part: str | None, key: str, value: Any
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_bundle, broken)
    manifest = json.loads((broken / "manifest.json").read_text())
    changed = manifest[part] if part else manifest
    assert changed[key] != value
    changed[key] = value
    (broken / "manifest.json").write_text(json.dumps(manifest))
    said = refuses_to_start("--bundle", broken, "--engines", "1", "--max-rows", "2")
    assert said.startswith(f"{broken}: the graphs do not run as the manifest says: ")


def test_more_rows_than_there_is_memory_for_are_refused_with_the_sum(tiny_bundle: Path) -> None:
    said = refuses_to_start("--bundle", tiny_bundle, "--engines", "1", "--max-rows", str(10**16))
    assert said.startswith(f"not enough memory for {10**16:,} rows in 1 engine, ")
    assert " has free " in said
    assert said.endswith("there is room for none; lower --max-rows, or give it more memory")


def test_what_can_not_be_a_host_is_told(tiny_bundle: Path) -> None:
    said = refuses_to_start("--bundle", tiny_bundle, "--host", "a" * 100)
    assert said == f"--host {'a' * 100} is not an address of this machine: not a host name"
