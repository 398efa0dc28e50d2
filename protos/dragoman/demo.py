"""`make demo`: runs a server with the shipped models, sends it requests, and shows answers and metrics."""

import sys
import time

from rich.columns import Columns
from rich.console import Console
from rich.markup import escape
from rich.rule import Rule
from rich.table import Table

from dragoman.client import Client
from dragoman.errors import DragomanError
from dragoman.local import LOOPBACK, LocalServer, ServerStartError
from dragoman.results import Result

SENTENCES = [
    "Guten Morgen!",
    "Der Zug fährt um 14:30 Uhr von Gleis 7 ab.",
    "Kannst du mir bitte das Salz reichen?",
    "Das Wetter ist heute schön 🌞 und morgen auch.",
]
STREAMED = [
    "Der Zug nach Berlin fährt in zehn Minuten ab.",
    "Wenn es morgen regnet, bleiben wir zu Hause und lesen ein Buch.",
]
OTHER_MODEL = "g2p-en"
# That model does not know the letter ü, so this item of the batch fails; the others do not.
BATCH = [
    *"interpreters stood between two courts and carried words from one to the other without either of them learning"
    " that most of what was said had never been said before by anyone nor would it be said again quite so well".split(),
    "Zürich",
]

METHOD = "dragoman.v1.GenerationService"


class Meter:
    """A snapshot of the server's metrics, summed over labels."""

    def __init__(self, samples: dict[str, float]) -> None:
        self.samples = samples

    def total(self, name: str, label: str = "") -> float:
        """Returns the sum of a metric over all series with `label`."""
        return sum(value for key, value in self.samples.items() if key.partition("{")[0] == name and label in key)

    def mean(self, name: str) -> float:
        """Returns the mean of a histogram; 0 without observations."""
        return self.total(f"{name}_sum") / max(self.total(f"{name}_count"), 1)


def show_model(client: Client, console: Console) -> None:
    model = client.model()
    console.print(f"Model [bold]{model.name}[/], version {model.version}: {escape(model.description)}")
    console.print(
        f"{model.parameters / 1e6:.1f} million parameters, {model.precision} on {model.device}; "
        f"sources up to {model.max_source_tokens} tokens, targets up to {model.max_target_tokens}"
    )
    for name, value in sorted(model.quality.items()):
        console.print(f"{escape(name)}: {value:.4g}")


def show_unary(client: Client, console: Console) -> None:
    table = Table("text", "answer", "log-probability", "time", box=None, pad_edge=False)
    for text in SENTENCES:
        start = time.perf_counter()
        answer = client.generate(text, log_probabilities=True)
        milliseconds = (time.perf_counter() - start) * 1e3
        log_probability = f"{answer.log_probability:.3f}" if answer.log_probability is not None else ""
        table.add_row(text, f"[bold green]{escape(answer.text)}[/]", log_probability, f"{milliseconds:.1f} ms")
    console.print(table)


def show_stream(client: Client, console: Console) -> None:
    for text in STREAMED:
        start = time.perf_counter()
        times: list[float] = []
        console.print(text)
        with client.generate_stream(text) as pieces:
            for piece in pieces:
                times.append((time.perf_counter() - start) * 1e3)
                console.print(f"[bold green]{escape(piece.text)}[/]", end="", soft_wrap=True)
        console.print(f"  {len(times)} pieces, the first after {times[0]:.1f} ms, the last after {times[-1]:.1f} ms")


def show_batch(client: Client, console: Console) -> None:
    console.print(f"Model [bold]{OTHER_MODEL}[/] of the same server: {escape(client.model(OTHER_MODEL).description)}")
    start = time.perf_counter()
    outcomes = client.generate_batch(BATCH, model=OTHER_MODEL)
    milliseconds = (time.perf_counter() - start) * 1e3
    answers = [
        (text, outcome.text) for text, outcome in zip(BATCH, outcomes, strict=True) if isinstance(outcome, Result)
    ]
    console.print(f"{len(answers)} of {len(BATCH)} texts answered in {milliseconds:.1f} ms; the first 12:")
    console.print(Columns([f"{text} [bold green]{escape(answer)}[/]" for text, answer in answers[:12]], padding=(0, 3)))
    for outcome in outcomes:
        if not isinstance(outcome, Result):
            console.print(f"[yellow]{escape(str(outcome))}[/]")


def show_metrics(server: LocalServer, console: Console) -> None:
    meter = Meter(server.metrics())
    table = Table("measured by the server", "", "metric", box=None, pad_edge=False)
    for description, value, name in (
        ("calls", f"{meter.total('dragoman_requests_total', METHOD):.0f}", "dragoman_requests_total"),
        ("source tokens", f"{meter.total('dragoman_source_tokens_total'):.0f}", "dragoman_source_tokens_total"),
        ("target tokens", f"{meter.total('dragoman_target_tokens_total'):.0f}", "dragoman_target_tokens_total"),
        (
            "time to first token",
            f"{meter.mean('dragoman_first_token_seconds') * 1e3:.2f} ms",
            "dragoman_first_token_seconds",
        ),
        ("decode step", f"{meter.mean('dragoman_step_seconds') * 1e3:.2f} ms", "dragoman_step_seconds"),
        ("rows per step", f"{meter.mean('dragoman_step_rows'):.1f}", "dragoman_step_rows"),
        ("items refused", f"{meter.total('dragoman_rejections_total'):.0f}", "dragoman_rejections_total"),
    ):
        table.add_row(description, value, f"[dim]{name}[/]")
    console.print(table)
    console.print("[dim]Times are means. Prometheus can scrape all of this from the metrics page.[/]")


NEXT = """\
[bold].venv/bin/dragoman-serve[/]          serve; --help lists the options
[bold].venv/bin/dragoman generate TEXT[/]  send a request; --help lists the other commands
[bold]make setup[/]                        install what training and export need: PyTorch, and more
[bold].venv/bin/dragoman-train tiny[/]     then train a small model, in seconds
[bold]docs/quickstart.md[/]                the same step by step, with real data and from Python"""


def demo(console: Console) -> None:
    """Starts the server, sends all requests, and stops it.

    Raises:
        ServerStartError: The server did not start, or did not exit with 0.
        DragomanError: A request failed unexpectedly.
    """
    console.print("Starting dragoman-serve with the shipped models ...")
    with LocalServer() as server, Client(server.address) as client:
        console.print(f"Ready after {server.start_seconds:.1f} s at {server.address}")
        console.print(f"Metrics at http://{LOOPBACK}:{server.metrics_port}/metrics")
        for title, show in (("The model", show_model), ("Generate", show_unary), ("GenerateStream", show_stream)):
            console.print(Rule(title, align="left"))
            show(client, console)
        console.print(Rule("GenerateBatch", align="left"))
        show_batch(client, console)
        console.print(Rule("Metrics", align="left"))
        show_metrics(server, console)
        console.print(Rule("Stopping", align="left"))
        log_tail = server.log_tail()
        status = server.stop()
    if status != 0:
        raise ServerStartError(f"dragoman-serve exited with {status}; its log ends with:\n{log_tail}")
    console.print("The server drained and exited. Next steps:")
    console.print(NEXT, highlight=False)


def main() -> None:
    """Runs the demo; exits with 1 and one message if it fails."""
    try:
        demo(Console())
    except (ServerStartError, DragomanError) as error:
        sys.exit(f"The demo failed: {error}")
    except KeyboardInterrupt:
        sys.exit("The demo was interrupted. The server has stopped.")


if __name__ == "__main__":
    main()
