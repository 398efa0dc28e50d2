"""Where a client connects, and how its channel behaves."""

import json
import re
import socket
from collections.abc import Sequence
from typing import Any

from dragoman.proxies import endpoints, goes_direct, host_of, is_address, is_loopback

Option = tuple[str, str | int]

DEFAULT_ADDRESS = "127.0.0.1:50051"

_SCHEME = re.compile(r"^(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):")
_MAX_RECEIVE_BYTES = 64 * 2**20

# Calls go round all addresses that the name resolves to: a headless Kubernetes service has one for each pod.
_GOING_ROUND: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
# They pass over those whose server says that it is not ready, or has not said yet that it is: it is watched for that
# (grpc.health.v1). So a server that is about to leave gets no more calls while it still takes some.
_FOLLOWING_HEALTH = {**_GOING_ROUND, "healthCheckConfig": {"serviceName": ""}}

_OPTIONS: list[Option] = [
    ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES),
    # A peer that vanished is noticed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A server that restarts is found within the client's own retries.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # Where a connection ends, its name is asked for again: so servers that are new are found. By default half a minute
    # must have passed since it was asked for last, in which a server that was added is left without calls.
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
]


def options(target: str, *, follow_health: bool = False) -> list[Option]:
    """How a channel to a gRPC target behaves.

    Args:
        follow_health: watch the health of each server, and send calls only to those that are ready.
    """
    config = _FOLLOWING_HEALTH if follow_health else _GOING_ROUND
    direct: list[Option] = [("grpc.enable_http_proxy", 0)] if goes_direct(target) else []
    return [("grpc.service_config", json.dumps(config)), *_OPTIONS, *direct]


def balances(target: str) -> bool:
    """Whether several servers may be known by a gRPC target, among which the client chooses for each call.

    A name may come to have more addresses at any time, so only how it is written counts.
    """
    found = endpoints(target)
    host = host_of(found[0]) if found else ""
    return len(found) > 1 or target.startswith("xds:") or bool(host and not is_address(host) and not is_loopback(host))


def target(address: str | Sequence[str]) -> str:
    """The gRPC target of HOST:PORT, of several of them (a list, or one text with commas), or of a gRPC name.

    One name is resolved by gRPC, again whenever a connection is lost. Several are resolved here, once.

    Raises:
        ValueError: an address is not HOST:PORT, cannot be resolved, or the addresses share no IP version.
    """
    text = address if isinstance(address, str) else ",".join(address)
    if _SCHEME.match(text):
        return text
    addresses = [_split(each.strip()) for each in text.split(",")]
    if len(addresses) == 1:
        host, port = addresses[0]
        return f"dns:///{_bracketed(host)}:{port}"
    for scheme, family in (("ipv4", socket.AF_INET), ("ipv6", socket.AF_INET6)):
        resolved = [_resolve(host, port, family) for host, port in addresses]
        if all(resolved):
            return f"{scheme}:" + ",".join(f"{_bracketed(ip)}:{port}" for each in resolved for ip, port in each)
    raise ValueError(f"address: the hosts of {text!r} cannot be resolved to addresses of one IP version")


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ValueError(f"address: expected HOST:PORT, got {address!r}")
    return host, int(port)


def _resolve(host: str, port: int, family: socket.AddressFamily) -> list[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
    except OSError:
        return []
    return [(str(each[4][0]), port) for each in found]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
