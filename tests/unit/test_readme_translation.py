"""Chinese pages have the same structure, code, names, numbers and links as the English ones."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = ("README", "docs/quickstart", "docs/training", "docs/serving")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str]]:
    """Returns language and content of each code block, without comments, which are translated.

    In a block without a language, the second column is a comment.
    """
    return [
        (language, re.sub(r"(?<=\S)\s+#.*$" if language else r"(?<=\S)\s{2,}.*$", "", content, flags=re.MULTILINE))
        for language, content in BLOCK.findall(text)
    ]


def prose(text: str) -> str:
    return BLOCK.sub("", text)


def headings(text: str) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", prose(text), re.MULTILINE)]


def links(text: str) -> set[tuple[str, str]]:
    """Returns the targets of links and pictures, except links to the other language."""
    found: list[tuple[str, str]] = re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', prose(text))
    return {link for link in found if not link[0].endswith(".zh-CN.md")}


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", prose(text)))


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", prose(text)))


def tables(text: str) -> list[list[int]]:
    """Returns the number of cells in each row of each table."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [[row.count("|") for row in table.splitlines()] for table in found]


@pytest.mark.parametrize("page", PAGES)
def test_chinese_pages_match_the_english_ones(page: str) -> None:
    english, chinese = ((ROOT / f"{page}{suffix}").read_text(encoding="utf-8") for suffix in (".md", ".zh-CN.md"))
    assert blocks(chinese) == blocks(english) != []
    assert headings(chinese) == headings(english) != []
    assert tables(chinese) == tables(english)
    assert names(chinese) == names(english) != set()
    assert numbers(english) - numbers(chinese) == set()
    name = Path(page).name
    assert links(chinese) - {(f"{name}.md", "")} == links(english) != set()
    for text, other in ((english, f"{name}.zh-CN.md"), (chinese, f"{name}.md")):
        assert f"]({other})" in "".join(text.splitlines()[:4])


@pytest.mark.parametrize(
    ("english", "chinese", "same"),
    [
        ("```sh\nls  # all\n```\n", "```sh\nls    # 全部\n```\n", True),
        ("```sh\nls  # all\n```\n", "```sh\nls -l  # all\n```\n", False),
        ("```sh\nls\n```\n", "```python\nls\n```\n", False),
        ("```\ntests/   of all kinds\n```\n", "```\ntests/   各种测试\n```\n", True),
        ("```\ntests/   of all kinds\n```\n", "```\ntest/    of all kinds\n```\n", False),
    ],
)
def test_code_is_compared_without_its_comments(english: str, chinese: str, same: bool) -> None:
    assert (blocks(english) == blocks(chinese)) is same
