"""`dragoman generate`: its options. `dragoman.cli.runner` runs it."""

from functools import partial
from typing import Annotated, Literal, cast

import typer

from dragoman.cli.common import FAILED, Model, Server, reporting_errors, with_server_options
from dragoman.cli.decoding import Decoding, length, with_decoding_options

GENERATE_HELP = """Answer each TEXT, or each line of standard input, one line per answer, in order.

Search is greedy unless --beam-size or --sample is set. Line breaks, tabs and other control characters in an answer \
are printed as \\n, \\t or \\x1b.

Requested details follow the text in tab-separated columns: the log-probability; the tokens, separated by spaces, as \
in A(-0.1250), or with --top-tokens A(-0.1250)|B(-2.5000)|C(-4.0000); the alignment.

With --num-hypotheses above 1, each text has one line per answer, best first (samples in the order drawn): its \
index, which starts at 1 with each text, its score, the text, and the details. With --json, each text has one object, \
with "hypotheses".

A text that fails prints an empty line (with --json, an object with "error"), so that lines stay aligned; the reason \
goes to standard error, and the exit status is 1. With --stream, the line keeps what was printed before the failure. \
If the server goes away, each text waits for it up to --timeout, then fails; the next texts are still tried.
"""

output = partial(typer.Option, rich_help_panel="Output")


# Parameters have the names of GenerateOptions, by which they are copied from the context.
@with_server_options(timeout=60.0)
@with_decoding_options
def generate(
    context: typer.Context,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", show_default=False)] = None,
    *,
    decoding: Decoding,
    time_limit: Annotated[
        float | None, length(metavar="SECONDS", help="Return what has been generated after this time.")
    ] = None,
    num_hypotheses: Annotated[
        int | None,
        output(
            "--num-hypotheses",
            "-n",
            metavar="N",
            help="Print N answers: the best of the beam, or samples. Default: 1.",
        ),
    ] = None,
    alternatives: Annotated[
        bool | None,
        output(
            "--alternatives",
            help="Complete each of the N most probable tokens after the prefix.",
        ),
    ] = None,
    tokens: Annotated[bool | None, output("--tokens", help="Print the tokens, too.")] = None,
    log_probabilities: Annotated[
        bool | None, output("--log-probabilities", help="Print the log-probabilities of the answer and its tokens.")
    ] = None,
    top_tokens: Annotated[
        int | None, output(metavar="N", help="Print the N most probable tokens at each position, too.")
    ] = None,
    alignment: Annotated[
        bool | None,
        output("--alignment", help="Print pairs: 2-0 if target token 0 attends most to source token 2."),
    ] = None,
    attention: Annotated[
        bool | None,
        output("--attention", help="Print all attention: layer, head, target token, source token. Needs --json."),
    ] = None,
    stream: Annotated[
        bool,
        output("--stream", help="Print answers one by one while they are generated (beam search: at the end)."),
    ] = False,
    as_json: Annotated[bool, output("--json", help="Print one JSON object per line.")] = False,
    priority: Annotated[
        Literal["interactive", "batch"] | None,
        typer.Option(
            help="batch: other requests go first. Default: batch for lines of a file or pipe, else interactive."
        ),
    ] = None,
    model: Model = "",
    server: Server,
) -> None:
    if attention and not as_json:
        raise typer.BadParameter("--attention needs --json")
    if stream and not as_json and (num_hypotheses or 1) > 1:
        raise typer.BadParameter("--stream of more than one hypothesis needs --json")

    with reporting_errors():
        from dragoman.cli.runner import run
        from dragoman.requests import GenerateOptions

        own = {name: value for name, value in context.params.items() if name in GenerateOptions.__annotations__}
        options = cast("GenerateOptions", {**own, **decoding.options()})
        failures = run(texts or None, server=server, stream=stream, as_json=as_json, options=options)
    if failures:
        raise typer.Exit(FAILED)
