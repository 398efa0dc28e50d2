"""`python -m tests.benchmark.frontier NAME=BUNDLE...`: measures models of one task and draws quality over speed."""

from pathlib import Path
from typing import Annotated

import matplotlib
import typer

matplotlib.use("Agg")  # a file, never a window

from matplotlib import pyplot as plt

from dragoman.local import ServerStartError
from dragoman_export.bundle.weights import UnreadableGraphError
from dragoman_server.bundle.load import BundleError, load_bundle
from tests.benchmark import results
from tests.benchmark.actor import ActorError
from tests.benchmark.frontier.measure import CTRANSLATE2, SERVED, Point, measure
from tests.benchmark.machine import describe
from tests.benchmark.random_bundle import BUILD
from tests.benchmark.tables import measured_on, table
from tests.benchmark.turns import Effort

MARKERS = {SERVED[None]: "o", SERVED[True]: "s", CTRANSLATE2: "x"}


def main(
    bundles: Annotated[list[str], typer.Argument(metavar="NAME=BUNDLE...", help="Models, each with its bundle.")],
    test: Annotated[Path, typer.Option(help="Test sentences, source<TAB>reference.")],
    picture: Annotated[Path, typer.Option(help="Picture to write.")] = Path("docs/frontier.png"),
    rounds: Annotated[int, typer.Option(min=1, help="Samples of everybody.")] = 3,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of a sample, about.")] = 1.0,
    output: Annotated[Path, typer.Option(help="Folder of frontier.json.")] = results.RESULTS,
) -> None:
    """Measures BLEU, tokens/s with 64 inputs in flight, and the time of a lone call, ours and CTranslate2's."""
    pairs = []
    for number, line in enumerate(test.read_text(encoding="utf-8").splitlines(), 1):
        source, tab, reference = line.partition("\t")
        if not tab:
            raise typer.BadParameter(f"{test}:{number}: expected source<TAB>reference")
        pairs.append((source, reference))
    points: list[Point] = []
    machine, effort = describe("tests.benchmark.frontier"), Effort(rounds, seconds)
    try:
        for argument in bundles:
            name, equals, path = argument.partition("=")
            if not equals:
                raise typer.BadParameter(f"{argument}: expected NAME=BUNDLE")
            bundle = load_bundle(Path(path))
            folder = BUILD / f"ctranslate2-{name}"
            points += measure(name, bundle, pairs, folder, effort, lambda what: print(what, flush=True))
    except (ActorError, BundleError, ServerStartError, UnreadableGraphError, ValueError) as error:
        typer.echo(f"benchmark: {error}", err=True)
        raise typer.Exit(1) from None
    results.write("frontier", {"machine": machine, "points": [point.model_dump() for point in points]}, output)
    draw(points, picture)
    header = ["model", "precision", "system", "BLEU", "tokens/s, 64 in flight", "ms of a lone call"]
    rows = [[p.model, p.precision, p.system, f"{p.bleu:.2f}", f"{p.rate:,.0f}", f"{p.ms:.1f}"] for p in points]
    print(table(header, rows), measured_on(machine), sep="\n\n")


def draw(points: list[Point], picture: Path) -> None:
    """Draws BLEU over tokens per second and over the milliseconds of a lone call."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained", sharey=True)
    models = list(dict.fromkeys(f"{point.model}, {point.precision}" for point in points))
    for axes, key, label in ((panels[0], "rate", "tokens/s, 64 in flight"), (panels[1], "ms", "ms of a lone call")):
        for system, marker in MARKERS.items():
            for number, model in enumerate(models):
                own = [p for p in points if (p.system, f"{p.model}, {p.precision}") == (system, model)]
                for p in own:
                    axes.plot(getattr(p, key), p.bleu, marker, color=f"C{number}", ms=8, label=f"{model}: {system}")
        axes.set(xlabel=label, ylabel="BLEU", xscale="log")
        axes.grid(alpha=0.3)
    panels[1].legend(fontsize=8)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=80)
    plt.close(figure)
