"""What listens: gRPC on one port, metrics and probes on another."""

import errno
import socket

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from dragoman.v1 import generation_pb2_grpc
from server.api.health import Health
from server.api.interceptor import CallInterceptor
from server.api.service import SERVICE, GenerationService
from server.config import ServerConfig
from server.connections import allow_connections, server_options
from server.errors import StartError
from server.metrics import ServerMetrics
from server.probes import Probes, serve_http

log = structlog.get_logger()


def listen(
    config: ServerConfig, metrics: ServerMetrics, service: GenerationService, health: Health
) -> tuple[grpc.aio.Server, int]:
    """The gRPC server, not yet started, and its port.

    Raises:
        StartError: the port can't be had.
    """
    if (connections := allow_connections(config)) < config.max_connections:
        log.warning("the limit of open files allows fewer connections than --max-connections", connections=connections)
    _check_port(config.host, config.port, "--port")
    server = grpc.aio.server(interceptors=[CallInterceptor(metrics)], options=server_options(config))
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(service, server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    names = [SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME]
    reflection.enable_server_reflection(names, server)
    host = f"[{config.host}]" if ":" in config.host else config.host
    try:
        return server, server.add_insecure_port(f"{host}:{config.port}")
    except RuntimeError:
        raise StartError(f"can't listen on {host}:{config.port}; choose others with --host and --port") from None


def serve_metrics(config: ServerConfig, metrics: ServerMetrics, probes: Probes) -> int:
    """Serves metrics and probes over HTTP, in threads of their own; gives the port."""
    _check_port(config.host, config.metrics_port, "--metrics-port")
    return serve_http(config.host, config.metrics_port, metrics.registry, probes).server_port


def _check_port(host: str, port: int, option: str) -> None:
    """Raises StartError where the port can't be listened on. Neither library that will listen says why it can't."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except (socket.gaierror, UnicodeError) as error:  # the latter for what can't be a host name at all
        reason = error.strerror if isinstance(error, socket.gaierror) else "not a host name"
        raise StartError(f"--host {host} is not an address of this machine: {reason}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} of {host} is in use; choose another with {option}") from None
        raise StartError(f"can't listen on port {port} of {host}: {error.strerror} ({option})") from None
