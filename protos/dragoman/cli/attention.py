"""`dragoman attention`: draws the cross-attention of an answer."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.common import FAILED, Model, Server, connected, with_server_options

if TYPE_CHECKING:
    from dragoman.client import Client
    from dragoman.results import Attention, Token

ATTENTION_HELP = """Draw the cross-attention of TARGET, or of the model's own answer, to SOURCE.

The picture has one row per target token and one column per source token; each cell is the attention weight at the \
step that chose the target token. The last row is the end token, "(end)", or, if the answer was cut, the token that \
would have come next, "(next)". Without --grid it shows the mean over all layers and heads, or over the selected ones.

Requires matplotlib (extra `attention`).
"""


@with_server_options(timeout=60.0)
def attention(
    source: Annotated[str, typer.Argument(metavar="SOURCE", show_default=False)],
    target: Annotated[str | None, typer.Argument(metavar="TARGET", show_default=False)] = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Output file: .png, .svg or .pdf.")],
    layer: Annotated[
        int | None, typer.Option(metavar="N", help="Only this layer; the first is 0, the last is -1. Default: all.")
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="N", help="Only this head; the first is 0, the last is -1. Default: all.")
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Draw every layer and head separately instead of their mean.")
    ] = False,
    theme: Annotated[
        Literal["light", "dark", "auto"],
        typer.Option(help="auto: SVG follows the viewer's settings, other formats are light."),
    ] = "auto",
    max_new_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Without TARGET: generate at most N tokens. Default: the model's limit."),
    ] = None,
    model: Model = "",
    server: Server,
) -> None:
    from dragoman.attention import MissingExtraError, check_format, check_installed, draw
    from dragoman.cli.output import warn

    with connected(server) as client:
        try:
            check_installed()
        except MissingExtraError as error:
            warn(str(error))
            raise typer.Exit(FAILED) from None
        file_format = check_format(output)
        weights, source_tokens, target_texts = _fetch(client, source, target, model, max_new_tokens)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                drawing = draw(weights, source_tokens, target_texts, layer=layer, head=head, grid=grid, theme=theme)
            except ValueError as error:  # the model has no such layer or head
                warn(str(error))
                raise typer.Exit(FAILED) from None
            content = drawing.render(file_format)
        for warning in caught:
            warn(str(warning.message))
        try:
            output.write_bytes(content)
        except OSError as error:
            raise OSError(error.errno, f"{output} can't be written: {error.strerror}") from None


def _fetch(
    client: "Client", source: str, target: str | None, model: str, max_new_tokens: int | None
) -> "tuple[Attention, tuple[Token, ...], list[str]]":
    """Returns the attention weights, the source tokens, and the texts of the target tokens, the end token included."""
    from dragoman.errors import ServerError
    from dragoman.results import FinishReason, Hypothesis, TargetScore

    answer: Hypothesis | TargetScore
    end = "(end)"
    if target is None:
        result = client.generate(source, model=model, max_new_tokens=max_new_tokens, attention=True)
        answer, source_tokens = result.best, result.source
        if answer.finish_reason is not FinishReason.EOS:
            end = "(next)"
    else:
        scores = client.score(source, [target], model=model, attention=True)
        answer, source_tokens = scores.scores[0], scores.source
    if answer.attention is None:
        raise ServerError("the server returned no attention", code="INTERNAL")
    texts = [token.text for token in answer.tokens][: answer.attention.target_tokens - 1]
    return answer.attention, source_tokens, [*texts, end]
