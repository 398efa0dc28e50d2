"""`dragoman attention`: a picture of where an answer looks in its source."""

import warnings
from pathlib import Path
from typing import Annotated, Literal

import typer

from dragoman.cli.common import FAILED, Model, connected
from dragoman.cli.server import Server, asks_server

ATTENTION_HELP = """Draw the cross-attention of TARGET, or of the model's own answer, as an answer to SOURCE.

A row for each token of the target, a column for each of the source: how much of its attention the model gave to the \
one when it chose the other. The last row is of the end token, "(end)"; of an answer that was cut, of what would have \
come next, "(next)". Without --grid the mean of all layers and heads, or of those chosen.

Needs matplotlib, which the extra `attention` brings.
"""


@asks_server(timeout=60.0)
def attention(
    source: Annotated[str, typer.Argument(metavar="SOURCE", show_default=False)],
    target: Annotated[str | None, typer.Argument(metavar="TARGET", show_default=False)] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The picture, as .png, .svg or .pdf.")],
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="This layer only; the first is 0, the last is -1. Default: all.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="This head only; the first is 0, the last is -1. Default: all.")
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Draw each of the layers and heads, instead of the mean.")
    ] = False,
    theme: Annotated[
        Literal["light", "dark", "auto"],
        typer.Option(help="auto: an SVG follows its viewer's settings, the others are light."),
    ] = "auto",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Without TARGET: draw at most N tokens. Default: the model's limit."),
    ] = None,
    model: Model = "",
    server: Server,
) -> None:
    from dragoman.attention import MissingExtraError, check_format, check_installed, draw
    from dragoman.cli.output import complain
    from dragoman.errors import ServerError
    from dragoman.results import FinishReason, Hypothesis, TargetScore

    with connected(server) as client:
        try:
            check_installed()
        except MissingExtraError as error:
            complain(str(error))
            raise typer.Exit(FAILED) from None
        kind = check_format(output)
        answer: Hypothesis | TargetScore
        end = "(end)"
        if target is None:
            result = client.generate(source, model=model, max_new_tokens=max_new_tokens, attention=True)
            answer, tokens = result.best, result.source
            # Of one that was cut, the last row is of what would have come next.
            if answer.finish_reason is not FinishReason.EOS:
                end = "(next)"
        else:
            scored = client.score(source, [target], model=model, attention=True)
            answer, tokens = scored.scores[0], scored.source
        if answer.attention is None:
            raise ServerError("the server returned no attention", code="INTERNAL")
        texts = [token.text for token in answer.tokens][: answer.attention.target_tokens - 1]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                picture = draw(answer.attention, tokens, [*texts, end], layer=layer, head=head, grid=grid, theme=theme)
            except ValueError as error:  # it is the model that says which layers and heads there are
                complain(str(error))
                raise typer.Exit(FAILED) from None
            content = picture.render(kind)
        for warning in caught:
            complain(str(warning.message))
        try:
            output.write_bytes(content)
        except OSError as error:
            raise OSError(error.errno, f"{output} can't be written: {error.strerror}") from None
