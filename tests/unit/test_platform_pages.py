"""Every page from which people start says what the server needs, and all say the same."""

import importlib.metadata
import re
import tomllib

import pytest

from tests.conftest import ROOT

PAGES = ["README.md", "README.zh-CN.md", "docs/platforms.md", "deploy/docker/README.md"]


@pytest.mark.parametrize("page", PAGES)
def test_processor_libc_and_python_are_named(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    package, *_ = importlib.metadata.packages_distributions()["onnxruntime"]  # or onnxruntime-gpu
    wheel = importlib.metadata.distribution(package).read_text("WHEEL") or ""
    minor = min(map(int, re.findall(r"manylinux_2_(\d+)_", wheel)))
    python = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert f"glibc 2.{minor}" in text
    assert python.removeprefix(">=") in text
    assert {word for word in ("x86-64-v2", "musl", "Alpine") if word not in text} == set()
