"""`dragoman score`: how likely given answers are."""

from typing import Annotated

import typer

from dragoman.cli.common import Model, connected
from dragoman.cli.server import Server, asks_server

SCORE_HELP = """Tell how likely the model thinks each TARGET as an answer to SOURCE.

Prints a line for each target: its log-probability, the end token included, and behind tabs the target and, as asked \
for, its tokens with their log-probabilities and its alignment.
"""


@asks_server(timeout=60.0)
def score(
    source: Annotated[str, typer.Argument(metavar="SOURCE", show_default=False)],
    targets: Annotated[list[str], typer.Argument(metavar="TARGET", show_default=False)],
    tokens: Annotated[bool, typer.Option("--tokens", help="Print the tokens, each with its log-probability.")] = False,
    alignment: Annotated[
        bool,
        typer.Option("--alignment", help="Print pairs: 2-0 where target token 0 looks at source token 2."),
    ] = False,
    attention: Annotated[
        bool,
        typer.Option("--attention", help="Print all attention, by layer, head, target and source token. Needs --json."),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, with the tokens of source and targets.")
    ] = False,
    model: Model = "",
    *,
    server: Server,
) -> None:
    if attention and not as_json:
        raise typer.BadParameter("--attention needs --json")

    from dragoman.cli.layout import score_columns, scores_object
    from dragoman.cli.output import write_json, write_line

    with connected(server) as client:
        result = client.score(source, targets, model=model, alignment=alignment, attention=attention)
        if as_json:
            write_json(scores_object(targets, result))
        else:
            for target, found in zip(targets, result.scores, strict=True):
                write_line(*score_columns(target, found, tokens=tokens))
