"""`python -m tests.benchmark.health`: times the health checks of a busy server."""

import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.local import LOOPBACK, LocalServer, ServerStartError, free_port
from dragoman_server.bundle.load import load_bundle
from tests.benchmark import results
from tests.benchmark.actor import Actor, ActorError
from tests.benchmark.machine import describe
from tests.benchmark.workload import real_words
from tests.support.bundles import SHIPPED_G2P
from tests.support.load import LoadGenerator, percentile
from tests.support.servers import G2PServer

IN_FLIGHT = (0, 64, 300, 1000)
WORDS = 2048
EVERY_SECONDS = 0.05  # one of each kind is asked
SETTLE_SECONDS = 1.0  # until the requested number of calls is in flight
PATIENCE = 60.0
ECHO, HEALTH_PORT, LIVEZ, READYZ, PORT = "echo", "--health-port", "/livez", "/readyz", "--port"

Ask = Callable[[], object]


class Echo:
    """A process that sends back what it receives.

    Attributes:
        port: Port that it listens on.
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


def measure(workers: int, seconds: float, in_flight: Sequence[int] = IN_FLIGHT) -> list[dict[str, Any]]:
    """Measures the health checks of a server that answers single words with the shipped model.

    Args:
        workers: Number of worker processes; 0 for in-process engines.
        seconds: Length of the measurement for each number of calls.
        in_flight: Numbers of calls in flight.

    Returns:
        for each number of calls, the answered calls per second, and p50, p99 and maximum seconds by kind of check.

    Raises:
        ServerStartError, ActorError: The server does not start, or the load generator fails.
    """
    requests = real_words(load_bundle(SHIPPED_G2P), WORDS).unary()
    health_port = free_port()
    options = ["--health-port", str(health_port), "--log-requests", "none", "--summary-seconds", "0"]
    options += ["--workers", str(workers)] if workers else []
    found = []
    with ExitStack() as stack:
        server = stack.enter_context(G2PServer(*options))
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
            calls = len(sample.latencies) / sample.seconds if sample else 0.0
            told = {kind: [percentile(took, 0.5), percentile(took, 0.99), max(took)] for kind, took in asked.items()}
            found.append({"workers": workers, "in_flight": count, "calls": calls, "seconds": told})
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
    """Sends checks of all kinds concurrently for some time; returns the seconds that the answers took."""

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


def main(
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each number of calls is kept in flight.")] = 10.0,
    workers: Annotated[list[int], typer.Option(help="Processes that compute; 0 for the server's own.")] = [0, 2],  # noqa: B006
    output: Annotated[Path, typer.Option(help="Folder of health.json.")] = results.RESULTS,
) -> None:
    """Measures how long health checks take while 0 to 1,000 calls are in flight."""
    machine = describe("tests.benchmark.health")
    try:
        asked = [each for count in workers for each in measure(count, seconds)]
    except (ActorError, ServerStartError) as error:
        typer.echo(f"benchmark: {error}", err=True)
        raise typer.Exit(1) from None
    results.write("health", {"machine": machine, "asked": asked}, output)
    print(f"Written to {output / 'health.json'}.")


if __name__ == "__main__":
    typer.run(main)
