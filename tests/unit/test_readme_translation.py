"""The Chinese README says what the English one says, as far as a machine can tell."""

import re

import pytest

from tests.conftest import ROOT

ENGLISH, CHINESE = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each code block, without comments, which are translated; in a block that is no program
    what stands in a second column is one."""
    return [
        (language, re.sub(r"(?<=\S)\s+#.*$" if language else r"(?<=\S)\s{2,}.*$", "", content, flags=re.MULTILINE))
        for language, content in BLOCK.findall(text)
    ]


def prose(text: str) -> str:
    return BLOCK.sub("", text)


def headings(text: str) -> list[int]:
    return [len(marks) for marks in re.findall(r"^(#+) ", prose(text), re.MULTILINE)]


def links(text: str) -> set[tuple[str, str]]:
    return set(re.findall(r'\]\(([^)]+)\)|(?:src|srcset)="([^"]+)"', prose(text)))


def names(text: str) -> set[str]:
    return set(re.findall(r"`([^`\n]+)`", prose(text)))


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+(?:[.,]\d+)*", prose(text)))


def tables(text: str) -> list[list[int]]:
    """Of each table the number of cells of each row."""
    found = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    return [[row.count("|") for row in table.splitlines()] for table in found]


def test_code_is_the_same() -> None:
    assert blocks(CHINESE) == blocks(ENGLISH)
    assert len(blocks(ENGLISH)) > 8


def test_it_has_the_same_sections_and_tables() -> None:
    assert headings(CHINESE) == headings(ENGLISH)
    assert tables(CHINESE) == tables(ENGLISH)


def test_it_names_and_counts_the_same_things() -> None:
    assert names(CHINESE) == names(ENGLISH)
    assert numbers(ENGLISH) - numbers(CHINESE) == set()


def test_it_leads_to_the_same_places_and_each_leads_to_the_other() -> None:
    there, back = ("README.zh-CN.md", ""), ("README.md", "")
    assert links(CHINESE) - {back} == links(ENGLISH) - {there}
    for text, link in ((ENGLISH, there), (CHINESE, back)):
        assert f"]({link[0]})" in "".join(text.splitlines()[:4])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("```sh\nls  # all\n```\n", "```sh\nls    # 全部\n```\n", True),
        ("```sh\nls  # all\n```\n", "```sh\nls -l  # all\n```\n", False),
        ("```sh\nls\n```\n", "```python\nls\n```\n", False),
        ("```\ntests/   of all kinds\n```\n", "```\ntests/   各种测试\n```\n", True),
        ("```\ntests/   of all kinds\n```\n", "```\ntest/    of all kinds\n```\n", False),
    ],
)
def test_code_is_compared_without_its_comments(one: str, other: str, same: bool) -> None:
    assert (blocks(one) == blocks(other)) is same
