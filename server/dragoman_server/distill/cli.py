"""The command line of `dragoman-distill`."""

import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from dragoman.bulk.stopping import Stop
from dragoman_server.distill.choose import Choice
from dragoman_server.offline.sources import Layout

FAILED, WRONG_USAGE, STOPPED = 1, 2, 75  # EX_TEMPFAIL: the same command continues
EPILOG = (
    "The same command continues where a stopped or killed one left off. Exit status: 0 finished, 1 failed, 2 wrong "
    "usage, 75 stopped by SIGTERM or Ctrl-C. docs/distillation.md has examples."
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def _option(panel: str, *names: str, **details: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **details)


@app.command(epilog=EPILOG)
def run(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="TEACHER... SOURCES OUT",
            help="Bundles; a text, a .tsv file (either may be .gz), or a recipe with data.train; the file to write.",
            show_default=False,
        ),
    ],
    beam_size: Annotated[
        int | None, _option("Search", min=1, max=256, help="Default: the bundle's own, or 5. 1 is greedy.")
    ] = None,
    length_penalty: Annotated[
        float | None, _option("Search", help="Exponent of the length in scores. Default: the bundle's own, or 1.")
    ] = None,
    early_stopping: Annotated[
        bool | None,
        _option(
            "Search",
            "--early-stopping/--no-early-stopping",
            help="End a beam when as many hypotheses have finished as it is wide. Default: the bundle's own, or on "
            "if there are several candidates.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, _option("Search", min=1, help="Length limit of answers. Default: the bundle's.")
    ] = None,
    source_language: Annotated[
        str | None, _option("Search", metavar="CODE", help="Language of the sources, for bundles with several.")
    ] = None,
    target_language: Annotated[
        str | None, _option("Search", metavar="CODE", help="Language to write, for bundles with several.")
    ] = None,
    candidates: Annotated[
        int | None,
        _option(
            "Choice",
            min=1,
            max=256,
            help="Candidates of each teacher. Default: 1, or the beam size where there is something to choose.",
        ),
    ] = None,
    choose: Annotated[
        Choice,
        _option(
            "Choice",
            help="score: the best by the teacher, or by the mean of all teachers. bleu, chrf: the closest to the "
            "reference in SOURCES.",
        ),
    ] = "score",
    keep: Annotated[int, _option("Choice", min=1, max=256, help="Best candidates to write, one per line.")] = 1,
    swap: Annotated[bool, _option("Files", "--swap", help="Write target<TAB>source, for back-translation.")] = False,
    tag: Annotated[str, _option("Files", help="Text to put before the first column, such as <BT>.")] = "",
    format_: Annotated[
        Layout, _option("Files", "--format", help="Layout of SOURCES: text has one source per line.")
    ] = "auto",
    source_column: Annotated[int, _option("Files", min=1, help="Column of the sources in .tsv files.")] = 1,
    reference_column: Annotated[int, _option("Files", min=1, help="Column of the references.")] = 2,
    window: Annotated[
        int, _option("Files", min=1, max=2**20, help="Lines that are sorted by length, and saved, together.")
    ] = 4096,
    restart: Annotated[bool, _option("Files", "--restart", help="Begin anew, even if OUT exists.")] = False,
    device: Annotated[
        str, _option("Machine", help="cpu, cuda or a GPU such as cuda:1; auto uses a GPU if one works.")
    ] = "auto",
    engines: Annotated[int | None, _option("Machine", min=1, help="Step loops in parallel, for each teacher.")] = None,
    threads_per_engine: Annotated[int | None, _option("Machine", min=1, help="CPU threads of each.")] = None,
    max_rows: Annotated[
        int | None, _option("Machine", min=1, help="Hypotheses that an engine decodes at once.")
    ] = None,
    memory_budget: Annotated[
        str | None, _option("Machine", metavar="SIZE", help="Memory of this process, such as 4GiB.")
    ] = None,
) -> None:
    """Have teachers translate SOURCES, and write OUT for dragoman-train: source<TAB>target.

    With several teachers, each scores the candidates of all, and the best mean score wins.
    """
    if len(paths) < 3:
        _fail("expected at least one teacher, SOURCES and OUT", WRONG_USAGE)
    *teachers, sources, out = paths
    stop = Stop.on_signals()  # before the imports, which take a second
    from dragoman.bulk.errors import BulkError, StoppedError
    from dragoman_server.distill.lines import unfit
    from dragoman_server.distill.options import DistillOptions
    from dragoman_server.distill.run import distill
    from dragoman_server.distill.teacher import SearchWishes
    from dragoman_server.offline.setup import offline_config, prepare_process

    if tag and (problem := unfit(tag)):
        _fail(f"--tag {problem}", WRONG_USAGE)
    several = len(teachers) > 1 or choose != "score"
    wanted = None if several and candidates is None else max(candidates or 1, keep)
    options = DistillOptions(
        teachers,
        sources,
        out,
        SearchWishes(wanted, beam_size, length_penalty, early_stopping, max_new_tokens),
        choose,
        keep,
        swap,
        tag,
        source_language,
        target_language,
        format_,
        source_column,
        reference_column,
        window,
        restart,
    )
    prepare_process()
    try:
        config = offline_config(
            device=device,
            engines=engines,
            threads_per_engine=threads_per_engine,
            max_rows=max_rows,
            memory_budget=memory_budget,
        )
    except ValueError as error:
        _fail(str(error), WRONG_USAGE)
    try:
        counts = distill(options, config, stop)
    except BulkError as error:
        _fail(str(error), FAILED)
    except StoppedError:
        hint = f"run the same command to continue from what is saved beside {out}"
        print(f"dragoman-distill: stopped; {hint}", file=sys.stderr)
        raise typer.Exit(STOPPED) from None
    print(counts.summary(out), file=sys.stderr)
    if not counts.written:
        _fail(f"{out} is empty, since no line could be used; {out}.bad_lines.txt says why", FAILED)
    print(out)


def _fail(problem: str, status: int) -> NoReturn:
    print(f"dragoman-distill: {problem}", file=sys.stderr)
    raise typer.Exit(status) from None
