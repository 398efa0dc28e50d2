"""Links of our Markdown pages to files, pictures and sections lead somewhere."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

LINK = re.compile(r"\]\(([^()\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def pages() -> list[Path]:
    """Those that the project has, not those of what is installed or built in its folder."""
    skipped = {".venv", "build", "dist", "node_modules"}
    return [
        path
        for path in sorted(ROOT.rglob("*.md"))
        if not any(part in skipped or part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]


def links(text: str) -> list[str]:
    found = [one or other for one, other in LINK.findall(CODE.sub("", text))]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


@cache
def sections(page: Path) -> set[str]:
    """The fragments that lead to a page's headings, made of their words as GitHub does."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in HEADING.findall(re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def faults(page: Path) -> list[str]:
    wrong = []
    for link in links(page.read_text(encoding="utf-8")):
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        leads = target.exists() and target.is_relative_to(ROOT)
        if not leads or (fragment and target.suffix == ".md" and fragment not in sections(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert faults(page) == []


def test_pages_and_their_links_are_found() -> None:
    assert {ROOT / "README.md", ROOT / "deploy" / "README.md"} <= set(pages())
    assert len(links((ROOT / "README.md").read_text(encoding="utf-8"))) > 10


def test_what_leads_nowhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# One `and` two\n\n# One and two\n", encoding="utf-8")
    page = tmp_path / "page.md"
    links = [
        "[a](there.md) [b](gone.md) [c](there.md#one-and-two-1) [d](there.md#three) [e](#here-and-there) [f](#there)",
        "[g](https://example.org/gone) `[h](code.md)` [i](../outside.md)",
        "[j]: gone-too.md",
    ]
    page.write_text("# Here, and *there*\n" + "\n\n".join(links) + "\n", encoding="utf-8")
    assert faults(page) == ["gone.md", "there.md#three", "#there", "../outside.md", "gone-too.md"]
