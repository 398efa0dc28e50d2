"""`dragoman generate`: its options. `dragoman.cli.runner` runs it."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from dragoman.cli.common import (
    FAILED,
    Model,
    Server,
    SourceLanguage,
    TargetLanguage,
    reporting_errors,
    with_server_options,
)

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

length = partial(typer.Option, rich_help_panel="Length")
beam = partial(typer.Option, rich_help_panel="Beam search")
sampling = partial(typer.Option, rich_help_panel="Sampling")
constraint = partial(typer.Option, rich_help_panel="Constraints")
output = partial(typer.Option, rich_help_panel="Output")


# Parameters have the names of GenerateOptions, by which they are copied from the context.
@with_server_options(timeout=60.0)
def generate(
    context: typer.Context,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", show_default=False)] = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    max_new_tokens: Annotated[
        int | None, length(metavar="N", help="Generate at most N tokens. Default: the model's limit.")
    ] = None,
    min_new_tokens: Annotated[int | None, length(metavar="N", help="Generate at least N tokens. Default: 0.")] = None,
    time_limit: Annotated[
        float | None, length(metavar="SECONDS", help="Return what has been generated after this time.")
    ] = None,
    beam_size: Annotated[int | None, beam(metavar="N", help="Use beam search with N hypotheses.")] = None,
    length_normalization: Annotated[
        Literal["length", "gnmt", "none"] | None,
        beam(
            help="Score: length: sum / |Y|^A (default); gnmt: sum / ((5+|Y|)/6)^A; none: sum.",
            metavar="KIND",
        ),
    ] = None,
    length_penalty: Annotated[
        float | None, beam(metavar="A", help="Exponent A: the higher, the longer the answers. Default: 1.")
    ] = None,
    coverage_penalty: Annotated[
        float | None,
        beam(metavar="B", help="Weight of the penalty for source tokens without attention. Default: 0."),
    ] = None,
    early_stopping: Annotated[
        bool | None,
        beam(
            "--early-stopping",
            help="End when enough hypotheses are finished, even if others might win.",
        ),
    ] = None,
    stopping: Annotated[
        Literal["exact", "early", "current_length", "max_length"] | None,
        beam(
            metavar="RULE",
            help="When to end: exact: when no other hypothesis can win; early: --early-stopping; current_length, "
            'max_length: early_stopping=False and "never" of transformers. Default: exact, or the model\'s rule.',
        ),
    ] = None,
    patience: Annotated[
        float | None,
        beam(metavar="P", help="--early-stopping ends at P times the beam size. Default: 1."),
    ] = None,
    beam_groups: Annotated[
        int | None,
        beam(
            metavar="N",
            help="Diverse beam search: N groups that avoid each other's tokens. Default: 1.",
        ),
    ] = None,
    diversity_penalty: Annotated[
        float | None,
        beam(metavar="D", help="Penalty on a token for each earlier group that chose it. Default: 0.5."),
    ] = None,
    sample: Annotated[
        bool | None, sampling("--sample", help="Draw each token at random from the distribution.")
    ] = None,
    temperature: Annotated[
        float | None, sampling(metavar="T", help="Below 1 for less randomness, above 1 for more. Default: 1.")
    ] = None,
    top_k: Annotated[int | None, sampling(metavar="K", help="Draw from the K most probable tokens.")] = None,
    top_p: Annotated[
        float | None, sampling(metavar="P", help="Draw from the most probable tokens whose probabilities sum to P.")
    ] = None,
    min_p: Annotated[
        float | None, sampling(metavar="P", help="Draw from tokens at least P times as probable as the best one.")
    ] = None,
    typical_p: Annotated[
        float | None,
        sampling(
            metavar="P",
            help="Draw from the most typical tokens whose probabilities sum to P.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        sampling(
            metavar="N",
            help="The same seed gives the same answer. Default: the server's choice, see --json.",
        ),
    ] = None,
    prefix: Annotated[str | None, constraint(metavar="TEXT", help="Start the answer with this text.")] = None,
    prefix_ids: Annotated[
        str | None, constraint(metavar="IDS", help='Start the answer with these target token ids, as in "5 17".')
    ] = None,
    prefix_bias: Annotated[
        float | None,
        constraint(metavar="B", help="Prefer the prefix with this weight instead of forcing it."),
    ] = None,
    suppressed_tokens: Annotated[
        list[int] | None,
        constraint("--suppress-token", metavar="ID", help="Never choose this target token. May be repeated."),
    ] = None,
    suppress_sequence: Annotated[
        list[str] | None,
        constraint(metavar="TEXT", help="Never generate the tokens of this text in sequence. May be repeated."),
    ] = None,
    suppress_sequence_ids: Annotated[
        list[str] | None,
        constraint(metavar="IDS", help="Never generate these target token ids in sequence. May be repeated."),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        constraint(metavar="R", help="Above 1, makes tokens that already occurred less probable. Default: 1."),
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None, constraint(metavar="N", help="Never repeat N tokens in sequence. Default: 0, no such rule.")
    ] = None,
    encoder_no_repeat_ngram_size: Annotated[
        int | None,
        constraint(metavar="N", help="Never generate N tokens that occur in sequence in the source. Default: 0."),
    ] = None,
    stop_sequences: Annotated[
        list[str] | None,
        constraint("--stop", metavar="TEXT", help="End the answer before this text. May be repeated."),
    ] = None,
    include_stop_sequence: Annotated[
        bool | None, constraint("--include-stop", help="End the answer after the --stop text instead.")
    ] = None,
    vocabulary: Annotated[
        Path | None,
        constraint(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Choose only target tokens whose ids are in FILE, one per line.",
        ),
    ] = None,
    use_shortlist: Annotated[
        bool | None,
        constraint(
            "--shortlist/--no-shortlist",
            help="Choose only target tokens that the model's lexical shortlist has for the text. Default: as the "
            "model's export found best.",
        ),
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
        typer.Option(help="batch: other requests go first. Default: interactive."),
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
        raise typer.BadParameter("--prefix and --prefix-ids are mutually exclusive")

    with reporting_errors():
        from dragoman.cli.runner import parse_ids, read_ids, run
        from dragoman.requests import GenerateOptions

        params = {name: context.params[name] for name in GenerateOptions.__annotations__ if name in context.params}
        options = cast("GenerateOptions", params)
        if prefix_ids is not None:
            options["prefix"] = parse_ids(prefix_ids, "--prefix-ids")
        options["suppressed_sequences"] = [
            *(suppress_sequence or ()),
            *(parse_ids(ids, "--suppress-sequence-ids") for ids in suppress_sequence_ids or ()),
        ]
        options["vocabulary"] = read_ids(vocabulary) if vocabulary else None
        failures = run(texts or None, server=server, stream=stream, as_json=as_json, options=options)
    if failures:
        raise typer.Exit(FAILED)
