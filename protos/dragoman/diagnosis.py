"""Why nothing answers under a name that stands for several addresses.

Where a name has several, as localhost has (127.0.0.1 and ::1), gRPC tells of whichever it tried last: mostly that
nobody listens at ::1, which says less than that the server at 127.0.0.1 loads its model, or speaks TLS.
"""

import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.channel import Option
from dragoman.channel import options as options_of
from dragoman.errors import DragomanError, UnavailableError, from_rpc_error, not_ready
from dragoman.proxies import variable_for

SECONDS = 1.0  # that asking may take
# With connections of its own: gRPC would share those of other channels, with what was told of them last. And none by a
# proxy: where the name goes without one, so do its addresses, though no_proxy may not list them.
_ALONE: list[Option] = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
_TARGET_NAME = "grpc.ssl_target_name_override"


@dataclass(frozen=True)
class Diagnosis:
    """Asks each address of a server how it does, where a call found none.

    Args:
        address: as people know it.
        target: gRPC's name of it.
        options: of the channel, beside the usual ones.
    """

    address: str
    target: str
    credentials: grpc.ChannelCredentials | None
    options: Sequence[Option]

    def failure(self, error: grpc.RpcError, request_id: str) -> DragomanError:
        """What a call that was sent by that name failed with."""
        return from_rpc_error(error, self.address, request_id, proxy=variable_for(self.target))

    def of(self, error: DragomanError) -> DragomanError:
        """What to tell instead of an error, or the error itself. Blocks for about SECONDS at most."""
        if not isinstance(error, UnavailableError) or error.unconnected != "network" or variable_for(self.target):
            return error
        deadline = time.monotonic() + SECONDS
        for target, options in self._each():
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                break
            if (found := self._ask(target, options, seconds)) is not None:
                return found
        return error

    def channel_options(self, *, follow_health: bool) -> list[Option]:
        """For a channel to all addresses."""
        return [*options_of(self.target, follow_health=follow_health), *self.options]

    def channel(self, *, follow_health: bool) -> grpc.Channel:
        """To all addresses."""
        return self._open(self.target, self.channel_options(follow_health=follow_health))

    def _open(self, target: str, options: list[Option]) -> grpc.Channel:
        if self.credentials is None:
            return grpc.insecure_channel(target, options)
        return grpc.secure_channel(target, self.credentials, options)

    def _ask(self, target: str, options: list[Option], seconds: float) -> DragomanError | None:
        """What says more than that nobody listens there."""
        with self._open(target, [*options_of(target), *_ALONE, *options, *self.options]) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=seconds)
            except grpc.RpcError as failure:
                found = from_rpc_error(failure, self.address)
                return found if isinstance(found, UnavailableError) and found.unconnected in ("tls", "closed") else None
        return None if answer.status == health_pb2.HealthCheckResponse.SERVING else not_ready(self.address)

    def _each(self) -> Iterator[tuple[str, list[Option]]]:
        """The target of each address, and what keeps its certificate one for the name."""
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
                way = f"ipv6:[{ip}]:{port}" if family is socket.AF_INET6 else f"ipv4:{ip}:{port}"
                yield way, [(_TARGET_NAME, host)] if not any(name == _TARGET_NAME for name, _ in self.options) else []
