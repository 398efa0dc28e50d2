"""Options and limits of the gRPC server's connections."""

import resource

from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError

# Clients ping to notice a server that vanished, usually every ten seconds; this leaves room. While a call waits for
# minutes, gRPC's defaults treat pings as an attack, and close the connection with all its calls.
MIN_PING_MILLISECONDS = 1000
# A client whose machine or network vanished sends no FIN; without pings its calls would hold their places for hours.
PING_MILLISECONDS, PONG_MILLISECONDS = 60_000, 20_000
# For a client that connects and stays silent; until then it counts as a connection.
HANDSHAKE_MILLISECONDS = 20_000
# Open files other than connections: libraries, weights, the metrics port, Python imports.
OTHER_FILES = 256
MIN_CONNECTIONS = 16  # a load balancer and its probes alone could use up fewer
PENDING_CALLS = 1_000_000
UNREQUESTED_SECONDS = 3600  # long before, a call's deadline ends it, or the supervisor ends a server that hangs
METADATA_BYTES = 16 * 1024  # of a call; gateways add tokens of several thousand bytes
# Bits of grpc.Compression. gRPC must not be imported here: process.cli sets its environment variables first.
PLAIN_OR_GZIP = 1 << 0 | 1 << 2


def server_options(config: ServerConfig, connections: int) -> list[tuple[str, int]]:
    """Returns the options of grpc.aio.server.

    Args:
        connections: Maximum number of open connections, from `allow_connections`.
    """
    options = [
        ("grpc.so_reuseport", 0),  # else a second server could silently share the port and its calls
        # A larger request is refused with RESOURCE_EXHAUSTED before it is in memory.
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # api.message_codec decompresses requests: gRPC would decompress all of one before it checks the size.
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", PLAIN_OR_GZIP),
        # gRPC has two limits, and refuses sizes in between at random.
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        # By default gRPC refuses calls of a burst beyond a thousand, without a retry delay; the queue should do that.
        ("grpc.server.max_pending_requests", PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
        # By default calls that are not dispatched yet end with CANCELLED after half a minute.
        ("grpc.server_max_unrequested_time_in_server", UNREQUESTED_SECONDS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
        ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", PONG_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", PONG_MILLISECONDS),  # else a minute, whatever the option above is
    ]
    if config.max_connection_age_seconds is not None:
        options += [
            ("grpc.max_connection_age_ms", round(1000 * config.max_connection_age_seconds)),
            ("grpc.max_connection_age_grace_ms", round(1000 * config.connection_age_grace_seconds)),
        ]
    return options


def allow_connections(config: ServerConfig) -> int:
    """Raises the process's limit of open files as far as connections need it and the system allows.

    Returns:
        The number of connections that the limit allows.

    Raises:
        StartError: The limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < config.max_connections + OTHER_FILES:
        needed = config.max_connections + OTHER_FILES
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return config.max_connections
    needed = OTHER_FILES + min(config.max_connections, MIN_CONNECTIONS)
    if soft < needed:
        raise StartError(f"the system allows this process {soft} open files (ulimit -n); it needs at least {needed}")
    return min(config.max_connections, soft - OTHER_FILES)
