"""The architecture page names files that exist, and stays short."""

import re

from tests.conftest import ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"
PACKAGES = ("", "server/dragoman_server", "training/dragoman_training", "export/dragoman_export", "protos/dragoman")


def test_the_architecture_page_names_files_that_exist() -> None:
    named = re.findall(r"`([\w./]+(?:/|\.py|\.yaml))`", ARCHITECTURE.read_text(encoding="utf-8"))
    missing = [name for name in named if not any((ROOT / package / name).exists() for package in PACKAGES)]
    assert len(named) > 40
    assert missing == []


def test_the_architecture_page_is_short() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8")
    glossary = text.partition("## Glossary")[2].strip().splitlines()[2:]
    assert len(text.splitlines()) <= 150
    assert len(glossary) <= 40
