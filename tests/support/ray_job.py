"""Answers Parquet files on a Ray cluster of this machine, with two actors of which the first to get that far is killed.

    python -m tests.support.ray_job SOURCES ANSWERS DIED ARGUMENTS

Args:
    SOURCES: Folder of Parquet files.
    ANSWERS: Folder for those with answers.
    DIED: File for the process ID of the actor that was killed.
    ARGUMENTS: Those of `dragoman.ray.Predictor`, in JSON.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

BLOCKS = 8  # Ray joins small files to one block, which only one actor could work on
BATCH = 10
DIES_AT = 3  # batches
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",  # it would write a token to the home directory
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    # The machine may be busy, and its memory may be full of other tests.
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_health_check_failure_threshold": "100",
    "RAY_memory_monitor_refresh_ms": "0",
}


def main(sources: str, answers: str, died: Path, arguments: dict[str, Any]) -> None:
    os.environ.update(SETTINGS)
    import pyarrow as pa
    import ray

    from dragoman.ray import Predictor

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

    folder = tempfile.mkdtemp(prefix="ray-")  # a path of sockets may have 107 bytes, fewer than pytest's
    try:
        ray.init(num_cpus=3, include_dashboard=False, object_store_memory=2**27, log_to_driver=False, _temp_dir=folder)
        answered = (
            ray.data.read_parquet(sources)
            .repartition(BLOCKS)
            .map_batches(
                Mortal,
                fn_constructor_kwargs=arguments,
                batch_size=BATCH,
                batch_format="pyarrow",
                num_cpus=1,
                compute=ray.data.ActorPoolStrategy(size=2),
            )
        )
        answered.write_parquet(answers)
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
