"""The paired comparison of two systems: what it finds, and which files it takes."""

import random
from pathlib import Path

import pytest

from dragoman_training.data.pairs import Pair, write_pairs
from dragoman_training.errors import DataError
from dragoman_training.evaluation.compare import compare, main, read_answers, read_systems

DRAW = random.Random(4)
REFERENCES = [" ".join(DRAW.choices("abcdefgh", k=9)) for _ in range(60)]


def spoiled(text: str, words: int) -> str:
    return " ".join(["z"] * words + text.split()[words:])


def test_a_better_system_is_told_from_an_equal_one() -> None:
    worse, better = [spoiled(text, 4) for text in REFERENCES], [spoiled(text, 2) for text in REFERENCES]
    found = compare(worse, better, [[text] for text in REFERENCES])
    assert list(found) == ["BLEU", "chrF2", "TER"]
    assert found["BLEU"].values[0] < found["BLEU"].values[1]
    assert found["TER"].values == pytest.approx((400 / 9, 200 / 9))
    assert all(each.p_value < 0.01 for each in found.values())
    assert "bs:1000|seed:12345" in found["TER"].signature
    equal = compare(worse, list(worse), [[text] for text in REFERENCES])
    assert all(each.p_value == 1 for each in equal.values())


def write(path: Path, lines: list[str]) -> str:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def test_files_with_sources_in_another_order_and_several_references(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = [f"s{i}\t{text}" for i, text in enumerate(REFERENCES)]
    references = write(tmp_path / "references.tsv", [*sources, *(f"s{i}\tanother" for i in range(9))])
    a = write(tmp_path / "a.tsv", sources[::-1])
    b = write(
        tmp_path / "b.tsv",
        [f"{line.rpartition(chr(9))[0]}\t{spoiled(REFERENCES[i], 3)}" for i, line in enumerate(sources)],
    )
    assert main([references, a, b]) == 0
    output = capsys.readouterr().out
    assert output.startswith("60 sources; A: ")
    assert "A 100.00 ± 0.00" in output
    plain = [write(tmp_path / f"{name}.txt", texts) for name, texts in (("r", REFERENCES), ("one", REFERENCES))]
    assert main([*plain, plain[1]]) == 0
    assert "B - A +0.00" in capsys.readouterr().out


def test_answers_of_a_run_have_escapes(tmp_path: Path) -> None:
    """Other files, such as the test set itself, have none."""
    pairs = [Pair(r"C:\new", r"\alpha", tmp_path, 1), Pair("a", "b", tmp_path, 2)]
    answers = tmp_path / "test_answers.tsv"
    write_pairs(answers, pairs)
    (tmp_path / "data.json").write_text("{}")
    references = Path(write(tmp_path / "test.tsv", [f"{pair.source}\t{pair.target}" for pair in pairs]))
    assert read_systems(references, answers, answers) == ([r"\alpha", "b"], [r"\alpha", "b"], [[r"\alpha"], ["b"]])
    write_pairs(answers, [])
    with pytest.raises(DataError, match="is empty, expected one text per line"):
        read_answers(answers)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (["s0\tx"], ["s1\ty"], "b.txt: lacks the source 's0', which"),
        (["s0\tx", "s9\tx"], ["s0\tx", "s9\tx"], "references.tsv: lacks the source 's9', which"),
        (["x", "y", "z"], ["x", "y"], "a.txt: has 3 lines, expected 2 as"),
        ([], ["x", "y"], "a.txt: is empty, expected one text per line"),
    ],
)
def test_files_that_do_not_fit_are_refused(
    a: list[str], b: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    references = write(tmp_path / "references.tsv", ["s0\tx", "s1\ty"])
    assert main([references, write(tmp_path / "a.txt", a), write(tmp_path / "b.txt", b)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("error: ")
    assert len(error.splitlines()) == 1
