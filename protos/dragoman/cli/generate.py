"""`dragoman generate`: its options. What it does stands in `dragoman.cli.answering`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from dragoman.cli.common import FAILED, Model, reported
from dragoman.cli.server import Server, asks_server

GENERATE_HELP = """Answer each TEXT, or each line of standard input: one answer a line, in order.

Greedy, unless --beam-size or --sample says otherwise. Line breaks, tabs and other control characters inside an \
answer are printed as \\n, \\t or \\x1b.

What is asked for beside the text follows it, behind tabs: the log-probability; the tokens, with spaces between them, \
as in A(-0.1250), or with --top-tokens A(-0.1250)|B(-2.5000)|C(-4.0000); the alignment.

With --num-hypotheses over 1 each text has a line for every answer, the best first and samples as they were drawn: its \
index, which starts at 1 with each text, its score, the text, and what else is asked for. With --json each text has \
one object, with "hypotheses".

A text that fails gives an empty line (with --json, an object with "error"), so that lines stay aligned; \
why it failed stands on standard error, and the exit status is 1. With --stream, what had been printed of it by then \
stays in the line. A server that goes away is waited for, for each text as long as --timeout says; then that text has \
failed, and the next ones go on.
"""

length = partial(typer.Option, rich_help_panel="Length")
beam = partial(typer.Option, rich_help_panel="Beam search")
sampling = partial(typer.Option, rich_help_panel="Sampling")
constraint = partial(typer.Option, rich_help_panel="Constraints")
output = partial(typer.Option, rich_help_panel="Output")


# The parameters are named as the fields of GenerateOptions, by which they are taken from the context.
@asks_server(timeout=60.0)
def generate(
    context: typer.Context,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", show_default=False)] = None,
    max_new_tokens: Annotated[
        int | None, length(metavar="N", help="Generate at most N tokens. Default: the model's limit.")
    ] = None,
    min_new_tokens: Annotated[
        int | None, length(metavar="N", help="Do not end before N tokens are generated. Default: 0.")
    ] = None,
    time_limit: Annotated[
        float | None, length(metavar="SECONDS", help="Then answer with what has been generated so far.")
    ] = None,
    beam_size: Annotated[int | None, beam(metavar="N", help="Beam search, with N hypotheses at a time.")] = None,
    length_normalization: Annotated[
        Literal["length", "gnmt", "none"] | None,
        beam(
            help="length: sum / |Y|^A (the default); gnmt: sum / ((5+|Y|)/6)^A; none: the sum.",
            metavar="KIND",
        ),
    ] = None,
    length_penalty: Annotated[
        float | None, beam(metavar="A", help="This A: the higher, the longer the answers. Default: 1.")
    ] = None,
    coverage_penalty: Annotated[
        float | None,
        beam(metavar="B", help="Score answers lower that leave source tokens unseen. Default: 0."),
    ] = None,
    early_stopping: Annotated[
        bool | None,
        beam(
            "--early-stopping",
            help="End when enough are finished, though others might win.",
        ),
    ] = None,
    patience: Annotated[
        float | None,
        beam(metavar="P", help="Enough for --early-stopping is P times the beam size. Default: 1."),
    ] = None,
    beam_groups: Annotated[
        int | None,
        beam(
            metavar="N",
            help="Diverse beam search: N groups that avoid each other's choices. Default: 1.",
        ),
    ] = None,
    diversity_penalty: Annotated[
        float | None,
        beam(metavar="D", help="What a token loses for each earlier group that chose it. Default: 0.5."),
    ] = None,
    sample: Annotated[bool | None, sampling("--sample", help="Draw each token at random, by its probability.")] = None,
    temperature: Annotated[
        float | None, sampling(metavar="T", help="Below 1 for less chance, above 1 for more. Default: 1.")
    ] = None,
    top_k: Annotated[int | None, sampling(metavar="K", help="Draw from the K most probable tokens.")] = None,
    top_p: Annotated[
        float | None, sampling(metavar="P", help="Draw from the most probable that have the probability P together.")
    ] = None,
    min_p: Annotated[
        float | None, sampling(metavar="P", help="Draw from those at least P times as probable as the best one.")
    ] = None,
    typical_p: Annotated[
        float | None,
        sampling(
            metavar="P",
            help="Draw from the most typical that have the probability P together.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        sampling(
            metavar="N",
            help="The same gives the same answer. Default: the server's choice, see --json.",
        ),
    ] = None,
    prefix: Annotated[str | None, constraint(metavar="TEXT", help="What the answer starts with.")] = None,
    prefix_ids: Annotated[
        str | None, constraint(metavar="IDS", help='The same as target token ids, as in "5 17".')
    ] = None,
    prefix_bias: Annotated[
        float | None,
        constraint(metavar="B", help="Prefer the prefix with this weight instead of forcing it."),
    ] = None,
    suppressed_tokens: Annotated[
        list[int] | None,
        constraint("--suppress-token", metavar="ID", help="A target token that is never chosen. May be repeated."),
    ] = None,
    suppress_sequence: Annotated[
        list[str] | None,
        constraint(metavar="TEXT", help="A text whose tokens never follow each other. May be repeated."),
    ] = None,
    suppress_sequence_ids: Annotated[
        list[str] | None, constraint(metavar="IDS", help="The same as target token ids. May be repeated.")
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        constraint(metavar="R", help="Over 1, makes tokens that the answer has less probable. Default: 1."),
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None, constraint(metavar="N", help="No N tokens in a row come twice. Default: 0, no such rule.")
    ] = None,
    stop_sequences: Annotated[
        list[str] | None,
        constraint("--stop", metavar="TEXT", help="End before this text. May be repeated."),
    ] = None,
    include_stop_sequence: Annotated[bool | None, constraint("--include-stop", help="End behind it instead.")] = None,
    vocabulary: Annotated[
        Path | None,
        constraint(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Choose only the target tokens whose ids it has, one a line.",
        ),
    ] = None,
    num_hypotheses: Annotated[
        int | None,
        output(
            "--num-hypotheses",
            "-n",
            metavar="N",
            help="Print N answers: the best of the beam, or so many samples. Default: 1.",
        ),
    ] = None,
    alternatives: Annotated[
        bool | None,
        output(
            "--alternatives",
            help="Answer with the N likeliest tokens after the prefix, each completed.",
        ),
    ] = None,
    tokens: Annotated[bool | None, output("--tokens", help="Print the tokens as well.")] = None,
    log_probabilities: Annotated[
        bool | None, output("--log-probabilities", help="Print log-probabilities: the answer's and its tokens'.")
    ] = None,
    top_tokens: Annotated[
        int | None, output(metavar="N", help="Print the N most probable tokens at each place as well.")
    ] = None,
    alignment: Annotated[
        bool | None,
        output("--alignment", help="Print pairs: 2-0 where target token 0 looks at source token 2."),
    ] = None,
    attention: Annotated[
        bool | None,
        output("--attention", help="Print all attention, by layer, head, target and source token. Needs --json."),
    ] = None,
    stream: Annotated[
        bool,
        output("--stream", help="Print answers one by one, while they are generated (a beam's at its end)."),
    ] = False,
    as_json: Annotated[bool, output("--json", help="Print a JSON object a line.")] = False,
    priority: Annotated[
        Literal["interactive", "batch"] | None,
        typer.Option(help="batch where the answers have time: others are served first. Default: interactive."),
    ] = None,
    model: Model = "",
    *,
    server: Server,
) -> None:
    if attention and not as_json:
        raise typer.BadParameter("--attention needs --json")
    if stream and not as_json and (num_hypotheses or 1) > 1:
        raise typer.BadParameter("--stream of more than one hypothesis needs --json")
    if prefix is not None and prefix_ids is not None:
        raise typer.BadParameter("--prefix and --prefix-ids exclude each other")

    with reported():
        from dragoman.cli.answering import run
        from dragoman.cli.ids import listed, parsed
        from dragoman.options import GenerateOptions

        given = {name: context.params[name] for name in GenerateOptions.__annotations__ if name in context.params}
        options = cast("GenerateOptions", given)
        if prefix_ids is not None:
            options["prefix"] = parsed(prefix_ids, "--prefix-ids")
        options["suppressed_sequences"] = [
            *(suppress_sequence or ()),
            *(parsed(each, "--suppress-sequence-ids") for each in suppress_sequence_ids or ()),
        ]
        options["vocabulary"] = listed(vocabulary) if vocabulary else None
        failures = run(texts or None, server=server, stream=stream, as_json=as_json, options=options)
    if failures:
        raise typer.Exit(FAILED)
