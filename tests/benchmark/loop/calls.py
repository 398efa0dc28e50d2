"""Where the time of a call goes, as the server's own lines tell."""

import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from dragoman.local import LOOPBACK, LocalServer
from tests.benchmark.actor import Actor
from tests.benchmark.samples import percentile
from tests.support.load import LoadGenerator

PHASES = ("tokenize", "queue", "encode", "decode", "detokenize")
SETTLE_SECONDS = 0.3  # until the lines of the last calls are written


@dataclass(frozen=True)
class Calls:
    """Calls of Generate, so many at once; milliseconds, medians.

    Attributes:
        calls: how many were measured.
        client: as the client sees it, from sending to the answer.
        server: from the moment that the server has read the request until it has handed the answer to gRPC.
        phases: of the server's time, by name.
        outside: on the way: gRPC and the kernel on both sides, and the load generator.
    """

    in_flight: int
    calls: int
    client: float
    server: float
    phases: dict[str, float]

    @property
    def outside(self) -> float:
        return max(self.client - self.server, 0.0)


def measure_calls(
    bundle: Path, requests: Sequence[bytes], in_flight: Sequence[int], seconds: float, log: Path
) -> list[Calls]:
    """Calls a server of its own.

    Args:
        log: where its log goes.

    Raises:
        ServerStartError, ActorError: it does not start, or a call fails.
    """
    options = ("--bundle", str(bundle), "--log-format", "json", "--log-requests", "all", "--summary-seconds", "0")
    measured = []
    with LocalServer(*options, log=log) as server:
        address = (LOOPBACK, server.port)
        with closing(Actor(LoadGenerator, address, server.process.pid, "Generate", requests)) as generator:
            generator.call("closed", max(in_flight), min(seconds, 0.5))
            for count in in_flight:
                time.sleep(SETTLE_SECONDS)
                before = log.stat().st_size
                sample = generator.call("closed", count, seconds)
                time.sleep(SETTLE_SECONDS)
                measured.append(_calls(count, sample.latencies, log.read_bytes()[before:]))
    return measured


def _calls(in_flight: int, latencies: list[float], log: bytes) -> Calls:
    lines = [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]
    told = [line for line in lines if line.get("event") == "request"]
    phases = {name: median(line.get(f"{name}_ms", 0.0) for line in told) for name in PHASES}
    server = median(line["total_ms"] for line in told)
    return Calls(in_flight, len(told), 1000 * percentile(latencies, 0.5), server, phases)
