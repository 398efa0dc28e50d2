"""How the gRPC server treats its connections."""

import resource

from dragoman_server.config import ServerConfig
from dragoman_server.core.errors import StartError

# Clients ping to notice a server that vanished; ten seconds are usual, and this leaves room. Where a call waits for
# minutes gRPC's defaults take pings for an attack, and end the connection with all its calls.
LEAST_PING_MILLISECONDS = 1000
# A client whose machine or network vanished says no goodbye; without pings its calls would hold their places for hours.
PING_MILLISECONDS, PONG_MILLISECONDS = 60_000, 20_000
# For a client that connects and then says nothing; until then it counts as a connection.
HANDSHAKE_MILLISECONDS = 20_000
# Files beside connections: libraries, weights, the metrics port, what Python imports.
OTHER_FILES = 256
LEAST_CONNECTIONS = 16  # with room for fewer a load balancer and its probes alone would fill the server
PENDING_CALLS = 1_000_000
UNREQUESTED_SECONDS = 3600  # until then a call's own deadline ends it, or the supervisor a server that hangs
METADATA_BYTES = 16 * 1024  # of a call; gateways add tokens of several thousand
# Bits of grpc.Compression. gRPC itself must not be imported here: see process.cli, which sets how it behaves first.
PLAIN_OR_GZIP = 1 << 0 | 1 << 2


def server_options(config: ServerConfig, connections: int) -> list[tuple[str, int]]:
    """Options of grpc.aio.server.

    Args:
        connections: that may be open at once, as `allow_connections` tells.
    """
    options = [
        ("grpc.so_reuseport", 0),  # else a second server would share the port, and the calls, without a word
        # A larger request is refused with RESOURCE_EXHAUSTED before it is in memory.
        ("grpc.max_receive_message_length", config.max_message_bytes),
        # A compressed one is inflated by api.message_codec: gRPC would inflate it whole before it looks at its size.
        ("grpc.per_message_decompression", 0),
        ("grpc.compression_enabled_algorithms_bitset", PLAIN_OR_GZIP),
        # gRPC has two limits, and refuses what lies between them at random.
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.max_concurrent_streams", config.max_concurrent_streams),
        # Of a burst, gRPC would else refuse what is beyond a thousand, without a delay after which to try again: our
        # queue is what refuses.
        ("grpc.server.max_pending_requests", PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS),
        # And calls that it has not handed over yet would end after half a minute, with CANCELLED.
        ("grpc.server_max_unrequested_time_in_server", UNREQUESTED_SECONDS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MILLISECONDS),
        ("grpc.http2.min_ping_interval_without_data_ms", LEAST_PING_MILLISECONDS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", PING_MILLISECONDS),
        ("grpc.keepalive_timeout_ms", PONG_MILLISECONDS),
        ("grpc.http2.ping_timeout_ms", PONG_MILLISECONDS),  # else a minute, whatever the option above says
    ]
    if config.max_connection_age_seconds is not None:
        options += [
            ("grpc.max_connection_age_ms", round(1000 * config.max_connection_age_seconds)),
            ("grpc.max_connection_age_grace_ms", round(1000 * config.connection_age_grace_seconds)),
        ]
    return options


def allow_connections(config: ServerConfig) -> int:
    """Raises the process's limit of open files as far as the connections need and the system lets it.

    Returns:
        how many connections that leaves room for.

    Raises:
        StartError: too few.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < config.max_connections + OTHER_FILES:
        wanted = config.max_connections + OTHER_FILES
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return config.max_connections
    if soft - OTHER_FILES < (least := min(config.max_connections, LEAST_CONNECTIONS)):
        raise StartError(
            f"the system allows this process {soft} open files (ulimit -n), and it needs {OTHER_FILES + least} at least"
        )
    return min(config.max_connections, soft - OTHER_FILES)
