"""Engines of one process share the weights."""

import subprocess
import sys

from tests.support.bundles import SHIPPED_G2P

ROWS = 4
SCRIPT = """
import sys
from dragoman_server.bundle.load import load_bundle
from dragoman_server.engine.host import LocalModel
from dragoman_server.engine.engine_options import EngineOptions
from dragoman_server.machine import resident_memory
from tests.support.bundles import SHIPPED_G2P
engines = int(sys.argv[1])
model = LocalModel(load_bundle(SHIPPED_G2P), EngineOptions(device="cpu", engines=engines, threads_per_engine=1))
runtimes = [model.runtime(index, int(sys.argv[2])) for index in range(engines)]
print(resident_memory(), sum(runtime.cache_bytes for runtime in runtimes))
"""


def resident(engines: int) -> tuple[int, int]:
    """Returns the bytes of a process with this many engines, and of their caches."""
    command = [sys.executable, "-c", SCRIPT, str(engines), str(ROWS)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(output[0]), int(output[1])


def test_three_more_engines_take_room_for_their_caches_but_not_for_the_weights() -> None:
    weights = (SHIPPED_G2P / "weights.bin").stat().st_size
    (one, cache), (four, caches) = resident(1), resident(4)
    assert four - one < caches - cache + weights / 2
