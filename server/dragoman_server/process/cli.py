"""The command line of `dragoman-serve`."""

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
from dragoman_server.machine import start_collecting
from dragoman_server.process.connections import allow_connections
from dragoman_server.telemetry.log_lines import DRAIN_SECONDS, LineWriter
from dragoman_server.telemetry.logs import configure_logs

FAILED, WRONG_CONFIGURATION = 1, 2
MANUAL = Path(__file__).parent.with_name("server.yaml")
PANEL = "Configuration"
EPILOG = (
    f"Every option can also be set in the file (--max-rows as max_rows) or in the environment ({PREFIX}MAX_ROWS). "
    "Flags override the environment, which overrides the file. "
    f"Exit status: 0 stopped by a signal, {FAILED} failed, {WRONG_CONFIGURATION} invalid configuration."
)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
log = structlog.get_logger()


def serve(config: Path | None, print_config: bool, example_config: bool, **flags: str | bool | None) -> None:
    """Serve a bundle over gRPC, with metrics over HTTP."""
    if example_config:
        _print(MANUAL.read_text(encoding="utf-8").splitlines())
        return
    try:
        set_flags = {name: value for name, value in flags.items() if value is not None}
        configuration = configure(set_flags, os.environ, config)
    except ConfigError as error:
        _fail(error, WRONG_CONFIGURATION)
    if not print_config:
        _run(configuration)
    _print(
        typer.style(line, bold=True) if is_set else typer.style(line, dim=True) for line, is_set in lines(configuration)
    )


def _run(configuration: Configuration) -> NoReturn:
    """Serves until a signal stops the server, and exits."""
    config = configuration.config
    try:
        allow_connections(config)  # first: with too few open files, libraries fail in obscure ways
    except StartError as error:
        _fail(error, FAILED)
    lines = LineWriter(sys.stderr)
    atexit.register(lines.drain, DRAIN_SECONDS)
    configure_logs(config.log_format, config.log_level, config.log_text, lines)
    # NOTE: the libraries read these at first use. The tokenizer's threads would take the engines' cores. gRPC's core
    # would log its own errors about ports, which StartError reports. Without gRPC's threads for connections, which pass
    # every message on once more, a small model answers up to a twelfth more calls. NumPy multiplies no matrices here;
    # its library would start a thread for every core, which spins for a while.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import uvloop

    from dragoman_server.process.app import run

    start_collecting()
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
    """Prints to standard output, without colors if it is not a terminal."""
    try:
        for line in lines:
            typer.echo(line)
    except BrokenPipeError:
        raise  # a reader such as `head` has closed the pipe; Typer exits silently
    except OSError as error:
        # At exit Python would try to write the rest again, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"can't write to standard output: {error.strerror}", FAILED)


def _fail(error: Exception | str, status: int) -> NoReturn:
    print(f"dragoman-serve: {error}", file=sys.stderr)
    raise SystemExit(status) from None


def _flag(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    """Returns the flag of an option. Its value is text; the field validates it."""
    text = escape(field.description or "")
    default = None if field.default_factory else field.default
    if default is not None:
        shown = str(default).lower() if isinstance(default, bool) else default
        text += f" [dim]{escape(f'[default: {shown}]')}[/dim]"
    if is_switch(field):
        option = typer.Option(f"{flag(name)}/{flag('no_' + name)}", help=text, rich_help_panel=panel)
        return _parameter(name, None, bool | None, option)
    option = typer.Option(flag(name), metavar=placeholder(name, field), help=text, rich_help_panel=panel)
    return _parameter(name, None, str | None, option)


def _parameter(name: str, default: Any, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


def _signature() -> inspect.Signature:
    """Returns the signature that Typer reads the flags from, made from the fields of ServerConfig."""
    file = f"YAML file of options; by default the one named by {FILE_VARIABLE}."
    show = "Print all options as a YAML file that shows where each value comes from, and exit."
    manual = "Print server.yaml, the manual, which explains every option and shows its default, and exit."
    own = [
        _parameter("config", None, Path | None, typer.Option(metavar="FILE", help=file, rich_help_panel=PANEL)),
        _parameter("print_config", False, bool, typer.Option("--print-config", help=show, rich_help_panel=PANEL)),
        _parameter("example_config", False, bool, typer.Option("--example-config", help=manual, rich_help_panel=PANEL)),
    ]
    fields = [(panel, item) for panel in PANELS for item in panel.model_fields.items()]
    return inspect.Signature([*own, *(_flag(*item, str(panel.model_config["title"])) for panel, item in fields)])


serve.__signature__ = _signature()  # type: ignore[attr-defined]
app.command(epilog=EPILOG)(serve)
