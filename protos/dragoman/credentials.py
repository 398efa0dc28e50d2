"""How a client shows who it is, and checks whom it talks to."""

from dataclasses import dataclass
from pathlib import Path

import grpc


@dataclass(frozen=True, slots=True)
class Tls:
    """How to talk TLS. The files are read once, when the client is made; all are in PEM form.

    Attributes:
        ca: certificates of those whose servers are trusted; None for the public ones that gRPC brings.
        cert: the client's own certificate, for servers that want one.
        key: its private key.
        server_name: what the server's certificate must be for, where that is not the host in the address: with several
            addresses, or behind a tunnel.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key need each other")


def channel_credentials(tls: Tls | bool) -> grpc.ChannelCredentials | None:
    """None for a connection without TLS.

    Raises:
        ValueError: a file can't be read or used.
    """
    if tls is False:
        return None
    tls = Tls() if tls is True else tls
    return grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca, "ca", "CERTIFICATE"),
        private_key=_read(tls.key, "key", "PRIVATE KEY"),
        certificate_chain=_read(tls.cert, "cert", "CERTIFICATE"),
    )


def channel_options(tls: Tls | bool) -> list[tuple[str, str]]:
    """Options of the channel that go with the credentials."""
    if isinstance(tls, bool) or tls.server_name is None:
        return []
    return [("grpc.ssl_target_name_override", tls.server_name)]


def call_metadata(api_key: str | None) -> tuple[tuple[str, str], ...] | None:
    """What is sent with each call.

    Raises:
        ValueError: the key can't be one.
    """
    if api_key is None:
        return None
    if not api_key or not all("!" <= character <= "~" for character in api_key):
        raise ValueError("api_key: expected printable ASCII without spaces")  # never quoted
    return (("authorization", f"Bearer {api_key}"),)


def _read(path: str | Path | None, name: str, kind: str) -> bytes | None:
    """gRPC itself answers a file that it can't use with failures to connect that say nothing of it."""
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"tls: {name} {path} can't be read: {error.strerror}") from None
    if b"-----BEGIN " not in content or f"{kind}-----".encode() not in content:
        raise ValueError(f"tls: {name} {path} holds no {kind.lower()} in PEM form")
    return content
