"""Which connections use a proxy from the environment. Those to this machine never do.

gRPC takes the proxy from grpc_proxy, https_proxy or http_proxy, whichever is set first, and the hosts that bypass it
from no_grpc_proxy or no_proxy; urllib reads http_proxy, https_proxy and no_proxy. By default both send even 127.0.0.1
through the proxy.
"""

import ipaddress
import os
import urllib.parse
import urllib.request
from typing import Any

_GRPC_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")
_GRPC_BYPASS_VARIABLES = ("no_grpc_proxy", "no_proxy")


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine: localhost, 127.0.0.0/8, ::1, or the wildcards 0.0.0.0 and ::."""
    host = host.strip("[]").removesuffix(".")
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def is_ip_address(host: str) -> bool:
    """Returns whether a host is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def endpoints(target: str) -> list[str]:
    """Returns HOST:PORT of each address in a gRPC target; none if it has no host, as "unix:/run/dragoman"."""
    scheme, _, rest = target.partition(":")
    if scheme in ("ipv4", "ipv6"):
        return rest.split(",")
    return [rest.rpartition("/")[2]] if scheme == "dns" else []


def host_of(endpoint: str) -> str:
    """Returns the host of HOST:PORT, without the brackets of an IPv6 address."""
    return endpoint.rpartition(":")[0].strip("[]")


def bypasses_proxy(target: str) -> bool:
    """Returns whether a channel to a gRPC target never uses a proxy.

    Several addresses never do: a proxy connects to one only.
    """
    hosts = [host_of(endpoint) for endpoint in endpoints(target)]
    return target.startswith("unix") or len(hosts) > 1 or any(map(is_loopback, hosts))


def proxy_variable(target: str) -> str | None:
    """Returns the environment variable with the proxy that gRPC uses for a target; None for a direct connection."""
    variable = next((name for name in _GRPC_VARIABLES if name in os.environ), None)
    # gRPC ignores an empty variable and proxies of other kinds.
    if variable is None or not os.environ[variable].lower().startswith("http://") or bypasses_proxy(target):
        return None
    bypass = next((os.environ[name] for name in _GRPC_BYPASS_VARIABLES if name in os.environ), "")
    hosts = [host_of(endpoint) for endpoint in endpoints(target)]
    return None if any(_matches(entry.strip(), host) for entry in bypass.split(",") for host in hosts) else variable


def _matches(entry: str, host: str) -> bool:
    """Returns whether an entry of no_proxy matches a host: as a suffix of its name, or as its network."""
    if not entry:
        return False
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return host.lower().endswith(entry.lower())


def proxy_variable_for_url(url: str) -> str | None:
    """Returns the environment variable with the proxy that urllib uses for a URL; None for a direct connection."""
    host = _host_of_url(url)
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    name = f"{url.partition(':')[0]}_proxy"
    return next((variable for variable in (name, name.upper()) if os.environ.get(variable)), None)


def open_url(url: str, timeout: float) -> Any:
    """Opens a URL like urllib.request.urlopen, but without a proxy if it is on this machine."""
    handlers = [urllib.request.ProxyHandler({})] if is_loopback(_host_of_url(url)) else []
    return urllib.request.build_opener(*handlers).open(url, timeout=timeout)


def _host_of_url(url: str) -> str:
    try:
        return urllib.parse.urlsplit(url).hostname or ""
    except ValueError:
        return ""
