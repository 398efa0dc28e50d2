"""The options with which every command finds the server and shows who asks."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from dragoman.aio import AsyncClient
    from dragoman.client import Client

DEFAULT_ADDRESS = "127.0.0.1:50051"
PANEL = "Server"


def _option(*names: str, **details: Any) -> Any:
    return typer.Option(*names, rich_help_panel=PANEL, **details)


@dataclass(frozen=True)
class Server:
    """What a command's options say of the server. Each field is an option."""

    address: Annotated[
        str, _option(envvar="DRAGOMAN_ADDRESS", metavar="HOST:PORT", help="The server; several with commas take turns.")
    ] = DEFAULT_ADDRESS
    timeout: Annotated[float, _option(metavar="SECONDS", min=0.001, help="For each call, retries included.")] = 60.0
    ignore_health: Annotated[
        bool,
        _option(
            "--ignore-health",
            help="Call servers that say they are not ready, too, as where a proxy shares out the calls among them.",
        ),
    ] = False
    tls: Annotated[bool, _option("--tls", help="Talk TLS. --ca, --cert and --server-name imply it.")] = False
    ca: Annotated[
        Path | None,
        _option(
            envvar="DRAGOMAN_CA",
            metavar="FILE",
            help="Trust servers with certificates signed by one of these (PEM).",
        ),
    ] = None
    cert: Annotated[
        Path | None,
        _option(envvar="DRAGOMAN_CLIENT_CERT", metavar="FILE", help="A certificate to show to the server (PEM)."),
    ] = None
    key: Annotated[
        Path | None, _option(envvar="DRAGOMAN_CLIENT_KEY", metavar="FILE", help="The private key of --cert (PEM).")
    ] = None
    server_name: Annotated[
        str | None,
        _option(
            envvar="DRAGOMAN_SERVER_NAME",
            metavar="NAME",
            help="What the server's certificate is for, where that is not the host of --address, as behind a tunnel.",
        ),
    ] = None
    api_key: Annotated[
        str | None,
        _option(
            envvar="DRAGOMAN_API_KEY",
            metavar="KEY",
            show_envvar=True,
            help="The key to get in with. Better in the environment: other users see a command's options.",
        ),
    ] = None

    def client(self) -> "Client":
        from dragoman.client import Client

        return Client(self.address, **self._arguments())

    def async_client(self) -> "AsyncClient":
        from dragoman.aio import AsyncClient

        return AsyncClient(self.address, **self._arguments())

    def _arguments(self) -> dict[str, Any]:
        """Raises ValueError where the options don't go together."""
        from dragoman.cli.output import RetryNotice
        from dragoman.credentials import Tls
        from dragoman.retry import RetryPolicy

        if (self.cert is None) != (self.key is None):
            raise ValueError("--cert and --key need each other")
        tls = self.tls or any(each is not None for each in (self.ca, self.cert, self.server_name))
        return {
            "timeout": self.timeout,
            "retry": RetryPolicy(on_retry=RetryNotice()),
            "follow_health": not self.ignore_health,
            "tls": tls and Tls(ca=self.ca, cert=self.cert, key=self.key, server_name=self.server_name),
            "api_key": self.api_key,
        }


def asks_server(timeout: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command these options, which it takes as one argument `server`.

    Args:
        timeout: its default.
    """

    def give(command: Callable[..., None]) -> Callable[..., None]:
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(Server, name), annotation=kind)
            for name, kind in inspect.get_annotations(Server, eval_str=True).items()
        ]
        options = [each.replace(default=timeout) if each.name == "timeout" else each for each in options]
        own = inspect.signature(command, eval_str=True).parameters
        kept = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, each in own.items() if name != "server"]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            server = Server(**{option.name: given.pop(option.name) for option in options})
            command(server=server, **given)

        del run.__wrapped__  # typer would look at what stands behind it
        run.__signature__ = inspect.Signature([*kept, *options])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in [*kept, *options]}
        return run

    return give
