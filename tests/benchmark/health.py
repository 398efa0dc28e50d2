"""`python -m tests.benchmark.health`: how long a busy server takes to say how it is."""

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from rich.console import Console

from dragoman.local import LOOPBACK, LocalServer, ServerStartError, free_port
from server.bundle.load import load_bundle, shipped_bundle
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.cli import BUILD
from tests.benchmark.machine import describe
from tests.benchmark.report import heading
from tests.benchmark.samples import percentile
from tests.benchmark.tables import table
from tests.benchmark.workload import real_words
from tests.support.load import LoadGenerator

IN_FLIGHT = (0, 64, 300, 1000)
WORDS = 2048
EVERY_SECONDS = 0.05  # one of each kind is asked
SETTLE_SECONDS = 1.0  # until as many calls are in flight as shall be
PATIENCE = 60.0
WANTED_SECONDS = 0.05  # p99, at most
ECHO, HEALTH_PORT, LIVEZ, READYZ, PORT = "echo", "--health-port", "/livez", "/readyz", "--port"
WANTED_OF = (HEALTH_PORT, LIVEZ, READYZ)
READING_HELP = (
    "Milliseconds until a health check is answered, p50 / p99 / the longest, while so many calls of `Generate` are in "
    "flight; each kind is asked every 50 ms, by a process beside the load generator. `--health-port` and `--port` are "
    "`grpc.health.v1.Health/Check`, `/livez` and `/readyz` HTTP with a connection each. *Echo* is a byte to a process "
    "that does nothing else, and back: what this machine's scheduler takes, with which the others must live."
)

Ask = Callable[[], object]


@dataclass(frozen=True)
class Asked:
    """What was measured of one server with so many calls in flight.

    Attributes:
        workers: processes that compute; 0 for the server's own.
        calls: of the load, a second.
        seconds: of each answer, by what was asked.
    """

    workers: int
    in_flight: int
    calls: float
    seconds: dict[str, list[float]]

    def p99(self, kind: str) -> float:
        return percentile(self.seconds[kind], 0.99)


class Echo:
    """Sends back what it gets, in a process of its own.

    Attributes:
        port: where.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server((LOOPBACK, 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def port(self) -> int:
        number: int = self._listener.getsockname()[1]
        return number

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        while sent := connection.recv(1):
            connection.sendall(sent)


def measure(workers: int, in_flight: Sequence[int], seconds: float, log: Path) -> list[Asked]:
    """Asks a server of the shipped model, that is loaded with single words.

    Args:
        workers: see Asked.
        seconds: that each number of calls is kept in flight.
        log: where its log goes.

    Raises:
        ServerStartError, ActorError: it does not start, or the load fails.
    """
    requests = real_words(load_bundle(shipped_bundle()), WORDS).unary()
    health_port = free_port()
    options = ["--health-port", str(health_port), "--log-requests", "none", "--summary-seconds", "0"]
    options += ["--workers", str(workers)] if workers else []
    found = []
    with ExitStack() as stack:
        server = stack.enter_context(LocalServer(*options, log=log))
        echo = stack.enter_context(closing(Actor(Echo)))
        address = (LOOPBACK, server.port)
        load = stack.enter_context(closing(Actor(LoadGenerator, address, server.process.pid, "Generate", requests)))
        asks = stack.enter_context(_asks(server, health_port, echo.call("port")))
        thread = stack.enter_context(ThreadPoolExecutor(1))
        for count in in_flight:
            running = thread.submit(load.call, "closed", count, seconds + SETTLE_SECONDS) if count else None
            time.sleep(SETTLE_SECONDS)
            asked = _ask_all(asks, seconds)
            sample = running.result() if running else None
            found.append(Asked(workers, count, len(sample.latencies) / sample.seconds if sample else 0.0, asked))
    return found


@contextmanager
def _asks(server: LocalServer, health_port: int, echo_port: int) -> Iterator[dict[str, Ask]]:
    request = health_pb2.HealthCheckRequest()

    def page(path: str) -> Ask:
        return lambda: urllib.request.urlopen(f"http://{LOOPBACK}:{server.metrics_port}{path}", timeout=PATIENCE).read()

    with (
        grpc.insecure_channel(f"{LOOPBACK}:{health_port}") as own,
        grpc.insecure_channel(server.address) as shared,
        socket.create_connection((LOOPBACK, echo_port)) as connection,
    ):
        checks = [health_pb2_grpc.HealthStub(channel).Check for channel in (own, shared)]

        def echo() -> None:
            connection.sendall(b"x")
            connection.recv(1)

        yield {
            ECHO: echo,
            HEALTH_PORT: lambda: checks[0](request, timeout=PATIENCE),
            LIVEZ: page(LIVEZ),
            READYZ: page(READYZ),
            PORT: lambda: checks[1](request, timeout=PATIENCE),
        }


def _ask_all(asks: dict[str, Ask], seconds: float) -> dict[str, list[float]]:
    """Asks all of them for so long, side by side, and gives the seconds that the answers took."""

    def repeat(ask: Ask) -> list[float]:
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while (started := time.perf_counter()) < end or not taken:
            ask()
            taken.append(time.perf_counter() - started)
            time.sleep(max(EVERY_SECONDS - taken[-1], 0.0))
        return taken

    with ThreadPoolExecutor(len(asks)) as threads:
        return dict(zip(asks, threads.map(repeat, asks.values()), strict=True))


def markdown(found: Sequence[Asked], machine: dict[str, Any]) -> str:
    """The report."""
    parts = ["# Health checks of a busy server", *heading(machine), READING_HELP]
    for workers in dict.fromkeys(each.workers for each in found):
        rows = [each for each in found if each.workers == workers]
        worst = max(each.p99(kind) for each in rows for kind in WANTED_OF)
        label = "Reached:" if worst <= WANTED_SECONDS else "**Missed:**"
        where = f"{workers} worker processes compute" if workers else "The server computes by itself"
        outcome = f"{1000 * worst:.1f} ms (at most {1000 * WANTED_SECONDS:.0f} ms wanted)"
        parts += [
            f"{where}. {label} the highest p99 of those that threads of their own answer is {outcome}.",
            table(
                ("in flight", "calls/s", *(f"`{kind}`" if kind != ECHO else kind for kind in rows[0].seconds)),
                [
                    [str(each.in_flight), f"{each.calls:,.0f}", *(_cell(each.seconds[kind]) for kind in each.seconds)]
                    for each in rows
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"


def _cell(seconds: list[float]) -> str:
    return " / ".join(f"{1000 * each:.1f}" for each in (*(percentile(seconds, q) for q in (0.5, 0.99)), max(seconds)))


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each number of calls is kept in flight.")] = 10.0,
    workers: Annotated[list[int], typer.Option(help="Processes that compute; 0 for the server's own.")] = [0, 2],  # noqa: B006
    output: Annotated[Path, typer.Option(help="Where health.md and health.json go.")] = BUILD,
) -> None:
    """Measures how long health checks take while 0 to 1,000 calls are in flight."""
    console = Console()
    machine = describe("tests.benchmark.health")
    output.mkdir(parents=True, exist_ok=True)
    try:
        found = [each for count in workers for each in measure(count, IN_FLIGHT, seconds, output / "health-server.log")]
    except (ActorError, ServerStartError) as error:
        console.print(f"benchmark: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    text = markdown(found, machine)
    (output / "health.md").write_text(text, encoding="utf-8")
    numbers = {"machine": machine, "asked": [vars(each) for each in found]}
    (output / "health.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Written to {output / 'health.md'}; the numbers beside it.")


if __name__ == "__main__":
    typer.run(main)
