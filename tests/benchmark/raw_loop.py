"""The upper bound of throughput: the bundle's graphs stepped as fast as the machine can, without a server.

All rows are always busy, every step decodes all rows, sources are tokenized beforehand, and no text is produced. What
remains is the encoder, the decoder and the cache pool, in the runtime that the server uses.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from dragoman_server.bundle.load import load_bundle
from dragoman_server.runtime.device import CPU
from dragoman_server.runtime.runtime import Runtime
from dragoman_server.runtime.sessions import Sessions
from tests.support.load import Sample


class RawLoop:
    """One or several engines, each with its own rows and thread.

    Args:
        bundle: Directory of the bundle.
        sources: Token ids of each input.
        engines: Number of engines, among which the rows are divided.
        threads: Threads of an operator, per engine.
        rows: The most rows of all engines together.
    """

    def __init__(self, bundle: Path, sources: Sequence[Sequence[int]], engines: int, threads: int, rows: int) -> None:
        opened = load_bundle(bundle)
        sessions = [Sessions(opened, CPU, threads) for _ in range(1 if threads == 1 else engines)]
        self.runtimes = [Runtime(sessions[i % len(sessions)], -(-rows // engines)) for i in range(engines)]
        self.sources = sources
        self._batch_seconds: dict[int, float] = {}

    def measure(self, seconds: float, rows: int, steps: int) -> Sample:
        """Encodes full batches and runs `steps` steps of each, for about `seconds`. Every row of a step is a token.

        Args:
            rows: Rows of all engines together; if there are fewer than engines, some engines are idle.
        """
        if rows not in self._batch_seconds:
            self._run(1, rows, steps)  # warm-up
            self._batch_seconds[rows] = self._run(1, rows, steps)
        batches = max(1, round(seconds / self._batch_seconds[rows]))
        cpu = time.process_time()
        wall = self._run(batches, rows, steps)
        cpu_seconds = {"own": time.process_time() - cpu}
        self._batch_seconds[rows] = wall / batches
        sequences = batches * rows
        return Sample(wall, sequences * steps, sequences, [wall / batches], cpu_seconds=cpu_seconds)

    def _run(self, batches: int, rows: int, steps: int) -> float:
        """Runs the same work in all engines concurrently; returns the seconds until all are done."""
        runtimes = self.runtimes[:rows]
        shares = [rows // len(runtimes) + (i < rows % len(runtimes)) for i in range(len(runtimes))]
        starting = threading.Barrier(len(runtimes) + 1)

        def work(engine: int, runtime: Runtime) -> None:
            share, before = shares[engine], sum(shares[:engine])
            starting.wait()
            for batch in range(batches):
                first = batch * rows + before
                runtime.encode([self.sources[(first + i) % len(self.sources)] for i in range(share)], 0)
                for _ in range(steps):
                    runtime.tokens[:share, 0] = runtime.top(share, 1).ids[:, 0]
                    runtime.positions[:share] += 1

        threads = [threading.Thread(target=work, args=item, daemon=True) for item in enumerate(runtimes)]
        for thread in threads:
            thread.start()
        starting.wait()
        started = time.perf_counter()
        for thread in threads:
            thread.join()
        return time.perf_counter() - started
