"""What the command line says of an answer to text that the model was not trained on."""

import json

import pytest

from dragoman.cli.runner import Printer
from dragoman.results import FinishReason, Hypothesis, Result

RESULT = Result(
    hypotheses=(Hypothesis("hello", FinishReason.EOS, 5),), source_tokens=7, model="m", unseen_source_tokens=(2, 3)
)


def test_a_guess_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer("line", as_json=False, options={})
    printer.answered(RESULT)
    printer.answered(Result(RESULT.hypotheses, 7, "m"))
    said = capsys.readouterr()
    assert said.out == "hello\nhello\n"
    assert said.err == "dragoman: line 1: the answer is a guess: 2 of 7 source tokens do not occur in training data\n"
    assert printer.failures == 0


def test_json_has_the_places(capsys: pytest.CaptureFixture[str]) -> None:
    Printer("", as_json=True, options={}).answered(RESULT)
    assert json.loads(capsys.readouterr().out)["unseen_source_tokens"] == [2, 3]
