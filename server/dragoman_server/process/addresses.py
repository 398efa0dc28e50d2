"""Resolves --host, and listens on its addresses and no others."""

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import structlog

from dragoman_server.core.errors import StartError

log = structlog.get_logger()

IPV4, IPV6 = "0.0.0.0", "::"  # all IPv4 addresses of the machine, and all of both
# The address can't be bound with any port.
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
# Addresses reserved for documentation. Nothing is sent there; they show whether a route to the outside exists.
OUTSIDE_IPV4, OUTSIDE_IPV6 = "192.0.2.1", "2001:db8::1"


def addresses_of(host: str, port: int, option: str) -> list[str]:
    """Returns the addresses of a host that this machine has.

    It tries to listen on each, since the libraries that listen later don't say why they fail.

    Args:
        option: The option of the port, for errors.

    Raises:
        StartError: This machine has none of the addresses, or the port can't be used.
    """
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError for text that can't be a host name
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise StartError(f"--host {host} is not an address of this machine: {reason}") from None
    if host == IPV4:
        _check_ipv4()
    addresses: list[str] = []
    absent: OSError | None = None
    for family, kind, protocol, _, (address, *rest) in resolved:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port, *rest[1:]))
                probe.listen()
            addresses.append(host if "%" in host else str(address))  # keeps the interface of a link-local address
        except OSError as error:
            if error.errno not in ABSENT:
                raise cannot_listen(error, host, port, option) from None
            absent = error  # the machine may lack some, as localhost's ::1 without IPv6
    if not addresses and absent is not None:
        raise StartError(f"--host {host} is not an address of this machine: {absent.strerror}") from None
    return list(dict.fromkeys(addresses))


def cannot_listen(error: OSError, host: str, port: int, option: str) -> StartError:
    """Returns what to tell the user when a port can't be opened."""
    if error.errno == errno.EADDRINUSE:
        return StartError(f"port {port} of {host} is in use; choose another with {option}")
    return StartError(f"can't listen on port {port} of {host}: {error.strerror} ({option})")


def listen_on(addresses: list[str], port: int, option: str, add_port: Callable[[str], int]) -> int:
    """Makes a gRPC server listen on these addresses only, and returns the port.

    Args:
        port: The port for all addresses; 0 chooses a free one.
        option: The option of the port, for errors.
        add_port: A method such as grpc.aio.Server.add_insecure_port.

    Raises:
        StartError: An address can't be used.
    """
    for address in addresses:
        with _hold_ipv6(port) if address == IPV4 else nullcontext(port) as port:
            target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            try:
                port = add_port(target)
            except RuntimeError:
                raise StartError(
                    f"can't listen on port {port} of {address}; choose others with --host and {option}"
                ) from None
    return port


@contextmanager
def _hold_ipv6(port: int) -> Iterator[int]:
    """Occupies an IPv6 port while the context is open; yields the port, a free one for 0.

    gRPC treats 0.0.0.0 as "::" and accepts IPv6 as well. It listens on IPv4 only if the IPv6 port is taken.
    """
    try:
        holder = socket.socket(socket.AF_INET6)
    except OSError:  # the machine has no IPv6
        yield port
        return
    with holder:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # ignore connections in TIME_WAIT
        try:
            holder.bind((IPV6, port))
            holder.listen(0)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, *ABSENT):  # then gRPC can't have it either
                raise StartError(f"can't keep IPv6 out of port {port}: {error.strerror}") from None
        yield port or holder.getsockname()[1]


def _check_ipv4() -> None:
    """Refuses 0.0.0.0 on a machine without IPv4, and warns if only IPv6 leads out of the machine.

    Raises:
        StartError: The machine has no IPv4.
    """
    advice = 'to listen on all IPv4 and IPv6 addresses, use --host "::"'
    if _reaches(OUTSIDE_IPV4):
        return
    if not _reaches("127.0.0.1"):
        raise StartError(f"--host {IPV4} means all IPv4 addresses, and this machine has none; {advice}")
    if _reaches(OUTSIDE_IPV6):
        log.warning(f"--host {IPV4} accepts no IPv6, the only way out of this machine; {advice}")


def _reaches(address: str) -> bool:
    """Returns whether a route to an address exists, without sending anything."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError:
        return False
    return True
