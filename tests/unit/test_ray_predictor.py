"""The class for Ray's map_batches, without Ray: what it adds to batches of every form."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dragoman.ray import Predictor
from tests.support.bundles import SHIPPED_G2P

WORDS = ["speech", None, "sp33ch", "a", ""]
ANSWERS = ["S P IY CH", None, None, "AH", None]
PROBLEMS = [None, "the source is null", "the source has the character '3'", None, "the source is empty"]


@pytest.fixture(scope="module")
def predictor() -> Iterator[Predictor]:
    made = Predictor(SHIPPED_G2P, column="word", machine={"max_rows": 8, "engines": 1})
    yield made
    made.close()


@pytest.mark.parametrize(
    "batch",
    [
        {"id": np.arange(5), "word": np.array(WORDS, dtype=object)},
        pa.table({"id": range(5), "word": WORDS}),
        pd.DataFrame({"id": range(5), "word": WORDS}),
        pd.DataFrame({"id": range(5), "word": pd.array(WORDS, dtype="string")}),
    ],
    ids=["numpy", "arrow", "pandas", "pandas with NA"],
)
def test_answers_and_problems_are_columns_of_the_batch(predictor: Predictor, batch: Any) -> None:
    found = predictor(batch)
    assert type(found) is type(batch)
    answers, problems = (
        [None if pd.isna(value) else str(value) for value in pd.Series(found[name])] for name in ("answer", "problem")
    )
    assert answers == ANSWERS
    assert [problem and problem[:32] for problem in problems] == [problem and problem[:32] for problem in PROBLEMS]
    assert list(found["id"]) == [0, 1, 2, 3, 4] or found["id"].to_pylist() == [0, 1, 2, 3, 4]


def test_columns_of_arrow_are_texts_even_if_all_are_null(predictor: Predictor) -> None:
    found = predictor(pa.table({"word": ["a"]}))
    assert [found.schema.field(name).type for name in ("answer", "problem")] == [pa.string()] * 2


def test_batches_that_do_not_fit_are_refused(predictor: Predictor) -> None:
    with pytest.raises(KeyError, match="there is no column 'word', only text"):
        predictor({"text": np.array(["a"])})
    with pytest.raises(KeyError, match="there is no column 'word', only 0"):
        predictor(pd.DataFrame([["a"]]))
    with pytest.raises(ValueError, match="there is a column 'answer' already"):
        predictor({"word": np.array(["a"]), "answer": np.array(["b"])})
    numbers = predictor({"word": np.array([1.5, float("nan")])})
    assert list(numbers["problem"]) == ["the source is of type float, not text", "the source is null"]
    tensors = predictor({"word": np.array([[1.5, 2.5]])})
    assert list(tensors["problem"]) == ["the source is of type list, not text"]
    for arguments in ({}, {"bundle": "b", "address": "a:1"}):
        with pytest.raises(ValueError, match="expected either a bundle or an address"):
            Predictor(**arguments)  # type: ignore[arg-type]
    for columns in ({"answer_column": "problem"}, {"column": "w", "problem_column": "w"}):
        with pytest.raises(ValueError, match="expected three different names as column, answer_column and problem_c"):
            Predictor(SHIPPED_G2P, **columns)  # type: ignore[arg-type]
