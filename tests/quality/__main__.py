"""Measures a German-English bundle: BLEU and chrF on the test sentences, numbers, and foreign text.

    python -m tests.quality [BUNDLE] [--test data/tatoeba-de-en/test.tsv]

Without a bundle, it measures the shipped one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from dragoman import Client, Result
from dragoman.local import LocalServer
from dragoman_server.models.repository import SHIPPED_MODELS
from tests.quality.robustness import EMOJI, FOREIGN_WORDS, LINE_BREAKS, Outcome, check_inserts, check_numbers

INSERTED = 300  # sentences per kind of insert
MADE = 1000  # sentences with numbers


def main(
    bundle: Annotated[Path, typer.Argument(help="The bundle.")] = SHIPPED_MODELS / "de-en" / "1",
    test: Annotated[Path, typer.Option(help="German<TAB>English lines.")] = Path("data/tatoeba-de-en/test.tsv"),
    beam_size: Annotated[int, typer.Option(help="Beam size of the answers.")] = 1,
    show: Annotated[int, typer.Option(help="Wrong answers to show of each kind.")] = 3,
) -> None:
    """Measures a German-English bundle."""
    console = Console(soft_wrap=True, highlight=False)
    pairs = [line.split("\t") for line in test.read_text(encoding="utf-8").splitlines()]
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    with LocalServer("--bundle", str(bundle), "--log-requests", "none") as server, Client(server.address) as client:

        def translate(texts: Sequence[str]) -> list[str]:
            answers = client.generate_many(texts, beam_size=beam_size)
            return [answer.text if isinstance(answer, Result) else f"({answer})" for answer in answers]

        answers = translate(sources)
        for metric in (BLEU(), CHRF()):
            console.print(f"{metric.corpus_score(answers, [references])}  {metric.get_signature()}")
        _report(console, "numbers", check_numbers(translate, MADE), show)
        for name, inserts in (("emoji", EMOJI), ("words", FOREIGN_WORDS), ("line breaks", LINE_BREAKS)):
            _report(console, name, check_inserts(translate, sources[:INSERTED], inserts), show)


def _report(console: Console, name: str, outcome: Outcome, show: int) -> None:
    lost = f", {outcome.lost} inserts lost" if outcome.lost else ""
    console.print(f"{name}: {outcome.right} of {outcome.total} right ({outcome.right / outcome.total:.1%}){lost}")
    for source, expected, answer in outcome.wrong[:show]:
        console.print(f"  {source!r}\n    expected {expected!r}\n    answered {answer!r}", markup=False)


if __name__ == "__main__":
    typer.run(main)
