"""The page of all measurements."""

from pathlib import Path

import pytest
import typer

from tests.benchmark.page import main


def test_parts_stand_in_order_with_their_pictures(tmp_path: Path) -> None:
    results, page = tmp_path / "results", tmp_path / "page" / "README.md"
    results.mkdir()
    page.parent.mkdir()
    (results / "training.md").write_text("# Training\n\n## Small\n\n| a |\n|---|\n| 1 |\n")
    (results / "loop.md").write_text("# The loop\n\n![rows](rows.png)\n")
    (results / "rows.png").write_bytes(b"drawn")
    main(results, page)
    text = page.read_text()
    assert text.index("## The loop") < text.index("## Training") < text.index("### Small") < text.index("| 1 |")
    assert text.startswith("# What was measured")
    assert "![rows](pictures/rows.png)" in text
    assert (page.parent / "pictures" / "rows.png").read_bytes() == b"drawn"


def test_pictures_of_before_are_gone(tmp_path: Path) -> None:
    (tmp_path / "loop.md").write_text("# The loop\n")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "old.png").touch()
    main(tmp_path, tmp_path / "README.md")
    assert list((tmp_path / "pictures").iterdir()) == []


def test_without_measurements_there_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        main(tmp_path, tmp_path / "README.md")
    assert "nothing was measured yet" in capsys.readouterr().err
    assert not (tmp_path / "README.md").exists()
