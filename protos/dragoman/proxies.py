"""Which connections go through a proxy that the environment names. None to this machine does.

gRPC reads grpc_proxy, https_proxy and http_proxy, the first that is set, and no_grpc_proxy or no_proxy for hosts that
it reaches without one; urllib reads http_proxy, https_proxy and no_proxy. By themselves both ask a proxy for 127.0.0.1.
"""

import ipaddress
import os
import urllib.parse
import urllib.request
from typing import Any

_OF_GRPC = ("grpc_proxy", "https_proxy", "http_proxy")
_NOT_OF_GRPC = ("no_grpc_proxy", "no_proxy")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: localhost, 127.0.0.0/8, ::1, or 0.0.0.0 and :: for any address of it."""
    host = host.strip("[]").removesuffix(".")
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def is_address(host: str) -> bool:
    """Whether a host is given by its IP address."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def endpoints(target: str) -> list[str]:
    """HOST:PORT of each address that a gRPC target names; none where it names no host, as in "unix:/run/dragoman"."""
    scheme, _, rest = target.partition(":")
    if scheme in ("ipv4", "ipv6"):
        return rest.split(",")
    return [rest.rpartition("/")[2]] if scheme == "dns" else []


def host_of(endpoint: str) -> str:
    """The host in HOST:PORT, without the brackets of an IPv6 address."""
    return endpoint.rpartition(":")[0].strip("[]")


def goes_direct(target: str) -> bool:
    """Whether a channel to a gRPC target never uses a proxy.

    That is so for several addresses, too: no proxy connects to more than one.
    """
    hosts = [host_of(endpoint) for endpoint in endpoints(target)]
    return target.startswith("unix") or len(hosts) > 1 or any(map(is_loopback, hosts))


def variable_for(target: str) -> str | None:
    """The variable that names the proxy by which gRPC goes to a target; None where it goes there itself."""
    name = next((each for each in _OF_GRPC if each in os.environ), None)
    # Of an empty variable, and of what is no HTTP proxy, gRPC takes no notice.
    if name is None or not os.environ[name].lower().startswith("http://") or goes_direct(target):
        return None
    excepted = next((os.environ[each] for each in _NOT_OF_GRPC if each in os.environ), "")
    hosts = [host_of(endpoint) for endpoint in endpoints(target)]
    return None if any(_includes(entry.strip(), host) for entry in excepted.split(",") for host in hosts) else name


def _includes(entry: str, host: str) -> bool:
    """Whether an entry of no_proxy stands for a host: as its end, or as a network that it is in."""
    if not entry:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())


def variable_for_url(url: str) -> str | None:
    """The same for urllib and the address of a page."""
    host = _host_of_url(url)
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    name = f"{url.partition(':')[0]}_proxy"
    return next((each for each in (name, name.upper()) if os.environ.get(each)), None)


def open_url(url: str, timeout: float) -> Any:
    """As urllib.request.urlopen, but to this machine without a proxy."""
    handlers = [urllib.request.ProxyHandler({})] if is_loopback(_host_of_url(url)) else []
    return urllib.request.build_opener(*handlers).open(url, timeout=timeout)


def _host_of_url(url: str) -> str:
    try:
        return urllib.parse.urlsplit(url).hostname or ""
    except ValueError:
        return ""
