"""Options and error handling that all commands share.

Commands import the client only when they run, so that --help is fast.
"""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dragoman.aio import AsyncClient
    from dragoman.client import Client

DEFAULT_ADDRESS = "127.0.0.1:50051"

FAILED = 1
WRONG_USAGE = 2  # as typer's own refusals
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE

_PANEL = "Server"

Command = Callable[..., None]

Model = Annotated[
    str, typer.Option(metavar="NAME", help="Model to use. Default: the server's default.", rich_help_panel=_PANEL)
]
SourceLanguage = Annotated[
    str | None,
    typer.Option(metavar="CODE", help="Language of the texts, for models with several; see `dragoman models`."),
]
TargetLanguage = Annotated[
    str | None, typer.Option(metavar="CODE", help="Language to generate, for models with several.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _option(*names: str, **details: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_PANEL, **details)


@dataclass(frozen=True)
class Server:
    """How to reach the server. Each field is an option of every command."""

    address: Annotated[
        str,
        _option(
            envvar="DRAGOMAN_ADDRESS",
            metavar="HOST:PORT",
            help="Address of the server, or several separated by commas, used in turn.",
        ),
    ] = DEFAULT_ADDRESS
    timeout: Annotated[
        float, _option(metavar="SECONDS", min=0.001, help="Time limit of each call, retries included.")
    ] = 60.0
    ignore_health: Annotated[
        bool,
        _option(
            "--ignore-health",
            help="Also call servers that report that they are not ready, for use behind a proxy that balances calls.",
        ),
    ] = False
    tls: Annotated[bool, _option("--tls", help="Use TLS. Implied by --ca, --cert and --server-name.")] = False
    ca: Annotated[
        Path | None,
        _option(
            envvar="DRAGOMAN_CA",
            metavar="FILE",
            help="Certificates of the authorities to trust (PEM), instead of the public ones.",
        ),
    ] = None
    cert: Annotated[
        Path | None,
        _option(
            envvar="DRAGOMAN_CLIENT_CERT",
            metavar="FILE",
            help="Certificate of the client (PEM), for servers that require one.",
        ),
    ] = None
    key: Annotated[
        Path | None, _option(envvar="DRAGOMAN_CLIENT_KEY", metavar="FILE", help="The private key of --cert (PEM).")
    ] = None
    server_name: Annotated[
        str | None,
        _option(
            envvar="DRAGOMAN_SERVER_NAME",
            metavar="NAME",
            help="Name in the server's certificate, if it is not the host of --address, for example behind a tunnel.",
        ),
    ] = None
    api_key: Annotated[
        str | None,
        _option(
            envvar="DRAGOMAN_API_KEY",
            metavar="KEY",
            show_envvar=True,
            help="API key. Prefer the environment variable: other users of the machine can see command lines.",
        ),
    ] = None

    def client(self) -> "Client":
        from dragoman.client import Client

        return Client(self.address, **self._arguments())

    def async_client(self) -> "AsyncClient":
        from dragoman.aio import AsyncClient

        return AsyncClient(self.address, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        """Returns the arguments of the client. Raises ValueError if options contradict each other."""
        from dragoman.channel import Tls
        from dragoman.cli.output import RetryNotice
        from dragoman.retry import RetryPolicy

        if (self.cert is None) != (self.key is None):
            raise ValueError("--cert and --key must be set together")
        tls = self.tls or any(option is not None for option in (self.ca, self.cert, self.server_name))
        return {
            "timeout": self.timeout,
            "retry": RetryPolicy(on_retry=RetryNotice()),
            "follow_health": not self.ignore_health,
            "tls": tls and Tls(ca=self.ca, cert=self.cert, key=self.key, server_name=self.server_name),
            "api_key": self.api_key,
        }


def with_options(argument: str, group: type, **defaults: Any) -> Callable[[Command], Command]:
    """Returns a decorator that adds the fields of a dataclass as options of a command.

    Args:
        argument: Argument by which the command takes the dataclass; its options stand in its place.
        group: The dataclass; every field has a default.
        defaults: Other defaults, by field.
    """

    def decorate(command: Command) -> Command:
        keyword = inspect.Parameter.KEYWORD_ONLY
        options = [
            inspect.Parameter(name, keyword, default=defaults.get(name, getattr(group, name)), annotation=annotation)
            for name, annotation in inspect.get_annotations(group, eval_str=True).items()
        ]
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            parameters += options if name == argument else [parameter.replace(kind=keyword)]

        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            chosen = group(**{option.name: arguments.pop(option.name) for option in options})
            command(**{argument: chosen}, **arguments)

        del run.__wrapped__  # typer would inspect the wrapped function instead
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate


def with_server_options(timeout: float) -> Callable[[Command], Command]:
    """Returns a decorator that adds the fields of Server as options; the command takes them as the argument `server`.

    Args:
        timeout: Default of --timeout, in seconds.
    """
    return with_options("server", Server, timeout=timeout)


@contextmanager
def connected(server: Server) -> "Iterator[Client]":
    """Yields a client of the server, inside `reporting_errors`."""
    with reporting_errors(), server.client() as client:
        yield client


@contextmanager
def reporting_errors() -> Iterator[None]:
    """Turns failures into one sentence on standard error and an exit status.

    A ValueError is wrong usage: the client raises it for arguments that cannot be sent.
    """
    from dragoman.errors import DragomanError

    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except (DragomanError, ValueError) as error:
        typer.echo(f"dragoman: {error_message(error)}", err=True)
        raise typer.Exit(FAILED if isinstance(error, DragomanError) else WRONG_USAGE) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        # Python flushes standard output once more at exit. That flush must not fail.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise typer.Exit(BROKEN_PIPE) from None
        typer.echo(f"dragoman: {error.strerror or error}", err=True)
        raise typer.Exit(FAILED) from None


def error_message(error: Exception) -> str:
    """Returns the message of an error with its notes, such as the request id."""
    return " ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])
