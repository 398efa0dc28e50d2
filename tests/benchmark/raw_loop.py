"""The ceiling: the bundle's graphs stepped as fast as the machine can, with nobody to serve.

Every row is always busy, every step decodes all rows, sources are tokenized beforehand, no text comes out: what is left
is the encoder, the decoder and the cache pool, through the same runtime that the server uses.
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
    """One or several engines, each with its rows and its thread.

    Args:
        bundle: its directory.
        sources: token ids of each input.
        engines: how many; rows are shared out among them.
        threads: that compute one operator together, in each engine.
        rows: in all, at most.
    """

    def __init__(self, bundle: Path, sources: Sequence[Sequence[int]], engines: int, threads: int, rows: int) -> None:
        opened = load_bundle(bundle)
        sessions = [Sessions(opened, CPU, threads) for _ in range(1 if threads == 1 else engines)]
        self.runtimes = [Runtime(sessions[i % len(sessions)], -(-rows // engines)) for i in range(engines)]
        self.sources = sources
        self._batch_seconds: dict[int, float] = {}

    def measure(self, seconds: float, rows: int, steps: int) -> Sample:
        """Encodes full batches and steps each `steps` times, for about `seconds`. Every row-step counts as a token.

        Args:
            rows: in all; where they are fewer than the engines, some engines rest.
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
        """The same work in every engine at the same time; seconds until all are done."""
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
