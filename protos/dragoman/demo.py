"""`make demo`: a real server on the model that ships, real requests, their answers, and the server's metrics."""

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

ONE_BY_ONE = ["dragoman", "kubernetes", "onomatopoeia", "quokka"]
STREAMED = ["serendipity", "thistlethwaite"]
# Zürich holds a letter that the model has never seen, so one item of the batch fails; the others must not care.
BATCH = [
    *"interpreters stood between two courts and carried words from one to the other without either of them learning"
    " that most of what was said had never been said before by anyone nor would it be said again quite so well".split(),
    "Zürich",
]

METHOD = "dragoman.v1.GenerationService"


class Meter:
    """The server's metrics, added up over their labels."""

    def __init__(self, samples: dict[str, float]) -> None:
        self.samples = samples

    def total(self, name: str, having: str = "") -> float:
        """Sum of a metric's samples whose labels contain `having`."""
        return sum(v for k, v in self.samples.items() if k.partition("{")[0] == name and having in k)

    def mean(self, name: str) -> float:
        """Mean of what a histogram observed; 0 where it observed nothing."""
        return self.total(f"{name}_sum") / max(self.total(f"{name}_count"), 1)


def show_model(client: Client, console: Console) -> None:
    model = client.model()
    console.print(f"Model [bold]{model.name}[/], version {model.version}: {escape(model.description)}")
    console.print(
        f"{model.parameters / 1e6:.1f} million parameters, {model.precision} on {model.device}; "
        f"up to {model.max_source_tokens} tokens in and {model.max_target_tokens} out"
    )
    for name, value in sorted(model.quality.items()):
        console.print(f"{escape(name)}: {value:.4g}")


def show_unary(client: Client, console: Console) -> None:
    table = Table("text", "answer", "log-probability", "time", box=None, pad_edge=False)
    for text in ONE_BY_ONE:
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
        console.print(f"{text}  ", end="")
        with client.generate_stream(text) as pieces:
            for piece in pieces:
                times.append((time.perf_counter() - start) * 1e3)
                console.print(f"[bold green]{escape(piece.text)}[/]", end="", soft_wrap=True)
        console.print(f"   {len(times)} messages, the first after {times[0]:.1f} ms, the last after {times[-1]:.1f} ms")


def show_batch(client: Client, console: Console) -> None:
    start = time.perf_counter()
    outcomes = client.generate_batch(BATCH)
    milliseconds = (time.perf_counter() - start) * 1e3
    answers = [
        (text, outcome.text) for text, outcome in zip(BATCH, outcomes, strict=True) if isinstance(outcome, Result)
    ]
    console.print(f"{len(answers)} of {len(BATCH)} texts answered in {milliseconds:.1f} ms; the first of them:")
    console.print(Columns([f"{text} [bold green]{escape(answer)}[/]" for text, answer in answers[:12]], padding=(0, 3)))
    for outcome in outcomes:
        if not isinstance(outcome, Result):
            console.print(f"[yellow]{escape(str(outcome))}[/]")


def show_metrics(server: LocalServer, console: Console) -> None:
    meter = Meter(server.metrics())
    table = Table("what the server counted", "", "metric", box=None, pad_edge=False)
    for what, value, name in (
        ("calls", f"{meter.total('dragoman_requests_total', METHOD):.0f}", "dragoman_requests_total"),
        ("tokens read", f"{meter.total('dragoman_source_tokens_total'):.0f}", "dragoman_source_tokens_total"),
        ("tokens written", f"{meter.total('dragoman_target_tokens_total'):.0f}", "dragoman_target_tokens_total"),
        (
            "time to first token",
            f"{meter.mean('dragoman_first_token_seconds') * 1e3:.2f} ms",
            "dragoman_first_token_seconds",
        ),
        ("decode step", f"{meter.mean('dragoman_step_seconds') * 1e3:.2f} ms", "dragoman_step_seconds"),
        ("rows in a step", f"{meter.mean('dragoman_step_rows'):.1f}", "dragoman_step_rows"),
        ("items refused", f"{meter.total('dragoman_rejections_total'):.0f}", "dragoman_rejections_total"),
    ):
        table.add_row(what, value, f"[dim]{name}[/]")
    console.print(table)
    console.print("[dim]Times are means. All of it stands on the server's metrics page, for Prometheus to fetch.[/]")


NEXT = """\
[bold].venv/bin/dragoman-serve[/]          serve; --help lists the options
[bold].venv/bin/dragoman generate TEXT[/]  ask it; --help lists the rest
[bold].venv/bin/dragoman-train tiny[/]     train a model, in seconds; README.md tells of real ones
[bold]README.md[/]                         export, metrics, limits, the API"""


def demo(console: Console) -> None:
    """Starts the server, shows everything, and stops it.

    Raises:
        ServerStartError: it did not come up, or did not end with exit status 0.
        DragomanError: a request failed that should not have.
    """
    console.print("Starting dragoman-serve on the model that ships with it ...")
    with LocalServer() as server, Client(server.address) as client:
        console.print(f"Serving after {server.start_seconds:.1f} s at {server.address}")
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
        raise ServerStartError(f"dragoman-serve ended with exit status {status}; it said:\n{log_tail}")
    console.print("The server finished what it had to do and ended. Where to go on:")
    console.print(NEXT, highlight=False)


def main() -> None:
    """Runs the demo; exits with 1 and one message where something fails."""
    try:
        demo(Console())
    except (ServerStartError, DragomanError) as error:
        sys.exit(f"The demo failed: {error}")
    except KeyboardInterrupt:
        sys.exit("The demo was interrupted; the server is stopped.")


if __name__ == "__main__":
    main()
