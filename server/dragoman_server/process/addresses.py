"""What --host stands for, and how to listen there and nowhere else."""

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import structlog

from dragoman_server.core.errors import StartError

log = structlog.get_logger()

IPV4, IPV6 = "0.0.0.0", "::"  # every address of the machine: of IPv4, and of both
# Why an address can't be bound, whatever the port.
ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL)
# Nothing is sent there: documentation has them for itself. They only show whether there is a way out.
OUTSIDE_IPV4, OUTSIDE_IPV6 = "192.0.2.1", "2001:db8::1"


def addresses_of(host: str, port: int, option: str) -> list[str]:
    """The addresses that a host stands for and this machine has.

    Neither library that will listen says why it can't.

    Args:
        option: that the port was given with, for errors.

    Raises:
        StartError: there is none, or the port can't be listened on.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:  # the latter for what can't be a host name at all
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise StartError(f"--host {host} is not an address of this machine: {reason}") from None
    if host == IPV4:
        _check_ipv4()
    addresses: list[str] = []
    absent: OSError | None = None
    for family, kind, protocol, _, (address, *rest) in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port, *rest[1:]))
                probe.listen()
            addresses.append(host if "%" in host else str(address))  # with the interface of a link-local one
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise StartError(f"port {port} of {host} is in use; choose another with {option}") from None
            if error.errno not in ABSENT:
                raise StartError(f"can't listen on port {port} of {host}: {error.strerror} ({option})") from None
            absent = error  # a name may have one that this machine has not, as localhost where there is no IPv6
    if not addresses and absent is not None:
        raise StartError(f"--host {host} is not an address of this machine: {absent.strerror}") from None
    return list(dict.fromkeys(addresses))


def listen_on(addresses: list[str], port: int, option: str, add_port: Callable[[str], int]) -> int:
    """Lets a gRPC server listen on these addresses alone, and gives the port.

    Args:
        port: of all of them; 0 for one that is free.
        option: that the port was given with, for errors.
        add_port: as grpc.aio.Server.add_insecure_port.

    Raises:
        StartError: it can't.
    """
    for address in addresses:
        with _ipv6_taken(port) if address == IPV4 else nullcontext(port) as port:
            target = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            try:
                port = add_port(target)
            except RuntimeError:
                raise StartError(f"can't listen on {target}; choose others with --host and {option}") from None
    return port


@contextmanager
def _ipv6_taken(port: int) -> Iterator[int]:
    """Within, nobody else can listen on a port of IPv6; gives the port, one that is free in place of 0.

    gRPC takes 0.0.0.0 for "::" and lets IPv6 in as well. Only where it can't have that does it do as it was told.
    """
    try:
        holder = socket.socket(socket.AF_INET6)
    except OSError:  # there is no IPv6
        yield port
        return
    with holder:
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # past connections don't matter
        try:
            holder.bind((IPV6, port))
            holder.listen(0)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, *ABSENT):  # which serve as well
                raise StartError(f"can't keep IPv6 out of port {port}: {error.strerror}") from None
        yield port or holder.getsockname()[1]


def _check_ipv4() -> None:
    """Refuses 0.0.0.0 where it would be nothing, and warns where it would be this machine alone.

    Raises:
        StartError: there is no IPv4.
    """
    advice = 'listen on all addresses, those of IPv6 too, with --host "::"'
    if _reaches(OUTSIDE_IPV4):
        return
    if not _reaches("127.0.0.1"):
        raise StartError(f"--host {IPV4} is every address of IPv4, and this machine has none; {advice}")
    if _reaches(OUTSIDE_IPV6):
        log.warning(f"--host {IPV4} takes no calls over IPv6, which alone leads out of this machine; {advice}")


def _reaches(address: str) -> bool:
    """Whether there is a route; sends nothing."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
    except OSError:
        return False
    return True
