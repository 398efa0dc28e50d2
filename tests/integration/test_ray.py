"""Ray Data on a local cluster: two actors, one of which dies."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from dragoman.ray import Predictor
from tests.conftest import ROOT
from tests.support.bundles import SHIPPED_G2P

FILES, ROWS = 4, 50
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_rows_come_once_though_an_actor_dies(tmp_path: Path) -> None:
    words = [LETTERS[number % 26] + LETTERS[number // 26] + LETTERS[number * 7 % 26] for number in range(FILES * ROWS)]
    sources, answers, died = tmp_path / "in", tmp_path / "out", tmp_path / "died"
    sources.mkdir()
    for first in range(0, len(words), ROWS):
        table = pa.table({"id": range(first, first + ROWS), "word": words[first : first + ROWS]})
        parquet.write_table(table, sources / f"{first}.parquet")
    arguments: dict[str, Any] = {"bundle": str(SHIPPED_G2P), "column": "word", "machine": {"max_rows": 16}}
    # In a process of its own: Ray ends the process that started it if one of Ray's own programs dies.
    command = [sys.executable, "-m", "tests.support.ray_job", *map(str, (sources, answers, died))]
    done = subprocess.run(
        [*command, json.dumps(arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    found = parquet.read_table(answers).sort_by("id").to_pylist()
    here = Predictor(**arguments)
    expected = here(pa.table({"word": words}))
    here.close()
    assert [row["id"] for row in found] == list(range(len(words)))
    assert [row["answer"] for row in found] == expected["answer"].to_pylist()
    assert len({row["process"] for row in found}) >= 2
    assert died.exists()
