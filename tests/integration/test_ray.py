"""Ray Data on a local cluster: two actors, one of which dies."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.bundles import SHIPPED_G2P

FILES, ROWS = 4, 50
BATCH = 10
DIES_AT = 3  # batches
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of this machine, for two actors and one task beside them."""
    for name, value in {
        "RAY_AUTH_MODE": "disabled",  # it would write a token to the home directory
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "240",
        "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    import ray

    folder = tempfile.mkdtemp(prefix="ray-")  # a path of sockets may have 107 bytes, fewer than pytest's
    ray.init(num_cpus=3, include_dashboard=False, object_store_memory=2**27, log_to_driver=False, _temp_dir=folder)
    yield ray
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_rows_come_once_though_an_actor_dies(tmp_path: Path, cluster: Any) -> None:
    from dragoman.ray import Predictor

    words = [LETTERS[number % 26] + LETTERS[number // 26] + LETTERS[number * 7 % 26] for number in range(FILES * ROWS)]
    (tmp_path / "in").mkdir()
    for first in range(0, len(words), ROWS):
        table = pa.table({"id": range(first, first + ROWS), "word": words[first : first + ROWS]})
        parquet.write_table(table, tmp_path / "in" / f"{first}.parquet")
    died = tmp_path / "died"

    class Mortal(Predictor):
        """Is killed once, in the middle of its work."""

        batches = 0

        def __call__(self, batch: Any) -> Any:
            self.batches += 1
            answered = super().__call__(batch)
            if self.batches == DIES_AT and not died.exists():
                died.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)
            return answered.append_column("process", pa.array([os.getpid()] * len(answered)))

    arguments: dict[str, Any] = {"bundle": str(SHIPPED_G2P), "column": "word", "machine": {"max_rows": 16}}
    # Ray joins small files to one block, which only one actor could work on.
    answered = (
        cluster.data.read_parquet(str(tmp_path / "in"))
        .repartition(2 * FILES)
        .map_batches(
            Mortal,
            fn_constructor_kwargs=arguments,
            batch_size=BATCH,
            batch_format="pyarrow",
            num_cpus=1,
            compute=cluster.data.ActorPoolStrategy(size=2),
        )
    )
    answered.write_parquet(str(tmp_path / "out"))
    found = parquet.read_table(tmp_path / "out").sort_by("id").to_pylist()
    here = Predictor(**arguments)
    expected = here(pa.table({"word": words}))
    here.close()
    assert [row["id"] for row in found] == list(range(len(words)))
    assert [row["answer"] for row in found] == expected["answer"].to_pylist()
    assert len({row["process"] for row in found}) >= 2
    assert died.exists()
