"""BLEU of Moses tokens, and the command that prints it."""

from pathlib import Path

import pytest

from dragoman_training.evaluation.tokenized_bleu import main, tokenized_bleu

ANSWERS = ["Ein Mann, der z.B. läuft.", "Zwei Hunde spielen im Schnee ."]
REFERENCES = ["Ein Mann , der z.B. läuft .", "Zwei Hunde spielen im Schnee."]


def test_texts_that_differ_in_spaces_around_marks_are_equal() -> None:
    score = tokenized_bleu(ANSWERS, REFERENCES, "de")
    assert score.score == pytest.approx(100)
    assert score.ref_len == 7 + 6  # "z.B." is an abbreviation of German, and stays whole


def test_case_counts_unless_both_are_lower_cased() -> None:
    shouted = [text.upper() for text in ANSWERS]
    assert tokenized_bleu(shouted, REFERENCES, "de").score < 20
    assert tokenized_bleu(shouted, REFERENCES, "de", lowercase=True).score > 60


def test_the_command_prints_both_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers, references = tmp_path / "answers.tsv", tmp_path / "references.txt"
    answers.write_text("".join(f"source\t{answer}\n" for answer in ANSWERS), encoding="utf-8")
    references.write_text("".join(f"{reference}\n" for reference in REFERENCES), encoding="utf-8")
    assert main([str(answers), str(references), "--language", "de", "--lowercase"]) == 0
    shown = capsys.readouterr().out
    assert "lower-cased, Moses tokens  BLEU = 100.00" in shown
    assert "tok:13a" in shown


def test_files_of_different_length_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").write_text("a\n")
    (tmp_path / "two").write_text("a\nb\n")
    assert main([str(tmp_path / "one"), str(tmp_path / "two"), "--language", "de"]) == 1
    assert capsys.readouterr().err == "error: there are 1 answers but 2 references\n"
    assert main([str(tmp_path / "none"), str(tmp_path / "two"), "--language", "de"]) == 1
    assert "none: cannot be read" in capsys.readouterr().err
