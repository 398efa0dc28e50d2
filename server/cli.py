"""`dragoman-serve`."""

import inspect
import os
import sys
import typing
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from rich.markup import escape

from server.config import ServerConfig
from server.config.options import PANELS
from server.logs import configure_logs

WRONG_OPTIONS = 2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")


def serve(**given: Any) -> None:
    """Serve a bundle over gRPC, with metrics over HTTP."""
    try:
        config = ServerConfig.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        flag = "--" + str(first["loc"][0]).replace("_", "-") + ": " if first["loc"] else ""
        print(f"dragoman-serve: {flag}{first['msg']}", file=sys.stderr)
        raise SystemExit(WRONG_OPTIONS) from None
    configure_logs(config.log_format, config.log_level)
    # NOTE: both are read when the libraries are first used. The tokenizer's own threads would take the engines' cores,
    # and what gRPC's core writes about a port that it can't have is said here in one sentence.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import uvloop

    from server.app import run
    from server.errors import StartError

    try:
        status = uvloop.run(run(config))
    except StartError as error:
        print(f"dragoman-serve: {error}", file=sys.stderr)
        status = 1
    raise SystemExit(status)


def _flag(name: str, field: FieldInfo, panel: str) -> inspect.Parameter:
    """The flag of an option. Its value is taken as text: what it must be is for the field to say."""
    spelt = "--" + name.replace("_", "-")
    default = None if field.is_required() or field.default_factory else field.default
    text = escape(field.description or "")
    if default is not None:
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        text += f" [dim]{escape(f'[default: {shown}]')}[/dim]"
    if field.annotation is bool:
        option = typer.Option(f"{spelt}/--no-{spelt[2:]}", help=text, rich_help_panel=panel, show_default=False)
        kind: Any = bool | None
    else:
        option = typer.Option(spelt, metavar=_metavar(name, field.annotation), help=text, rich_help_panel=panel)
        kind = str | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _metavar(name: str, annotation: Any) -> str:
    [kind, *_] = [each for each in (typing.get_args(annotation) or [annotation]) if each is not type(None)]
    if choices := typing.get_args(kind) or (typing.get_args(annotation) if isinstance(kind, str) else ()):
        return "|".join(map(str, choices))
    if name.endswith("_seconds"):
        return "SECONDS"
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def _signature() -> inspect.Signature:
    """Typer reads flags from a function's signature; here they come from the fields of ServerConfig."""
    fields = [(name, field, panel) for panel in PANELS for name, field in panel.model_fields.items()]
    return inspect.Signature([_flag(name, field, str(panel.model_config["title"])) for name, field, panel in fields])


serve.__signature__ = _signature()  # type: ignore[attr-defined]
app.command()(serve)
