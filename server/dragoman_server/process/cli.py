"""`dragoman-serve`."""

import atexit
import inspect
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import structlog
import typer
from pydantic.fields import FieldInfo
from rich.markup import escape

from dragoman_server.config.fields import is_switch, placeholder
from dragoman_server.config.options import PANELS
from dragoman_server.config.show import chosen, lines
from dragoman_server.config.sources import FILE_VARIABLE, PREFIX, ConfigError, Configuration, configure, flag
from dragoman_server.core.errors import StartError
from dragoman_server.process.connections import allow_connections
from dragoman_server.telemetry.log_lines import DRAIN_SECONDS, LineWriter
from dragoman_server.telemetry.logs import configure_logs

FAILED, WRONG_CONFIGURATION = 1, 2
MANUAL = Path(__file__).parent.with_name("server.yaml")
PANEL = "Configuration"
EPILOG = (
    f"Every option may also stand in the file (--max-rows as max_rows) or in the environment ({PREFIX}MAX_ROWS); "
    "flags go before the environment, and that before the file. "
    f"Exit status: 0 stopped by a signal, {FAILED} failed, {WRONG_CONFIGURATION} wrong configuration."
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
log = structlog.get_logger()


def serve(config: Path | None, print_config: bool, example_config: bool, **flags: str | bool | None) -> None:
    """Serve a bundle over gRPC, with metrics over HTTP."""
    if example_config:
        _print(MANUAL.read_text(encoding="utf-8").splitlines())
        return
    try:
        given = {name: value for name, value in flags.items() if value is not None}
        configuration = configure(given, os.environ, config)
    except ConfigError as error:
        _fail(error, WRONG_CONFIGURATION)
    if not print_config:
        _run(configuration)
    _print(
        typer.style(line, bold=True) if wanted else typer.style(line, dim=True) for line, wanted in lines(configuration)
    )


def _run(configuration: Configuration) -> NoReturn:
    """Serves until told to stop, and ends the process."""
    config = configuration.config
    try:
        allow_connections(config)  # first: where too few files may be open, libraries fail in ways that tell nothing
    except StartError as error:
        _fail(error, FAILED)
    lines = LineWriter(sys.stderr)
    atexit.register(lines.drain, DRAIN_SECONDS)
    configure_logs(config.log_format, config.log_level, config.log_text, lines)
    # NOTE: these are read when the libraries are first used. The tokenizer's own threads would take the engines' cores,
    # what gRPC's core writes about a port that it can't have is said here in one sentence, and threads of its own for
    # connections hand every message on once more: without them a small model answers up to a twelfth more calls.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
    import uvloop

    from dragoman_server.process.app import run

    log.info("configured", options=chosen(configuration))
    if config.log_text:
        log.warning("EVERYTHING THAT CLIENTS SEND IS LOGGED, because of --log-text")
    try:
        status = uvloop.run(run(config, lines))
    except StartError as error:
        lines.drain(DRAIN_SECONDS)
        _fail(error, FAILED)
    raise SystemExit(status)


def _print(lines: Iterable[str]) -> None:
    """To standard output, in plain text where it is not a terminal."""
    try:
        for line in lines:
            typer.echo(line)
    except BrokenPipeError:
        raise  # whoever reads it has had enough, as `head` has; Typer ends without a word
    except OSError as error:
        # Python would try once more at the end to write what is left, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"standard output can't be written: {error.strerror}", FAILED)


def _fail(error: Exception | str, status: int) -> NoReturn:
    print(f"dragoman-serve: {error}", file=sys.stderr)
    raise SystemExit(status) from None


def _flag(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    """The flag of an option. Its value is taken as text: what it must be is for the field to say."""
    text = escape(field.description or "")
    default = None if field.default_factory else field.default
    if default is not None:
        told = str(default).lower() if isinstance(default, bool) else default
        text += f" [dim]{escape(f'[default: {told}]')}[/dim]"
    if is_switch(field):
        option = typer.Option(f"{flag(name)}/{flag('no_' + name)}", help=text, rich_help_panel=panel)
        return _parameter(name, None, bool | None, option)
    option = typer.Option(flag(name), metavar=placeholder(name, field), help=text, rich_help_panel=panel)
    return _parameter(name, None, str | None, option)


def _parameter(name: str, default: Any, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _signature() -> inspect.Signature:
    """Typer reads flags from a function's signature; here they come from the fields of ServerConfig."""
    file = f"YAML file of options; else the one that {FILE_VARIABLE} names."
    show = "Print the options as a YAML file that says where each comes from, and exit."
    manual = "Print server.yaml, the manual, in which every option is explained and has its default, and exit."
    own = [
        _parameter("config", None, Path | None, typer.Option(metavar="FILE", help=file, rich_help_panel=PANEL)),
        _parameter("print_config", False, bool, typer.Option("--print-config", help=show, rich_help_panel=PANEL)),
        _parameter("example_config", False, bool, typer.Option("--example-config", help=manual, rich_help_panel=PANEL)),
    ]
    fields = [(panel, item) for panel in PANELS for item in panel.model_fields.items()]
    return inspect.Signature([*own, *(_flag(*item, str(panel.model_config["title"])) for panel, item in fields)])


serve.__signature__ = _signature()  # type: ignore[attr-defined]
app.command(epilog=EPILOG)(serve)
