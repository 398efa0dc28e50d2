"""How a client connects: addresses, TLS, channel options, and the diagnosis of failed connections."""

import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.errors import DragomanError, UnavailableError, from_rpc_error, not_ready
from dragoman.proxies import bypasses_proxy, endpoints, host_of, is_ip_address, is_loopback, proxy_variable
from dragoman.requests import text
from dragoman.retry import Metadata

Option = tuple[str, str | int]

DEFAULT_ADDRESS = "127.0.0.1:50051"
DIAGNOSIS_SECONDS = 1.0

_SCHEME = re.compile(r"^(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):")
_NO_HOST = re.compile(r"[\[\]/\s]")  # as in http://localhost, which gRPC would try to resolve until the timeout
_MAX_RECEIVE_BYTES = 64 * 2**20

# Calls take turns among all addresses that the name resolves to: a headless Kubernetes service has one per pod.
_ROUND_ROBIN: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
# The channel watches the health of each server (grpc.health.v1) and sends calls only to those that report that they are
# ready. So a server that is about to drain gets no more calls while it still accepts some.
_FOLLOW_HEALTH = {**_ROUND_ROBIN, "healthCheckConfig": {"serviceName": ""}}

_OPTIONS: list[Option] = [
    ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
    # Detect a peer that vanished.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Reconnect to a restarted server within the client's own retries.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # When a connection ends, gRPC resolves the name again, which finds new servers. By default it waits 30 s between
    # two resolutions, in which a new server would get no calls.
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
]
_TARGET_NAME = "grpc.ssl_target_name_override"
# Connections of their own: gRPC would share those of other channels, with their last state. And no proxy: a name that
# bypasses it has addresses that do so, too, even if no_proxy does not list them.
_DIAGNOSIS_OPTIONS: list[Option] = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS settings. All files are in PEM format and read once, when the client is created.

    Args:
        ca: Certificates of the authorities to trust; None for the public ones that gRPC ships with.
        cert: Certificate of the client, for servers that require one.
        key: Private key of `cert`.
        server_name: Name in the server's certificate, if it is not the host in the address: with several addresses, or
            behind a tunnel.

    Raises:
        ValueError: Only one of `cert` and `key` is set.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key must be set together")


def channel_options(target: str, *, follow_health: bool = False) -> list[Option]:
    """Returns the options of a channel to a gRPC target.

    Args:
        follow_health: Watch the health of each server, and send calls only to those that are ready.
    """
    config = _FOLLOW_HEALTH if follow_health else _ROUND_ROBIN
    proxy: list[Option] = [("grpc.enable_http_proxy", 0)] if bypasses_proxy(target) else []
    return [("grpc.service_config", json.dumps(config)), *_OPTIONS, *proxy]


def has_several_servers(target: str) -> bool:
    """Returns whether a gRPC target may stand for several servers, among which the client chooses for each call.

    A name may get more addresses at any time, so only its form counts.
    """
    found = endpoints(target)
    host = host_of(found[0]) if found else ""
    named = bool(host) and not is_ip_address(host) and not is_loopback(host)
    return len(found) > 1 or target.startswith("xds:") or named


def grpc_target(address: str | Sequence[str]) -> str:
    """Returns the gRPC target of HOST:PORT, of several of them (a list, or separated by commas), or of a gRPC name.

    gRPC resolves a single name itself, again whenever a connection is lost. Several are resolved here, once.

    Raises:
        ValueError: An address is not HOST:PORT, cannot be resolved, or the addresses share no IP version.
    """
    given = text(address if isinstance(address, str) else ",".join(address), "address")
    if _SCHEME.match(given):
        return given
    addresses = [_split(part.strip()) for part in given.split(",")]
    if len(addresses) == 1:
        host, port = addresses[0]
        return f"dns:///{_bracketed(host)}:{port}"
    for scheme, family in (("ipv4", socket.AF_INET), ("ipv6", socket.AF_INET6)):
        resolved = [_resolve(host, port, family) for host, port in addresses]
        if all(resolved):
            return f"{scheme}:" + ",".join(f"{_bracketed(ip)}:{port}" for found in resolved for ip, port in found)
    raise ValueError(f"address: the hosts of {given!r} cannot be resolved to addresses of one IP version")


def call_metadata(api_key: str | None) -> Metadata | None:
    """Returns the metadata of every call.

    Raises:
        ValueError: The key has characters that no key can have.
    """
    if api_key is None:
        return None
    if not api_key or not all("!" <= character <= "~" for character in api_key):
        raise ValueError("api_key: expected printable ASCII without spaces")  # must not quote the key
    return (("authorization", f"Bearer {api_key}"),)


class Connector:
    """Opens channels to an address, and finds out why a call reached no server.

    If a name has several addresses, as localhost has (127.0.0.1 and ::1), gRPC reports the error of the one it tried
    last: usually that nobody listens at ::1, although the server at 127.0.0.1 is loading its model or speaks TLS.

    Args:
        address: Address of the server, as the user wrote it.
        tls: See Client.

    Raises:
        ValueError: The address is invalid, or a TLS file cannot be used.

    Attributes:
        target: gRPC target of the address.
    """

    def __init__(self, address: str | Sequence[str], tls: Tls | bool) -> None:
        self._address = address if isinstance(address, str) else ",".join(address)
        self.target = grpc_target(address)
        self._credentials = _credentials(tls)
        self._tls_options: list[Option] = []
        if isinstance(tls, Tls) and tls.server_name is not None:
            self._tls_options.append((_TARGET_NAME, tls.server_name))

    def channel(self, *, follow_health: bool) -> grpc.Channel:
        return self._open(self.target, self._channel_options(follow_health))

    def async_channel(self, *, follow_health: bool) -> Any:
        options = self._channel_options(follow_health)
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.target, options)
        return grpc.aio.secure_channel(self.target, self._credentials, options)

    def failure(self, error: grpc.RpcError, request_id: str) -> DragomanError:
        """Returns the exception for the failure of a call."""
        return from_rpc_error(error, self._address, request_id, proxy=proxy_variable(self.target))

    def diagnose(self, error: DragomanError) -> DragomanError:
        """Returns a more specific error if one address has one. Blocks for up to DIAGNOSIS_SECONDS, roughly."""
        network = isinstance(error, UnavailableError) and error.connection_failure == "network"
        if not network or proxy_variable(self.target):
            return error
        deadline = time.monotonic() + DIAGNOSIS_SECONDS
        for target, options in self._addresses():
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                break
            if (found := self._check(target, options, seconds)) is not None:
                return found
        return error

    def _channel_options(self, follow_health: bool) -> list[Option]:
        return [*channel_options(self.target, follow_health=follow_health), *self._tls_options]

    def _open(self, target: str, options: list[Option]) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, self._credentials, options)

    def _check(self, target: str, options: list[Option], seconds: float) -> DragomanError | None:
        """Returns the error of one address, unless nobody listens there or the server is ready."""
        options = [*channel_options(target), *_DIAGNOSIS_OPTIONS, *options, *self._tls_options]
        with self._open(target, options) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=seconds)
            except grpc.RpcError as failure:
                error = from_rpc_error(failure, self._address)
                specific = isinstance(error, UnavailableError) and error.connection_failure in ("tls", "closed")
                return error if specific else None
        return None if answer.status == health_pb2.HealthCheckResponse.SERVING else not_ready(self._address)

    def _addresses(self) -> Iterator[tuple[str, list[Option]]]:
        """Yields the target of each address, with the options that check its certificate against the name."""
        scheme, _, rest = self.target.partition(":")
        if scheme in ("ipv4", "ipv6"):
            yield from ((f"{scheme}:{address}", []) for address in rest.split(","))
        elif scheme == "dns":
            host, _, port = rest.rpartition("/")[2].rpartition(":")
            host = host.strip("[]")
            try:
                found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except OSError:
                return
            for family, *_, (ip, *_) in found:
                target = f"ipv6:[{ip}]:{port}" if family is socket.AF_INET6 else f"ipv4:{ip}:{port}"
                yield target, [] if self._tls_options else [(_TARGET_NAME, host)]


def _credentials(tls: Tls | bool) -> grpc.ChannelCredentials | None:
    """Returns the channel credentials; None without TLS.

    Raises:
        ValueError: A file cannot be read or used.
    """
    if tls is False:
        return None
    tls = Tls() if tls is True else tls
    return grpc.ssl_channel_credentials(
        root_certificates=_read_pem(tls.ca, "ca", "CERTIFICATE"),
        private_key=_read_pem(tls.key, "key", "PRIVATE KEY"),
        certificate_chain=_read_pem(tls.cert, "cert", "CERTIFICATE"),
    )


def _read_pem(path: str | Path | None, name: str, kind: str) -> bytes | None:
    """Reads a file. gRPC itself would report an unusable one only as a failure to connect."""
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"tls: {name} {path} can't be read: {error.strerror}") from None
    if b"-----BEGIN " not in content or f"{kind}-----".encode() not in content:
        raise ValueError(f"tls: {name} {path} holds no {kind.lower()} in PEM form")
    return content


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    named = bool(host) and not _NO_HOST.search(host)
    if not named or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"address: expected HOST:PORT, got {address!r}")
    return host, int(port)


def _resolve(host: str, port: int, family: socket.AddressFamily) -> list[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError for text that can't be a host name
        return []
    return [(str(sockaddr[0]), port) for *_, sockaddr in found]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
