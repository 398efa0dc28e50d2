"""`dragoman bulk`: answers whole files, in this process or through servers."""

from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.bulk.formats import Format
from dragoman.bulk.stopping import Stop
from dragoman.cli.common import FAILED, Model, Server, reporting_errors, with_server_options
from dragoman.cli.decoding import Decoding, with_decoding_options

if TYPE_CHECKING:
    from dragoman.bulk.backend import Backend
    from dragoman.requests import GenerateOptions

STOPPED = 75  # EX_TEMPFAIL: the same command continues
BULK_HELP = """Answer every row of IN, and write OUT with as many rows in the same order.

IN is a text file with one source per line, .tsv, .jsonl or .parquet, also .gz, or a folder of such files; OUT is a \
file of any of these formats, or a folder. An OUT in the format of IN has all of its columns and the answers beside \
them; otherwise it has the sources and the answers, or, as a text file, only the answers.

With --bundle, the model runs in this process; otherwise servers at --address answer.

Rows that can't be answered stay in OUT with an empty answer (null in .jsonl and .parquet), and OUT.bad_lines.txt \
lists them with the reasons.

If it is stopped or killed, the same command continues where it left off: no row is lost or doubled, and the \
bytes of OUT are those of a run without interruption. docs/bulk.md has examples.
"""
EPILOG = (
    "Exit status: 0 finished; 1 failed, or no row could be answered; 2 wrong usage; 75 stopped by SIGTERM or Ctrl-C."
)

file_option = partial(typer.Option, rich_help_panel="Files")
machine_option = partial(typer.Option, rich_help_panel="This process, with --bundle")


@with_server_options(timeout=300.0)
@with_decoding_options
def bulk(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="IN", show_default=False)],
    out: Annotated[Path, typer.Argument(metavar="OUT", show_default=False)],
    *,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Bundle to run in this process. Needs the extra `server`.")
    ] = None,
    column: Annotated[
        str | None,
        file_option(
            metavar="NAME", help='Column of the sources: a number in .tsv, otherwise a name. Default: 1, or "text".'
        ),
    ] = None,
    answer_column: Annotated[
        str, file_option(metavar="NAME", help="Column of the answers in .jsonl and .parquet.")
    ] = "answer",
    input_format: Annotated[Format | None, file_option(help="Format of IN. Default: by its name.")] = None,
    output_format: Annotated[
        Format | None,
        file_option(help="Format of OUT. Default: by its name; in a folder, that of the input."),
    ] = None,
    shard: Annotated[
        str | None,
        file_option(metavar="I/N", help="Of a folder's files, take only every N-th from the I-th on; the first is 0."),
    ] = None,
    window: Annotated[
        int, file_option(min=1, max=2**20, help="Rows that are sorted by length, and saved, together.")
    ] = 4096,
    restart: Annotated[bool, file_option("--restart", help="Begin anew, even if OUT exists.")] = False,
    decoding: Decoding,
    device: Annotated[
        str, machine_option(help="cpu, cuda or a GPU such as cuda:1; auto uses a GPU if one works.")
    ] = "auto",
    engines: Annotated[int | None, machine_option(min=1, help="Step loops in parallel.")] = None,
    threads_per_engine: Annotated[int | None, machine_option(min=1, help="CPU threads of each.")] = None,
    max_rows: Annotated[int | None, machine_option(min=1, help="Hypotheses that an engine decodes at once.")] = None,
    memory_budget: Annotated[
        str | None, machine_option(metavar="SIZE", help="Memory of this process, such as 4GiB.")
    ] = None,
    model: Model = "",
    server: Server,
) -> None:
    if bundle is not None:
        for name in ("address", "model"):
            given = context.get_parameter_source(name)
            if given is not None and given.name == "COMMANDLINE":  # in the environment it is for other commands too
                raise typer.BadParameter(f"--{name} is for servers, and can't be combined with --bundle")
    choices = {
        "device": device,
        "engines": engines,
        "threads_per_engine": threads_per_engine,
        "max_rows": max_rows,
        "memory_budget": memory_budget,
    }
    stop = Stop.on_signals()  # before the imports, which take long
    from dragoman.bulk.errors import BulkError, StoppedError
    from dragoman.bulk.folders import find_work, read_shard
    from dragoman.bulk.work import BulkWork
    from dragoman.cli.output import warn

    with reporting_errors():
        try:
            files = find_work(
                source,
                out,
                column=column,
                answer_column=answer_column,
                input_format=input_format,
                output_format=output_format,
                shard=None if shard is None else read_shard(shard),
            )
            options = decoding.options()
            named = {f"--{name.replace('_', '-')}": value for name, value in options.items()}
            work = BulkWork(files, named, window, restart, stop)
            with closing(_backend(bundle, choices, server, {**options, "model": model}, stop)) as backend:
                counts = work.run(backend)
        except BulkError as error:
            warn(str(error))
            raise typer.Exit(FAILED) from None
        except StoppedError:
            warn(f"stopped; run the same command to continue from what is saved beside {out}")
            raise typer.Exit(STOPPED) from None
    warn(counts.summary(out))
    if counts.lines and not counts.answered:
        raise typer.Exit(FAILED)


def _backend(
    bundle: Path | None, choices: Mapping[str, Any], server: Server, options: "GenerateOptions", stop: Stop
) -> "Backend":
    if bundle is None:
        from dragoman.bulk.servers import Servers

        return Servers(server.client(), options, stop)
    from dragoman.bulk.in_process import open_bundle

    return open_bundle(bundle, options, choices, should_stop=stop)
